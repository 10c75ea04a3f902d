"""`python -m bench.wall`: the share of what the machine allows that each workload reaches.

Decoding one stream has to read every weight once per step; many rows have to be multiplied. So a step cannot
be shorter than reading takes at the machine's read bandwidth, nor than the products of bytes take at its
peak. Both are measured in the same process, between the steps of every workload, on the same threads. Prints
a table, with `--profile` also what each kind of op takes, and a last line of JSON.
"""

from __future__ import annotations

import argparse
import json
import mmap
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter, sleep
from typing import Any, NamedTuple

import numpy as np

from bench import machine
from bench.__main__ import MODELS
from bench.english import english
from glassloop.errors import GlassloopError
from glassloop.model.cache import Branches
from glassloop.model.loader import ModelFiles
from glassloop.model.registry import fetch
from glassloop.model.transformer import Transformer
from glassloop.ops.native import library as native
from glassloop.ops.native.ops import NativeOps
from glassloop.ops.native.program import OpTime

STREAMS, PROMPTS = (1, 2, 4, 8, 16), (512, 2048, 8192)
CONTEXT, STEPS = 16, 8  # tokens before the first measured step of decoding, and steps in a round
CHUNK = NativeOps.step_rows  # rows of a prompt that are computed together
_PAUSE = 0.15  # seconds; Linux stops a real-time process for 50 ms of every second that it fills
_READ_BYTES = 1 << 27  # several times what the caches hold
_UNITS, _BLOCKS = 64, 4000  # a burst of products: short, so that it fits between two steps
_QUANTIZED = 3  # enum gl_packing begins with float32, float16 and bfloat16


