"""What the experiments share: paragraphs of books, results that can be continued, paired statistics."""

from __future__ import annotations

import json
import lzma
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from math import erfc, sqrt
from pathlib import Path
from typing import Any

import numpy as np

BOOKS = "books as JSON lines, in a file .jsonl.xz: objects with `book` and `text`"


def paragraphs(books: Path, count: int, least: int, most: int) -> list[dict[str, str]]:
    """Returns paragraphs of `least` to `most` characters, spread over all books, in an order that depends on
    nothing but their text: one book after the other, and within a book by the hash of the paragraph."""
    by_book: list[list[dict[str, str]]] = []
    with lzma.open(books, "rt", encoding="utf-8") as file:
        for line in file:
            book = json.loads(line)
            found = [part.strip() for part in book["text"].split("\n\n")]
            fitting = [" ".join(part.split()) for part in found if least <= len(part) <= most]
            fitting.sort(key=lambda part: sha256(part.encode()).digest())
            by_book.append([{"book": book["book"], "text": part} for part in fitting])
    made = []
    for rank in range(max(map(len, by_book))):
        made += [parts[rank] for parts in by_book if rank < len(parts)]
    return made[:count]


class Results:
    """A file of JSON lines, by the number of the item. What it has is not computed again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.rows: dict[int, dict[str, Any]] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    row = json.loads(line)
                except ValueError:  # the last line of a run that was killed
                    continue
                self.rows[row["item"]] = row

    def missing(self, items: Sequence[int]) -> Iterator[int]:
        for item in items:
            if item not in self.rows:
                yield item

    def compute(self, items: Sequence[int], one: Callable[[int], dict[str, Any]], at_once: int) -> None:
        """Computes the missing ones of these items, several at the same time: the engine computes what they
        ask for in one batch."""
        with ThreadPoolExecutor(at_once) as pool:
            missing = list(self.missing(items))
            for item, made in zip(missing, pool.map(one, missing), strict=True):
                self.add({"item": item, **made})

    def add(self, row: dict[str, Any]) -> None:
        self.rows[row["item"]] = row
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def add_spread(parser: ArgumentParser) -> None:
    """Adds the options that spread the items over threads and processes."""
    parser.add_argument("--at-once", type=int, default=4, help="paragraphs at the same time")
    parser.add_argument("--part", default="1/1", help="K/N: the K-th of N parts, for N processes")
    parser.add_argument("--kv-memory", help="what keys and values may take, as 4GB")


def part_of(items: Sequence[int], part: str) -> Sequence[int]:
    """Returns every N-th item from the K-th on, for a part "K/N"."""
    number, count = map(int, part.split("/"))
    return items[number - 1 :: count]


def paired(better: Sequence[float], worse: Sequence[float], seed: int = 0) -> dict[str, float]:
    """Compares two measurements of the same items: the mean of better - worse, its standard error, the
    interval of 95 % by bootstrap, and two-sided p-values of the t-test (normal for this many) and of random
    signs."""
    differences = np.array(better, float) - np.array(worse, float)
    count, mean = len(differences), float(differences.mean())
    error = float(differences.std(ddof=1)) / sqrt(count)
    rng = np.random.default_rng(seed)
    means = differences[rng.integers(0, count, (10_000, count))].mean(axis=1)
    signs = rng.choice([-1.0, 1.0], (20_000, count))
    beyond = int((np.abs((signs * differences).mean(axis=1)) >= abs(mean) - 1e-15).sum())
    low, high = np.quantile(means, [0.025, 0.975])
    return {
        "items": count,
        "mean": mean,
        "standard_error": error,
        "low": float(low),
        "high": float(high),
        "p_t": erfc(abs(mean / error) / sqrt(2)) if error else 1.0,
        "p_signs": (beyond + 1) / 20_001,
    }


def repetition(words: Sequence[str]) -> tuple[float, float]:
    """Returns rep-4, the share of 4-grams that have occurred before, and distinct-3, the share of different
    3-grams among all."""

    def share(length: int) -> float:
        grams = [tuple(words[i : i + length]) for i in range(len(words) - length + 1)]
        return len(set(grams)) / len(grams) if grams else 1.0

    return 1 - share(4), share(3)
