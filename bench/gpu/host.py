"""Times what the engine itself does in a step, without a GPU: a clock takes the place of the device.

The loop, the scheduler, the KV tree, the packing of batches, the choices in C, the records and the callers
are the real ones. Kernels are not run: a launch costs the host as long as Triton takes, about, and the clock
says when the device would be done. Every row finds one of a few answers that are made in advance. Time is
that of the engine's thread on its processor, and what it would wait for the device is added without waiting:
so other programs of the machine do not count. Nor do other threads of the program that hold the interpreter.
"""

from __future__ import annotations

import argparse
import cProfile
import itertools
import os
import pstats
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from ctypes import sizeof
from functools import wraps
from typing import Any

import numpy as np
import torch

from bench.gpu import engine, shapes
from glassloop.decode.sampling import Sampling
from glassloop.ops.native import library as lib
from glassloop.ops.torch import interpreted

# Milliseconds of a step by its rows, as `python -m bench.gpu speed` measured them on an H200; the times
# between them lie on straight lines.
_STEPS = ((1, 4.18), (16, 4.59), (64, 6.09), (256, 12.43), (512, 17.66), (2048, 56.0))
_CHOICE = 60e-6  # seconds of one of the kernels that look through 256 rows of logits
_REPLAY = 150e-6  # seconds of the host for a graph
_ANSWERS = 16  # different ones


class Clock:
    """The device: when it will have done all that was launched."""

    def __init__(self) -> None:
        self.done = 0.0
        self.skipped = 0.0  # seconds for which the engine's thread would have waited
        self.busy = 0.0  # seconds that the device computed
        self.speed = 1.0  # by which the times of kernels are multiplied
        self.launch = 15e-6  # seconds of the host for a kernel
        self.each = 0.0  # seconds of the device for a kernel of the forward pass
        self.launches = 0
        self.is_capturing = False

    def now(self) -> float:
        return time.thread_time() + self.skipped

    def add(self, seconds: float) -> None:
        self.busy += seconds * self.speed
        self.done = max(self.done, self.now()) + seconds * self.speed

    def launched(self, kernel: Any, rows: int) -> None:
        """Notes the launch of a kernel, which takes the host as long as Triton would."""
        self.launches += 1
        if not self.is_capturing:
            self.add(self.each if self.each else _CHOICE * rows / 256)
        self.skipped += self.launch

    def wait(self, until: float) -> None:
        self.skipped += max(0.0, until - self.now())


CLOCK = Clock()