class Limits:
    """What the machine allows, measured by the native library on all threads."""

    def __init__(self) -> None:
        # Packed weights lie in huge pages too, where the system has them.
        memory = mmap.mmap(-1, _READ_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(AttributeError, OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
        self._array = np.frombuffer(memory, np.float32)
        self._array[:] = 1
        self._library = native.library()

    def measure(self) -> Speeds:
        return Speeds(*map(self._multiply, range(len(native.LIMITS))), self._read())

    def _multiply(self, what: int) -> float:
        began = perf_counter()
        return int(self._library.gl_multiply(_UNITS, _BLOCKS, what)) / (perf_counter() - began)

    def _read(self) -> float:
        began = perf_counter()
        count = int(self._library.gl_read(native.address(self._array), len(self._array)))
        return count / (perf_counter() - began)


class Speeds(NamedTuple):
    """Products and bytes read, per second."""

    products: float  # products alone: the int8 peak
    scaled: float  # with the scale of each block, as docs/ops.md defines it
    with_minimum: float  # with scale and minimum
    words: float  # products of 16-bit integers
    read: float

    def best(self, other: Speeds) -> Speeds:
        return Speeds(*map(max, self, other))


class Cost(NamedTuple):
    """What one pass of a workload has to do."""

    scaled: int = 0  # products with matrices that have scales
    with_minimum: int = 0  # with those that have scales and minimums
    attention: int = 0  # products of 16-bit integers
    bytes: int = 0  # of weights to read

    @property
    def products(self) -> int:
        return self.scaled + self.with_minimum

    def seconds(self, speeds: Speeds) -> float:
        """Returns how long it takes at least: reading the weights, or the arithmetic."""
        linear = self.scaled / speeds.scaled + self.with_minimum / speeds.with_minimum
        return max(self.bytes / speeds.read, linear + self.attention / speeds.words)


@dataclass
class Workload:
    """One measured thing. `passes` yields the calls of a round, each of which is measured."""

    name: str
    positions: list[int]  # of the rows of the last pass
    wanted: int  # rows that need logits
    passes: Callable[[], Iterator[Callable[[], object]]]
    cost: Cost = field(default_factory=Cost)
    profile: list[OpTime] = field(default_factory=list)
    rounds: list[tuple[float, Speeds]] = field(default_factory=list)  # seconds of a pass, and the limits

    def result(self) -> dict[str, float | str]:
        seconds = median(spent for spent, _ in self.rounds)
        of_peak = median(self.cost.products / spent / speeds.products for spent, speeds in self.rounds)
        of_read = median(self.cost.bytes / spent / speeds.read for spent, speeds in self.rounds)
        return {
            "workload": self.name,
            "ms": round(1000 * seconds, 3),
            "tokens_per_second": round(len(self.positions) / seconds, 1),
            "of_int8_peak": round(of_peak, 3),
            "of_read_bandwidth": round(of_read, 3),
            "of_limit": round(median(self.cost.seconds(speeds) / spent for spent, speeds in self.rounds), 3),
        }


def decoding(model: Transformer, ids: list[int], streams: int) -> Workload:
    cache = Branches(model, CONTEXT + STEPS, streams)
    prompts = [ids[CONTEXT * stream : CONTEXT * (stream + 1)] for stream in range(streams)]
    cache.forward([(branch, 0, prompt) for branch, prompt in enumerate(prompts)])
    steps = [
        cache.batch([(branch, CONTEXT + step, [ids[branch + step]]) for branch in range(streams)])
        for step in range(STEPS)
    ]

    def passes() -> Iterator[Callable[[], object]]:
        for batch in steps:
            yield lambda batch=batch: model.forward(batch, cache.pages)  # type: ignore[misc]

    name = f"decode, {streams} streams" if streams > 1 else "decode alone"
    return Workload(name, [CONTEXT + STEPS - 1] * streams, streams, passes)


def prefilling(model: Transformer, ids: list[int], length: int) -> Workload:
    cache = Branches(model, length)
    prompt = (ids * -(-length // len(ids)))[:length]
    chunks = [cache.batch([(0, start, prompt[start : start + CHUNK])]) for start in range(0, length, CHUNK)]

    def compute() -> None:
        for batch in chunks:
            model.forward(batch, cache.pages)

    return Workload(f"prefill of {length:,}", list(range(length)), len(chunks), lambda: iter([compute]))


def set_cost(workload: Workload, model: Transformer, lanes: int) -> None:
    """Runs a workload once with the counters on, and sums up what its linear ops and attention have to do."""
    ops = model.ops
    assert isinstance(ops, NativeOps)
    compute = list(workload.passes())[-1]
    compute()
    with ops.profile() as workload.profile:
        compute()
    scaled = with_minimum = size = 0
    for op in workload.profile:
        if op.kind != "linear" or op.matrix is None or op.matrix.packing < _QUANTIZED:
            continue
        out, into = op.matrix.out, getattr(op.matrix, "in")
        rows = workload.wanted if op.rows == "wanted" else len(workload.positions)
        rows *= 2 if op.is_fine else 1
        if op.matrix.has_minimum or op.matrix.half_groups:
            with_minimum += rows * out * into
        else:
            scaled += rows * out * into
        size += -(-len(workload.positions) // CHUNK) * op.matrix.tile_bytes * -(-out // lanes)
    attention = 0
    for mixer in (layer.mixer for layer in model.config.layers):
        keys = sum(min(position + 1, mixer.window or position + 1) for position in workload.positions)
        attention += 2 * keys * mixer.heads * mixer.head_dim  # for scores, and for values
    workload.cost = Cost(scaled, with_minimum, attention, size)


def measure(workload: Workload, limits: Limits) -> None:
    """Measures one round: the limits, then the passes, then the limits again."""
    sleep(_PAUSE)
    seconds = []
    before = limits.measure()
    for compute in workload.passes():
        began = perf_counter()
        compute()
        seconds.append(perf_counter() - began)
    workload.rounds.append((median(seconds), before.best(limits.measure())))


def profile_table(workload: Workload, threads: int) -> Iterator[str]:
    """Yields a line for each kind of op and shape of matrix: what all threads together have spent on it."""
    groups: dict[str, list[OpTime]] = {}
    for op in workload.profile:
        shape = "" if op.matrix is None else f" {op.matrix.out} × {getattr(op.matrix, 'in')}"
        groups.setdefault(op.kind + shape, []).append(op)
    total = sum(op.working + op.waiting for op in workload.profile)
    yield f"\n{workload.name}: one pass, {1000 * total / threads:.2f} ms on each of {threads} threads"
    yield f"  {'ms of thread time':26}{'ops':>6}{'units':>8}{'working':>10}{'waiting':>10}{'share':>8}"
    for name, group in sorted(groups.items(), key=lambda item: -sum(op.working for op in item[1])):
        working, waiting = sum(op.working for op in group), sum(op.waiting for op in group)
        yield (
            f"  {name:26}{len(group):6}{sum(op.units for op in group):8,}{1000 * working:10.3f}"
            f"{1000 * waiting:10.3f}{(working + waiting) / total:8.1%}"
        )


def run_model(name: str, options: argparse.Namespace, ops: NativeOps, limits: Limits) -> dict[str, Any]:
    """Measures all workloads with one model in turns, and prints its table."""
    files = ModelFiles(fetch(name))
    if too_long := [length for length in options.prompts if length > files.config.context]:
        raise GlassloopError(f"--prompts has {too_long[0]}; the context of {name} is {files.config.context}")
    model, ids = files.transformer(ops), files.tokenizer().encode(english())
    workloads = [decoding(model, ids, streams) for streams in options.streams]
    workloads += [prefilling(model, ids, length) for length in options.prompts]
    sleep(1)  # until the weights are in huge pages
    for workload in workloads:
        set_cost(workload, model, native.library().gl_lanes())
    for _ in range(options.rounds):
        for workload in workloads:
            measure(workload, limits)
    found = [speeds for workload in workloads for _, speeds in workload.rounds]
    middle = Speeds(*(median(speeds[index] for speeds in found) for index in range(len(Speeds._fields))))
    print(
        f"\n{name}: medians of {options.rounds} rounds\n"
        f"int8 peak {middle.products / 1e9:.0f} GMAC/s, {middle.scaled / 1e9:.0f} with scales,"
        f" {middle.with_minimum / 1e9:.0f} with scales and minimums; {middle.read / 1e9:.1f} GB/s read\n"
        f"{'':20}{'ms':>10}{'tokens/s':>10}{'of int8 peak':>14}{'of read':>9}{'of limit':>10}"
    )
    for result in (workload.result() for workload in workloads):
        print(
            f"{result['workload']:20}{result['ms']:10.2f}{result['tokens_per_second']:10,.0f}"
            f"{result['of_int8_peak']:14.0%}{result['of_read_bandwidth']:9.0%}{result['of_limit']:10.0%}"
        )
    if options.profile:
        for workload in workloads:
            print("\n".join(profile_table(workload, ops.threads)))
    return {"limits": middle._asdict(), "workloads": [workload.result() for workload in workloads]}


def main() -> None:
    options = _options()
    ops = NativeOps()
    about = machine.describe(ops.threads)
    print(
        f"{about['processor']}, {ops.threads} threads, {ops.instructions}; load before {about['load_before']}"
    )
    limits = Limits()
    found = {name: run_model(name, options, ops, limits) for name in options.models}
    print(json.dumps({"wall": found, "instructions": ops.instructions, "threads": ops.threads}))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "bench.wall", description="The share of the machine's limits that is reached."
    )
    parser.add_argument("--models", nargs="+", default=list(MODELS), help=" ".join(MODELS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--streams", type=int, nargs="*", default=list(STREAMS))
    parser.add_argument("--prompts", type=int, nargs="*", default=list(PROMPTS))
    parser.add_argument("--profile", action="store_true", help="also print what each kind of op takes")
    return parser.parse_args()


if __name__ == "__main__":
    main()
