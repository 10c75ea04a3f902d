"""Compares an engine's probabilities with the float32 reference on the dequantized weights, for the same
file and tokens, in one run. Each window of text starts with an empty cache and is computed by all engines.
"""

from __future__ import annotations

import math
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.catalog import OURS, Peer
from bench.environments import Absent
from bench.process import Engine, start
from bench.rounds import say

WINDOW = 512  # tokens per window
_PIECE = 128  # rows whose logits are in memory at a time

Float32 = NDArray[np.float32]


@dataclass
class Distance:
    """Sums over tokens, from which the reported means are computed."""

    divergence: list[float] = field(default_factory=list)  # per token, in nats
    agreed: int = 0
    surprise: float = 0.0  # -log p of the text's own next tokens
    targets: int = 0

    def add(self, reference: Float32, logits: Float32, targets: list[int]) -> None:
        """Adds rows of log-probabilities, [rows, vocabulary]; the last row may be without a target."""
        probabilities = np.exp(reference)
        self.divergence += np.einsum("rv,rv->r", probabilities, reference - logits).tolist()
        self.agreed += int((reference.argmax(axis=1) == logits.argmax(axis=1)).sum())
        self.surprise -= float(logits[np.arange(len(targets)), targets].sum(dtype=np.float64))
        self.targets += len(targets)

    def merge(self, other: Distance) -> None:
        self.divergence += other.divergence
        self.agreed += other.agreed
        self.surprise += other.surprise
        self.targets += other.targets


@dataclass(frozen=True)
class Result:
    divergence: float
    error: float  # standard error of the mean divergence
    agreement: float
    perplexity: float
    perplexity_change: float

    @staticmethod
    def of(distance: Distance, reference: Distance) -> Result:
        values = np.array(distance.divergence)
        perplexity = math.exp(distance.surprise / distance.targets)
        return Result(
            float(values.mean()),
            float(values.std() / math.sqrt(len(values))),
            distance.agreed / len(values),
            perplexity,
            perplexity / math.exp(reference.surprise / reference.targets) - 1,
        )


def compare(
    peers: list[Peer],
    model: Path,
    threads: int,
    ids: list[int],
    bos: int | None,
    vocabulary: int,
    said: dict[str, dict[str, Any]],
) -> dict[str, Any]:
    """Returns the results by engine. Each window of `ids` begins with `bos` if the model needs it."""
    engines: dict[str, Engine] = {}
    absent: dict[str, str] = {}
    try:
        reference, _ = start(OURS, str(model), threads, ops="reference")
        engines["reference"] = reference
        for peer in peers:
            try:
                engines[peer.name], _ = start(peer, str(model), threads, said.get(peer.name))
            except Absent as error:
                absent[peer.name] = str(error)
        distances = {name: Distance() for name in engines}
        beginning = [] if bos is None else [bos]
        step = WINDOW - len(beginning)
        for at in range(0, len(ids), step):
            say(f"accuracy: token {at} of {len(ids)}")
            _window(engines, beginning + ids[at : at + step], vocabulary, threads, distances)
    finally:
        for engine in engines.values():
            engine.close()
    results = {name: asdict(Result.of(distances[name], distances["reference"])) for name in engines}
    return {"tokens": len(distances["reference"].divergence), "engines": results, "absent": absent}


def _window(
    engines: dict[str, Engine],
    window: list[int],
    vocabulary: int,
    threads: int,
    distances: dict[str, Distance],
) -> None:
    shared = Path("/dev/shm")
    with tempfile.NamedTemporaryFile(dir=shared if shared.is_dir() else None) as file:
        for first in range(0, len(window), _PIECE):
            piece = window[first : first + _PIECE]
            targets = window[first + 1 : first + 1 + len(piece)]
            reference: Float32 | None = None
            for name, engine in engines.items():
                engine.ask(do="logits", ids=piece, first=first, file=file.name)
                logits = np.fromfile(file.name, np.float32).reshape(len(piece), vocabulary)
                reference = _add(reference, logits, targets, threads, distances[name])


def _add(
    reference: Float32 | None, logits: Float32, targets: list[int], threads: int, into: Distance
) -> Float32:
    """Adds an engine's rows, a few at a time on all threads. Returns the reference (the first engine)."""

    def part(start: int) -> Distance:
        rows = slice(start, start + 16)
        log_softmax(logits[rows])
        distance = Distance()
        distance.add(logits[rows] if reference is None else reference[rows], logits[rows], targets[rows])
        return distance

    with ThreadPoolExecutor(threads) as pool:
        for distance in pool.map(part, range(0, len(logits), 16)):
            into.merge(distance)
    return logits if reference is None else reference


def log_softmax(rows: Float32) -> None:
    """Applies log-softmax to each row, in place."""
    rows -= rows.max(axis=1, keepdims=True)
    rows -= np.log(np.exp(rows).sum(axis=1, keepdims=True, dtype=np.float64)).astype(np.float32)
