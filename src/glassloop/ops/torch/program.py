"""Runs a recorded forward pass on the device.

Steps in which every branch has one row run as CUDA graphs, captured for a few numbers of rows; such a batch
is filled up with rows whose results are not used, which write to a page of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any
from weakref import ref

import torch

from glassloop.ops.batch import Batch
from glassloop.ops.quant import Float32
from glassloop.ops.torch.device import Device
from glassloop.ops.torch.device_rows import DeviceRows, Timer
from glassloop.ops.torch.launcher import Launcher, head_block
from glassloop.ops.torch.packed import PackedMatrix
from glassloop.ops.torch.pages import TorchPages
from glassloop.ops.torch.recorder import TorchRecorder, TorchValue
from glassloop.ops.torch.row_tiles import Heads
from glassloop.ops.torch.step import DeviceStep, Numbers, check_batch
from glassloop.ops.torch.weights import prepare_weights

SIZES = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256)  # rows of the captured graphs


class CudaProgram:
    """A recorded forward pass with the memory that it runs in. It runs one batch at a time."""

    def __init__(self, recorder: TorchRecorder, results: list[TorchValue], device: Device) -> None:
        self._device = device
        calls = recorder.calls
        homes, self._needs = recorder.plan(results)
        self._results = [homes[result.id] for result in results]
        self._settings = prepare_weights(calls, device)
        self.is_packed = any(isinstance(each.get("weight"), PackedMatrix) for each in self._settings)
        self._launcher = Launcher(device)
        # Of each call: the method that launches it, whether it computes the wanted rows only, its buffers.
        self._launches = [
            (
                self._launcher.method(call.kind),
                call.out.wanted,
                [homes[value.id] for value in (call.out, *call.inputs)],
            )
            for call in calls
        ]
        attends = [call.settings for call in calls if call.kind == "attend"]
        self._head_counts = Heads(
            max([each["heads"] // each["kv_heads"] for each in attends], default=1),
            max([each["kv_heads"] for each in attends], default=1),
            max([head_block(each["head_dim"]) for each in attends], default=0),
        )
        # The sizes of the embeddings, by the numbers of a batch that look them up.
        self._tables = {
            call.settings["ids"]: call.settings["table"].out for call in calls if call.kind == "embed"
        }
        self._numbers = Numbers(device)
        self._buffers: list[torch.Tensor] = []
        self._capacity = {True: 0, False: 0}  # rows, by `wanted`
        # By the number of rows and the units of their attention. A graph has the addresses of all that it
        # reads and writes, so graphs are dropped when anything moves.
        self._graphs: dict[tuple[int, ...], torch.cuda.CUDAGraph] = {}
        self._captured_with: tuple[int, Sequence[TorchPages]] = (0, ())
        self._runs = 0
        self._timers = (Timer(), Timer()) if device.has_streams else (None, None)  # of every second run
        # The result of the last run, if it is used.
        self._last: Callable[[], DeviceRows | None] = lambda: None
        self._one_run = Lock()

    def __call__(self, batch: Batch, pages: Sequence[Any]) -> list[Float32]:
        return [rows.host() for rows in self._results_of(batch, pages)]

    def only(self, batch: Batch, pages: Sequence[Any]) -> DeviceRows:
        """Starts a program that has one result. Returns that before it is computed: reading it waits."""
        return self._results_of(batch, pages)[0]

    def _results_of(self, batch: Batch, pages: Sequence[TorchPages]) -> list[DeviceRows]:
        """Starts the program and returns its results, which may not be computed yet."""
        device, step = self._device, f"a step of {len(batch.tokens)} rows"
        with self._one_run, device.current(), torch.inference_mode(), device.memory_errors(step):
            if (last := self._last()) is not None:
                last.keep()
            self._runs += 1
            wanted, run = len(batch.wanted), self._runs
            timer = self._timers[run % 2]
            if timer is not None:
                timer.start()
            self._run(batch, pages)
            if timer is not None:
                timer.stop()
            results = [
                DeviceRows(self._buffers[home][:wanted], device, lambda: self._runs - run, timer)
                for home in self._results
            ]
            self._last = ref(results[0]) if len(results) == 1 else lambda: None
            return results

    def _run(self, batch: Batch, pages: Sequence[TorchPages]) -> None:
        """Uploads a batch and launches its kernels, by a graph if every branch has one row."""
        check_batch(batch, len(pages), self._tables)
        rows, wanted = len(batch.tokens), len(batch.wanted)
        one_each = len(batch.spans) == rows == wanted and rows <= SIZES[-1]
        captured = one_each and self._device.has_streams and not batch.reach
        size = next(each for each in SIZES if each >= rows) if captured else rows
        units = self._numbers.upload(batch, pages, size, self._head_counts)
        if batch.after is not None:
            self._launcher.fill_tokens(self._numbers.tokens, batch.after.predicted, rows)
        self._make_room(size, size if captured else wanted, max(batch.positions) + 1, pages)
        if captured:
            self._replay((size, *units), pages)
        else:
            self._compute(self._numbers.step(pages))

    def _replay(self, key: tuple[int, ...], pages: Sequence[TorchPages]) -> None:
        """Replays the graph with this key, which is captured first if it is not there."""
        if key not in self._graphs:
            step = self._numbers.step(pages)
            self._compute(step)  # compiles kernels and makes room, which a capture cannot
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            # Other threads may use the device meanwhile.
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._compute(step)
            self._graphs[key] = graph
        self._graphs[key].replay()

    def _make_room(self, rows: int, wanted: int, positions: int, pages: Sequence[TorchPages]) -> None:
        """Makes the buffers and the tables of angles large enough."""
        captured_with = self._numbers.moves, list(pages)
        if captured_with != self._captured_with:
            self._captured_with = captured_with
            self._graphs.clear()
        if self._launcher.make_angles(positions):
            self._graphs.clear()
        # At first for the largest graph; but a lens has many results, each with a buffer as wide as the
        # vocabulary, and mostly of one row.
        least = 1 if not self._device.has_streams or len(self._results) > 1 else SIZES[-1]
        capacity = dict(self._capacity)
        for number, is_wanted in ((rows, False), (wanted, True)):
            if number > capacity[is_wanted]:
                capacity[is_wanted] = max(number, least, 2 * capacity[is_wanted])
        if capacity != self._capacity:
            self._graphs.clear()
            # The old buffers are freed first. If there is no room for new ones, the next step tries again.
            self._buffers, self._capacity = [], {True: 0, False: 0}
            device, kinds = self._device.torch, {True: self._device.half, False: torch.float32}
            self._buffers = [
                torch.empty((capacity[need.wanted], need.width), dtype=kinds[need.half], device=device)
                for need in self._needs
            ]
            self._capacity = capacity

    def _compute(self, step: DeviceStep) -> None:
        """Launches the kernels of all calls."""
        if self._launcher.begin(step, self._head_counts):
            self._graphs.clear()
        buffers = self._buffers
        try:
            for (launch, wanted, homes), settings in zip(self._launches, self._settings, strict=True):
                rows = step.wanted if wanted else step.rows
                if rows:
                    launch(step, rows, *[buffers[home] for home in homes], **settings)
        finally:
            if self._launcher.end():
                self._graphs.clear()
