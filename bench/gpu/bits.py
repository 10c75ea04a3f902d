"""Compares the logits of random batches with those of the same tokens computed alone, bit for bit."""

from __future__ import annotations

import argparse
import hashlib
import time
from dataclasses import dataclass, field

import numpy as np

from bench.gpu.shapes import SHAPES, random_model
from glassloop.model.transformer import Transformer
from glassloop.ops.batch import Batch, pages_for


@dataclass
class Found:
    """What was computed, and how many rows differ from the same tokens computed alone."""

    batches: int = 0
    rows: int = 0
    most: int = 0  # rows of one batch
    differ: int = 0


@dataclass
class Texts:
    """Random texts for a model, each with pages of its own and the digests of its logits computed alone."""

    model: Transformer
    sequences: int
    longest: int
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))

    def __post_init__(self) -> None:
        each, size = pages_for(self.longest), self.model.config.vocab_size
        groups = len(self.model.cache_specs)
        self.pages = self.model.ops.cache(
            self.model.cache_specs, self.model.page_bytes * (each * self.sequences + 1)
        )
        lengths = self.rng.integers(self.longest // 3, self.longest + 1, self.sequences)
        self.tokens = [self.rng.integers(0, size, length).tolist() for length in lengths]
        self.tables = np.arange(groups * each * self.sequences, dtype=np.int32).reshape(-1, groups, each)
        self.expected = [
            self._alone(table, text) for table, text in zip(self.tables, self.tokens, strict=True)
        ]

    def _alone(self, table: np.ndarray, text: list[int]) -> list[bytes]:
        return self._digests([(table, 0, text)])

    def _digests(self, work: list[tuple[np.ndarray, int, list[int]]]) -> list[bytes]:
        """Returns a digest of the logits of each token."""
        logits = self.model.forward(Batch.of(work, [len(ids) for _, _, ids in work]), self.pages)
        return [hashlib.sha256(row.tobytes()).digest() for row in self.model.ops.host(logits)]

    def compute_again(self, found: Found) -> None:
        """Computes every text once more from nothing, in random pieces beside random others."""
        rng, done = self.rng, [0] * self.sequences
        while left := [i for i in range(self.sequences) if done[i] < len(self.tokens[i])]:
            longest = int(rng.choice([1, 1, 4, 16, 64, 300]))
            work, places = [], []
            for i in rng.choice(left, rng.integers(1, len(left) + 1), replace=False).tolist():
                first = done[i]
                ids = self.tokens[i][first : first + int(rng.integers(1, longest + 1))]
                work.append((self.tables[i], first, ids))
                done[i] = first + len(ids)
                places += [(i, at) for at in range(first, done[i])]
            found.differ += sum(
                digest != self.expected[i][at]
                for digest, (i, at) in zip(self._digests(work), places, strict=True)
            )
            found.batches += 1
            found.rows += len(places)
            found.most = max(found.most, len(places))


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shape", default="8b-3-layers", choices=SHAPES)
    parser.add_argument("--sequences", type=int, default=24)
    parser.add_argument("--length", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=60)


def main(given: argparse.Namespace) -> None:
    texts, found = Texts(random_model(given.shape), given.sequences, given.length), Found()
    began = time.monotonic()
    while time.monotonic() - began < given.seconds:
        texts.compute_again(found)
    print(
        f"{given.shape}: {found.batches} batches of up to {found.most} rows, {found.rows} rows,"
        f" {found.differ} differ",
        flush=True,
    )
