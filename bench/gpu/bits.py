"""Compares the logits of random batches with those of the same tokens computed alone, bit for bit."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field

import numpy as np
import torch

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
    """Random texts for a model, each with pages of its own and its logits, computed alone. These stay on the
    device, where they are compared."""

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

    def _alone(self, table: np.ndarray, text: list[int]) -> torch.Tensor:
        return self._bits([(table, 0, text)]).clone()

    def _bits(self, work: list[tuple[np.ndarray, int, list[int]]]) -> torch.Tensor:
        """Returns the bits of the logits of each token, until the next call."""
        logits = self.model.forward(Batch.of(work, [len(ids) for _, _, ids in work]), self.pages)
        bits: torch.Tensor = logits.values.view(torch.int32)
        return bits

    def compute_again(self, found: Found) -> None:
        """Computes every text once more from nothing, in random pieces beside random others."""
        rng, done = self.rng, [0] * self.sequences
        while left := [i for i in range(self.sequences) if done[i] < len(self.tokens[i])]:
            longest = int(rng.choice([1, 1, 4, 16, 64, 300]))
            work, expected = [], []
            for i in rng.choice(left, rng.integers(1, len(left) + 1), replace=False).tolist():
                first = done[i]
                ids = self.tokens[i][first : first + int(rng.integers(1, longest + 1))]
                work.append((self.tables[i], first, ids))
                done[i] = first + len(ids)
                expected.append(self.expected[i][first : done[i]])
            bits = self._bits(work)
            found.differ += int((bits != torch.cat(expected)).any(1).sum())
            found.batches += 1
            found.rows += len(bits)
            found.most = max(found.most, len(bits))


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shape", default="8b-3-layers", choices=SHAPES)
    parser.add_argument("--sequences", type=int, default=24)
    parser.add_argument("--length", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rows", type=int, default=1_000_000, help="how many are compared, if time allows")


def main(given: argparse.Namespace) -> None:
    texts, found = Texts(random_model(given.shape), given.sequences, given.length), Found()
    began = time.monotonic()
    while time.monotonic() - began < given.seconds and found.rows < given.rows:
        texts.compute_again(found)
    print(
        f"{given.shape}: {found.batches} batches of up to {found.most} rows, {found.rows} rows,"
        f" {found.differ} differ, {time.monotonic() - began:.0f} s",
        flush=True,
    )
