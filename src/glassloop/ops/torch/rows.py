"""Rows of logits that stay on the device, and choosing tokens from them.

Kernels find in each row what a choice needs (kernels/rows.py), some kilobytes instead of the whole row; these
are downloaded together, and C makes the choices and their records from them (ops/native/choosing.c). A choice
that needs more, as with penalties or a grammar, has its row downloaded and is made as for the native op set.
All ways give the same record, to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
import triton
from numpy.typing import NDArray

from glassloop.errors import GlassloopError
from glassloop.ops.native import chooser as native
from glassloop.ops.native import rows as native_rows
from glassloop.ops.native.library import MOST_HIGH, MOST_OTHERS
from glassloop.ops.quant import Float32
from glassloop.ops.rows import Chooser, Line
from glassloop.ops.torch.device import DEVICE, INTERPRETED
from glassloop.ops.torch.kernels import rows as kernels

# The constants of the kernels: groups of a row, and how many one program looks through, some steps at a time;
# parts that one program sums; logits that one program looks through; tokens that are listed.
SETTINGS = {
    "GROUPS": 1024,
    "SOME": 128,
    "STEPS": 16,
    "PARTS": 4,
    "BLOCK": 2048,
    "HIGH": MOST_HIGH,
    "OTHER": MOST_OTHERS,
}
KERNELS = (
    kernels.maxima_kernel,
    kernels.bounds_kernel,
    kernels.find_kernel,
    kernels.sums_kernel,
    kernels.winner_kernel,
    kernels.rank_kernel,
    kernels.predict_kernel,
)
WITH_LUCK = (kernels.winner_kernel, kernels.rank_kernel)
LAUNCH = {kernels.sums_kernel: {"num_warps": 1}}


class Timer:
    """Measures what the device computes between `start` and the last `stop`."""

    def __init__(self) -> None:
        self._start, self._stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def start(self) -> None:
        self._start.record()

    def stop(self) -> None:
        self._stop.record()

    def seconds(self) -> float:
        self._stop.synchronize()
        return float(self._start.elapsed_time(self._stop)) / 1e3


class DeviceRows:
    """Rows that a program has computed, on the device: [rows, width]. An index downloads rows. They are gone
    when the program runs again, unless they are kept."""

    def __init__(self, values: torch.Tensor, age: Callable[[], int], timer: Timer | None = None) -> None:
        """`age` returns how often the program has run since then. The timer is that of every second run."""
        self._values = values
        self._age = age
        self._timer = timer
        self._host: Float32 | None = None
        self._kept: torch.cuda.Event | None = None  # when the copy is made
        self._is_kept = False
        self.shape = tuple(values.shape)

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, index: int | slice) -> Float32:
        found: Float32 = (
            self._download(lambda values: values[index]) if self._host is None else self._host[index]
        )
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Float32:
        return self.host()

    @property
    def values(self) -> torch.Tensor:
        if not self._is_kept and self._age():
            raise GlassloopError("the rows have been overwritten: the program ran again")
        return self._values

    def keep(self) -> None:
        """Copies the rows, so that they stay when the program runs again."""
        if not self._is_kept and self._host is None:
            self._values, self._is_kept = self.values.clone(), True
            if not INTERPRETED:
                self._kept = torch.cuda.Event()
                self._kept.record()

    def stop_timer(self) -> None:
        """Includes what was launched since in the time that the rows took."""
        if self._timer is not None and not self._age():
            self._timer.stop()

    def seconds(self) -> float | None:
        """Returns how long the device took to compute the rows, once it has done so."""
        return self._timer.seconds() if self._timer is not None and self._age() < 2 else None

    def host(self) -> Float32:
        """Returns all rows, downloaded once."""
        if self._host is None:
            self._host = self._download(lambda values: values)
        return self._host

    def rows(self, which: Sequence[int]) -> Float32:
        """Returns some rows."""
        if self._host is not None or len(which) == len(self):
            return self.host()[list(which)]
        return self._download(lambda values: values[torch.tensor(which, device=DEVICE)])

    def _download(self, part: Callable[[torch.Tensor], torch.Tensor]) -> Float32:
        """Returns a part of the rows. Those that are kept do not wait for what was launched after them."""
        found: Float32
        if self._kept is None:
            found = download(part(self.values)).numpy()
        else:
            with torch.cuda.stream(_aside()):
                _aside().wait_event(self._kept)
                found = download(part(self.values)).numpy()
        return found


@cache
def _aside() -> torch.cuda.Stream:
    """Returns a stream on which a download does not wait for the programs."""
    return torch.cuda.Stream()


def download(values: torch.Tensor) -> torch.Tensor:
    """Returns an array in the memory of the host, in float32 if it is one of numbers in half precision."""
    if INTERPRETED:
        return values.clone()
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    host.copy_(values, non_blocking=True)
    torch.cuda.current_stream().synchronize()
    return host.float() if host.dtype is torch.bfloat16 else host


class StartedChoices:
    """Choices from rows on the device that it has begun to make; implements `ops/rows.py:Started`."""

    def __init__(
        self,
        logits: DeviceRows,
        predicted: torch.Tensor,
        found: NDArray[np.uint8],
        tokens: NDArray[np.int32],
    ) -> None:
        """`found` and `tokens` are the memory of the host that the device writes to."""
        self.predicted = predicted  # on the device
        self._logits, self._found, self._tokens = logits, found, tokens
        self._done: torch.cuda.Event | None = None
        if not INTERPRETED:
            self._done = torch.cuda.Event()
            self._done.record()

    def finish(self, lines: Sequence[Line], record: np.dtype[np.void]) -> tuple[bytearray, list[int]]:
        if self._done is not None:
            self._done.synchronize()
        logits, size = self._logits, record.itemsize
        made, missing = native.choose_found(self._found, logits.shape[1], lines, record)
        if missing:
            rows = logits.rows([lines[number][1] for number in missing])
            again = [(lines[number][0], place, lines[number][2]) for place, number in enumerate(missing)]
            records = native.choose(rows, again, record)
            for place, number in enumerate(missing):
                made[number * size : (number + 1) * size] = records[place * size : (place + 1) * size]
        return made, self._tokens.tolist()


class DeviceChooser:
    """Chooses tokens from rows on the device; implements `ops/rows.py:Chooser`. Rows on the host are left to
    the native chooser. Two choices at a time may be under way."""

    layout = native.layout
    survivors = staticmethod(native.survivors)
    race = staticmethod(native.race)
    luck_of = staticmethod(native.luck_of)

    def __init__(self) -> None:
        self._memory: dict[str, torch.Tensor] = {}
        self._turn = 0

    def choose(self, logits: Any, lines: Sequence[Line], record: np.dtype[np.void]) -> bytes | bytearray:
        if not isinstance(logits, DeviceRows):
            return native.choose(logits, lines, record)
        return self.start(logits, lines).finish(lines, record)[0]

    def start(self, logits: DeviceRows, lines: Sequence[Line]) -> StartedChoices:
        """Looks through rows of logits on the device for what each line needs, and predicts its token."""
        with torch.inference_mode():
            return self._start(logits, lines)

    def _start(self, rows: DeviceRows, lines: Sequence[Line]) -> StartedChoices:
        logits, count, (_, width) = rows.values, len(lines), rows.shape
        size = native.found_bytes(width)
        # The memory of the host is that of every second call: the device may still read or write the other.
        self._turn = 1 - self._turn
        packed = _packed(lines, len(rows))
        wanted = self._array("lines", packed.size, torch.int64)
        host = self._array(f"host lines {self._turn}", packed.size, torch.int64, on_host=True)
        host.numpy()[:] = packed.ravel()
        wanted.copy_(host, non_blocking=True)
        found = self._array("found", count * size // 8 + (count + 1) // 2, torch.float64)
        predicted = found.view(torch.int32)[count * size // 4 :][:count]
        arrays = {
            "logits": logits,
            "lines": wanted,
            "maxima": self._array("maxima", count * SETTINGS["GROUPS"], torch.float32),
            "places": self._array("places", count * SETTINGS["GROUPS"], torch.int32),
            "ints": found.view(torch.int32),
            "floats": found.view(torch.float32),
            "doubles": found,
            "predicted": predicted,
            "stride": logits.stride(0),
            "width": width,
            "parts": (parts := triton.cdiv(width, kernels.PART.value)),
            "found_bytes": size,
            "MOST_PARTS": triton.next_power_of_2(parts),
        }
        blocks = triton.cdiv(width, SETTINGS["BLOCK"])
        programs = {
            kernels.maxima_kernel: SETTINGS["GROUPS"] // SETTINGS["SOME"],
            kernels.sums_kernel: triton.cdiv(parts, SETTINGS["PARTS"]),
            kernels.find_kernel: blocks,
            kernels.rank_kernel: blocks,
        }
        with_luck = any(line[0].branch_key is not None for line in lines)
        for kernel in KERNELS:
            if with_luck or kernel not in WITH_LUCK:
                _launch(kernel, (count, programs.get(kernel, 1)), arrays)
        made = self._array(f"host found {self._turn}", len(found), torch.float64, on_host=True)
        made.copy_(found, non_blocking=True)
        rows.stop_timer()
        view = made.numpy().view(np.uint8)
        tokens = view[count * size :].view(np.int32)[:count]
        return StartedChoices(rows, predicted, view[: count * size].reshape(count, size), tokens)

    def _array(self, name: str, size: int, kind: torch.dtype, on_host: bool = False) -> torch.Tensor:
        """Returns an array that is kept for the next call."""
        kept = self._memory.get(name)
        if kept is None or len(kept) < size:
            pinned = on_host and not INTERPRETED
            device = torch.device("cpu") if on_host else DEVICE
            self._memory[name] = kept = torch.empty(2 * size, dtype=kind, device=device, pin_memory=pinned)
        return kept[:size]


_LINE_BYTES = 8 * kernels.LINE.value - 16


def _packed(lines: Sequence[Line], rows: int) -> NDArray[np.int64]:
    """Returns lines as the kernels read them: the row, the position, and the request as C reads it."""
    places = [row for _, row, _ in lines]
    if min(places) < 0 or max(places) >= rows:
        raise IndexError(f"rows {min(places)} to {max(places)} of {rows} are asked for")
    packed = np.empty((len(lines), kernels.LINE.value), np.int64)
    packed[:, kernels.ROW.value] = places
    packed[:, kernels.POSITION.value] = [position for _, _, position in lines]
    requests = [
        native.prepared(request).memory[:_LINE_BYTES].ljust(_LINE_BYTES, b"\0") for request, _, _ in lines
    ]
    packed[:, kernels.HEAD.value :] = np.frombuffer(b"".join(requests), np.int64).reshape(len(lines), -1)
    return packed


def _launch(kernel: Any, grid: tuple[int, int], arguments: dict[str, Any]) -> None:
    """Launches a kernel with those of the arguments that it has, without fusing products and sums."""
    given = {name: value for name, value in (arguments | SETTINGS).items() if name in kernel.arg_names}
    kernel[grid](**given, enable_fp_fusion=False, **LAUNCH.get(kernel, {}))


class DeviceRowOps:
    """Functions over rows of logits; implements `ops/rows.py:RowOps`."""

    summarize = staticmethod(native_rows.summarize)
    highest = staticmethod(native_rows.highest)
    log_sum_exp = staticmethod(native_rows.log_sum_exp)
    rank_of = staticmethod(native_rows.rank_of)

    def __init__(self) -> None:
        self.chooser: Chooser = (chooser := DeviceChooser())
        self.start = chooser.start

    def host(self, row: Any) -> Float32:
        return row.host() if isinstance(row, DeviceRows) else row