class _Event:
    """`torch.cuda.Event` by the clock."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.at = 0.0

    def record(self) -> None:
        self.at = max(CLOCK.done, CLOCK.now())

    def synchronize(self) -> None:
        CLOCK.wait(self.at)

    def elapsed_time(self, other: _Event) -> float:
        return 1e3 * (other.at - self.at)


class _Stream:
    """`torch.cuda.Stream` by the clock. All streams are one: what runs beside a step adds to its time."""

    def record_event(self) -> _Event:
        event = _Event()
        event.record()
        return event

    def wait_event(self, event: _Event) -> None:
        pass

    def wait_stream(self, stream: _Stream) -> None:
        pass


class _Graph:
    """`torch.cuda.CUDAGraph` by the clock."""

    rows = 0

    def replay(self) -> None:
        CLOCK.skipped += _REPLAY
        CLOCK.add(_step_seconds(self.rows))


class _Capture:
    def __init__(self, graph: _Graph, capture_error_mode: str) -> None:
        pass

    def __enter__(self) -> None:
        CLOCK.is_capturing = True

    def __exit__(self, *unused: object) -> None:
        CLOCK.is_capturing = False


def _step_seconds(rows: int) -> float:
    counts, times = zip(*_STEPS, strict=True)
    return (
        float(np.interp(rows, counts, times)) / 1e3
        if rows < counts[-1]
        else times[-1] * rows / counts[-1] / 1e3
    )


class _Pages:
    """Pages without keys and values."""

    def __init__(self, spec: Any, count: int) -> None:
        self.count, self.spec, self.page_bytes = count, spec, _page_bytes(spec)
        self.keys = self.values = torch.empty(
            (count + 1, spec.layers, spec.kv_heads, 32, spec.head_dim), dtype=torch.bfloat16, device="meta"
        )

    def copy(self, source: int, target: int) -> None:
        CLOCK.add(5e-6)


def _page_bytes(spec: Any) -> int:
    return int(2 * 2 * 32 * spec.layers * spec.kv_heads * spec.head_dim)


class _HostOps(shapes.RandomOps):
    """The torch op set with weights that have a shape and no values."""

    def matrix(self, tensor: Any) -> Any:
        from glassloop.ops.torch.matrix import TorchMatrix

        return TorchMatrix.of(torch.empty(tensor.shape, dtype=torch.bfloat16, device="meta"), self.device)

    def vector(self, tensor: Any) -> torch.Tensor:
        return torch.ones(tensor.shape)

    def page_bytes(self, spec: Any) -> int:
        return _page_bytes(spec)

    def cache(self, specs: Sequence[Any], memory: int) -> Any:
        from glassloop.ops.kv_cache import make_pools

        return make_pools(specs, memory, _page_bytes, _Pages)  # type: ignore[arg-type]


def stand_in(width: int) -> None:
    """Replaces the device by the clock: torch's events and graphs, and the kernels of the torch op set."""
    from triton.runtime.interpreter import InterpretedFunction

    from glassloop.engine import loop
    from glassloop.ops.native import chooser as native
    from glassloop.ops.torch import chooser, device_rows, program, step
    from glassloop.ops.torch.device import default_device

    for name, value in {
        "Event": _Event,
        "CUDAGraph": _Graph,
        "graph": _Capture,
        "synchronize": lambda: CLOCK.wait(CLOCK.done),
        "Stream": _Stream,
        "current_stream": _Stream,
        "stream": nullcontext,
    }.items():
        setattr(torch.cuda, name, value)
    torch.Tensor.record_stream = lambda self, stream: None  # type: ignore[method-assign,assignment,misc]
    default_device().has_streams = True
    loop.perf_counter = CLOCK.now  # type: ignore[attr-defined]

    def kernel_at(self: Any, grid: Any) -> Callable[..., None]:
        return lambda *arguments, **settings: CLOCK.launched(self, grid[0])

    InterpretedFunction.__getitem__ = kernel_at

    numbers_made = step.Numbers.__init__

    def numbers(self: Any, device: Any) -> None:
        numbers_made(self, device)
        self._copied = _Event()

    step.Numbers.__init__ = numbers  # type: ignore[method-assign]

    launcher_made = program.Launcher.__init__

    def launcher(self: Any, device: Any) -> None:
        launcher_made(self, device)
        self._products.processors, self._products.shared_memory = 132, 232448

    program.Launcher.__init__ = launcher  # type: ignore[method-assign]

    compute, replay = program.CudaProgram._compute, program.CudaProgram._replay

    def computed(self: Any, about: Any) -> None:
        CLOCK.each = _step_seconds(about.rows) / (9 * len(self._launches) / 8)
        compute(self, about)
        CLOCK.each = 0.0

    def replayed(self: Any, key: Any, pages: Any) -> None:
        if key in self._graphs:
            self._graphs[key].rows = key[0]
        replay(self, key, pages)

    program.CudaProgram._compute = computed  # type: ignore[method-assign]
    program.CudaProgram._replay = replayed  # type: ignore[method-assign]

    def keep(self: Any) -> None:
        if not self._is_kept and self._host is None:
            self._values, self._is_kept = self.values.view(self.shape), True
            CLOCK.launched(None, len(self))
            self._kept = _Event()
            self._kept.record()

    device_rows.DeviceRows.keep = keep  # type: ignore[method-assign]

    pieces = [_piece(width, seed) for seed in range(_ANSWERS)]

    def array(self: Any, name: str, size: int, kind: torch.dtype, on_host: bool = False) -> torch.Tensor:
        kept = self._memory.get(name)
        if kept is None or len(kept) < size:
            self._memory[name] = kept = torch.zeros(2 * size, dtype=kind)
            if name == "found":
                every = np.concatenate(
                    [pieces[number % _ANSWERS] for number in range(2 * size * 8 // len(pieces[0]))]
                )
                kept.numpy().view(np.uint8)[: len(every)] = every
        return kept[:size]

    chooser.DeviceChooser._array = array  # type: ignore[method-assign]

    finish = chooser.DeviceChoices.finish

    def finished(self: Any, record: Any) -> Any:
        made, tokens = finish(self, record)
        return made, np.frombuffer(made, np.int64).reshape(len(tokens), -1)[:, 0].tolist()

    chooser.DeviceChoices.finish = finished  # type: ignore[method-assign]
    assert native.found_bytes(width) == len(pieces[0])


def _piece(width: int, seed: int) -> Any:
    """Returns what a device finds in a row in which one token is far likelier than 63 others."""
    rng = np.random.default_rng(seed)
    size = int(lib.library().gl_found_bytes(width))
    piece = np.zeros(size, np.uint8)
    ids = rng.choice(width, 64, replace=False).astype(np.int32)
    logits = np.sort(rng.normal(0, 1, 64)).astype(np.float32)
    logits[-1] = 60.0
    header = lib.Found(64, 0, -1, 0, 60.0, float(logits[0]), -100.0, 0.0, 0)
    piece[: sizeof(header)] = np.frombuffer(bytes(header), np.uint8)
    at = sizeof(header)
    sums_bytes = size - at - 8 * (lib.MOST_HIGH + lib.MOST_OTHERS)
    piece[at : at + sums_bytes].view(np.float64)[0::2] = 1.0
    at += sums_bytes
    for part in (ids, logits):
        piece[at : at + 256] = part.view(np.uint8)
        at += 4 * (lib.MOST_HIGH + lib.MOST_OTHERS)
    return piece


# ── measuring ──────────────────────────────────────────────────────────────────────────────────────────────


class Parts:
    """The time that parts of a step take, each without the parts within it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._stack: list[list[Any]] = []
        self.steps: list[tuple[float, int, float]] = []  # seconds of the thread, rows, launches

    def time(self, owner: Any, name: str, part: str) -> None:
        """Counts the time of a method as that of a part."""
        inner = getattr(owner, name)

        @wraps(inner)
        def timed(*arguments: Any, **settings: Any) -> Any:
            began = CLOCK.now()
            self._stack.append([part, 0.0])
            try:
                return inner(*arguments, **settings)
            finally:
                _, within = self._stack.pop()
                took = CLOCK.now() - began
                self.seconds[part] = self.seconds.get(part, 0.0) + took - within
                if self._stack:
                    self._stack[-1][1] += took

        setattr(owner, name, timed)


PARTS = Parts()


def time_parts() -> None:
    from glassloop.decode import decoder
    from glassloop.engine import ahead, loop, scheduler, step_verbs
    from glassloop.engine.request import Request
    from glassloop.ops.torch import chooser, program, step

    for owner, name, part in (
        (loop.Loop, "step", "other"),
        (scheduler.Scheduler, "plan", "plan"),
        (scheduler.Scheduler, "plan_ahead", "plan"),
        (ahead.Ahead, "_plan_after", "plan"),
        (ahead.Ahead, "_launch", "batch"),
        (step.Numbers, "upload", "upload"),
        (program.CudaProgram, "_results_of", "launch"),
        (chooser.DeviceChooser, "start", "begin choice"),
        (ahead.Flight, "begin_choices", "begin choice"),
        (decoder.StartedChoices, "finish", "choose"),
        (_Event, "synchronize", "waiting"),
        (step_verbs.StepVerbs, "commit", "commit"),
        (ahead.Ahead, "_settle", "settle"),
        (Request, "tell", "deliver"),
    ):
        PARTS.time(owner, name, part)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shape", default="8b", choices=shapes.SHAPES)
    parser.add_argument("--streams", default="1,64,256")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--speed", default="0,1", help="factors of the device's times")
    parser.add_argument("--serving", type=int, default=0, help="requests of 100 to 1,024 tokens at once")
    parser.add_argument("--profile", action="store_true", help="show the functions that take longest")
    parser.add_argument("--parts", action="store_true", help="show the time of each part of a step")


def main(given: argparse.Namespace) -> None:
    if not interpreted():
        os.environ["TRITON_INTERPRET"] = "1"
        os.execv(sys.executable, [sys.executable, "-m", "bench.gpu", *sys.argv[1:]])
    torch.set_num_threads(1)  # copies of the stand-in are small
    shape = shapes.SHAPES[given.shape]
    stand_in(shape[-1])
    shapes.RandomOps = _HostOps  # type: ignore[misc, assignment]
    if given.parts:
        time_parts()
    model, rng = shapes.random_model(given.shape), np.random.default_rng(1)
    streams = [int(each) for each in given.streams.split(",") if each]
    llm = engine.RandomLLM(model, 40 << 30, max([256, *streams]))
    kinds = {"greedy": Sampling(temperature=0), "drawing": Sampling(seed=1)}
    for count, (name, sampling), speed in itertools.product(
        streams, kinds.items(), map(float, given.speed.split(","))
    ):
        CLOCK.speed = speed
        _measure(llm, rng, count, given, name, sampling)
    if given.serving:
        CLOCK.speed = 1.0
        for _ in range(given.rounds):
            _serve(llm, rng, given.serving)
    llm.close()


def _measure(
    llm: Any, rng: np.random.Generator, count: int, given: argparse.Namespace, name: str, sampling: Sampling
) -> None:
    loop = llm.engine.loop
    step_of_loop, plain = loop.step, list[float]()
    profile = cProfile.Profile() if given.profile else None

    def step() -> None:
        flight = loop.ahead.flight
        began, rows = CLOCK.now(), loop.counters.rows
        if profile is not None and flight is not None:
            profile.enable()
        step_of_loop()
        if profile is not None:
            profile.disable()
        if loop.counters.rows - rows == count and flight is not None and loop.ahead.flight is not None:
            plain.append(CLOCK.now() - began)

    loop.step = step
    PARTS.seconds.clear()
    steps = loop.counters.steps
    rounds = [
        engine._decode(llm, rng, count, given.context, given.tokens, sampling) for _ in range(given.rounds)
    ]
    del loop.step
    _, mean, device = (statistics.median(each) for each in zip(*rounds, strict=True))
    print(
        f"{count:4} streams, {name}, device x{CLOCK.speed:g}: a step {mean * 1e3:.2f} ms (median of full ones"
        f" {statistics.median(plain) * 1e3:.2f}), outside the device {1 - device / mean:.1%}",
        flush=True,
    )
    if given.parts:
        steps = loop.counters.steps - steps
        parts = sorted(PARTS.seconds.items(), key=lambda each: -each[1])
        print("      µs a step:", ", ".join(f"{part} {1e6 * took / steps:.0f}" for part, took in parts))
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(45)


def _serve(llm: Any, rng: np.random.Generator, count: int) -> None:
    """Prints how long requests that come at once take the engine's thread, and for how much of that the
    device computes."""
    counters = llm.engine.loop.counters
    steps, seconds, busy = counters.steps, counters.step_seconds, CLOCK.busy
    engine._serve(llm, rng, count)
    steps, seconds, busy = counters.steps - steps, counters.step_seconds - seconds, CLOCK.busy - busy
    print(
        f"      by the clock {seconds:.2f} s in {steps} steps; the device computes for {busy:.2f} s",
        flush=True,
    )
