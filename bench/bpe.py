"""`python -m bench.bpe BOOKS [--books 20]`: the merges and the time of `train_bpe` beside those of the
`tokenizers` library used directly (`ByteLevelBPETokenizer`), on whole books, in turns.

BOOKS is a JSONL file (also .xz) with a `text` in each line, or several of them.
"""

from __future__ import annotations

import argparse
import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any

from bench.machine import describe
from glassloop.train.new_tokenizer import train_bpe


def main() -> None:
    given = _options()
    books = [text for text, _ in zip(_texts(given.files), range(given.books), strict=False)]
    with TemporaryDirectory() as place:
        folder = Path(place)
        for number, text in enumerate(books):
            (folder / f"{number:03}.txt").write_text(text, encoding="utf-8")
        rounds = [_round(folder, books, given.vocab_size) for _ in range(given.rounds)]
    (ours, theirs), *_ = [found["merges"] for found in rounds]
    same = sum(one == other for one, other in zip(ours, theirs, strict=False))
    times = {
        f"{who} {clock}": median(found[who][clock] for found in rounds)
        for who in ("train_bpe", "tokenizers")
        for clock in ("seconds", "processor seconds")
    }
    busy = "processor seconds"  # a busy machine does not change them much
    ratio = median(found["train_bpe"][busy] / found["tokenizers"][busy] for found in rounds)
    size = sum(len(text.encode()) for text in books)
    print(f"{len(books)} books, {size:,} bytes, {given.vocab_size} tokens, {given.rounds} rounds, medians")
    print(f"merges: {len(ours)} and {len(theirs)}, the same in the same place: {same}")
    print(
        ", ".join(f"{name} {value:.1f}" for name, value in times.items()),
        f"; processor time {ratio:.2f} times",
    )
    facts: dict[str, Any] = {"books": len(books), "bytes": size, "merges": len(ours), "same": same}
    print(json.dumps({**facts, **times, "ratio": ratio, "machine": describe(0)}))


def _round(folder: Path, books: list[str], vocab_size: int) -> dict[str, Any]:
    from tokenizers import ByteLevelBPETokenizer

    found: dict[str, Any] = {}
    began, busy = perf_counter(), process_time()
    with TemporaryDirectory() as made:
        train_bpe([folder], Path(made), vocab_size)
        found["train_bpe"] = _times(began, busy)
        ours = _merges((Path(made) / "tokenizer.json").read_text(encoding="utf-8"))
    began, busy = perf_counter(), process_time()
    peer = ByteLevelBPETokenizer()
    peer.train_from_iterator(
        books, vocab_size=vocab_size, min_frequency=0, special_tokens=["<|endoftext|>"], show_progress=False
    )
    found["tokenizers"] = _times(began, busy)
    return found | {"merges": (ours, _merges(peer.to_str()))}


def _times(began: float, busy: float) -> dict[str, float]:
    return {"seconds": perf_counter() - began, "processor seconds": process_time() - busy}


def _merges(text: str) -> list[tuple[str, ...]]:
    return [
        tuple(merge.split(" ") if isinstance(merge, str) else merge)
        for merge in json.loads(text)["model"]["merges"]
    ]


def _texts(files: list[Path]) -> Iterator[str]:
    for file in files:
        with lzma.open(file, "rb") if file.suffix == ".xz" else file.open("rb") as lines:
            for line in lines:
                yield json.loads(line)["text"]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--books", type=int, default=20)
    parser.add_argument("--vocab-size", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
