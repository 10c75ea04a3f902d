"""Compares the logits of random batches with those of the same tokens computed alone, bit for bit."""

from __future__ import annotations

import argparse
import hashlib
import time

import numpy as np

from bench.gpu.shapes import random_model
from glassloop.ops.batch import PAGE, Batch, pages_for


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="8b-3-layers")
    parser.add_argument("--sequences", type=int, default=24)
    parser.add_argument("--length", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=60)
    given = parser.parse_args()
    model = random_model(given.shape)
    rng = np.random.default_rng(1)
    lengths = rng.integers(given.length // 3, given.length + 1, given.sequences)
    texts = [rng.integers(0, model.config.vocab_size, length).tolist() for length in lengths]
    each = pages_for(given.length)
    pages = model.ops.cache(model.cache_specs, model.page_bytes * each * (given.sequences + 1))
    tables = [np.arange(i * each, (i + 1) * each, dtype=np.int32)[None] for i in range(given.sequences)]

    def digests(logits: np.ndarray) -> list[bytes]:
        return [hashlib.sha256(row.tobytes()).digest() for row in logits]

    expected = []
    for text, table in zip(texts, tables, strict=True):
        expected.append(digests(model.forward(Batch.of([(table, 0, text)], [len(text)]), pages)))
    rows = wrong = batches = 0
    began = time.monotonic()
    most = 0
    while time.monotonic() - began < given.seconds:
        # Every sequence is computed again from nothing, in random pieces beside random others.
        done = [0] * given.sequences
        while any(at < len(text) for at, text in zip(done, texts, strict=True)):
            left = [i for i in range(given.sequences) if done[i] < len(texts[i])]
            here = rng.choice(left, rng.integers(1, len(left) + 1), replace=False)
            longest = int(rng.choice([1, 1, 4, 16, 64, 300]))
            work, which = [], []
            for i in here.tolist():
                count = min(int(rng.integers(1, longest + 1)), len(texts[i]) - done[i])
                work.append((tables[i], done[i], texts[i][done[i] : done[i] + count]))
                which += [(i, at) for at in range(done[i], done[i] + count)]
                done[i] += count
            logits = model.forward(Batch.of(work, [len(ids) for _, _, ids in work]), pages)
            found = digests(logits)
            wrong += sum(digest != expected[i][at] for digest, (i, at) in zip(found, which, strict=True))
            rows += len(which)
            batches += 1
            most = max(most, len(which))
    print(f"{given.shape}: {batches} batches of up to {most} rows, {rows} rows, {wrong} differ", flush=True)
    assert PAGE == 32


if __name__ == "__main__":
    main()
