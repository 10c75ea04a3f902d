"""Rows of logits that stay on the device, and choosing tokens from them.

Kernels find in each row what a choice needs (kernels/rows.py), some kilobytes instead of the whole row; these
are downloaded together, and C makes the choices and their records from them (ops/native/choosing.c). A choice
that needs more, as with penalties or a grammar, has its row downloaded and is made as for the native op set.
All ways give the same record, to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import triton
from numpy.typing import NDArray

from glassloop.errors import GlassloopError
from glassloop.ops.exact import GOLDEN, mix
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
)
LAUNCH = {kernels.sums_kernel: {"num_warps": 1}}


class Timer:
    """Measures what the device computes between `start` and `stop`."""

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
    when the program runs again."""

    def __init__(
        self, values: torch.Tensor, is_current: Callable[[], bool], timer: Timer | None = None
    ) -> None:
        self._values = values
        self._is_current = is_current
        self._timer = timer
        self._host: Float32 | None = None
        self.shape = tuple(values.shape)

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, index: int | slice) -> Float32:
        found: Float32 = download(self.values[index]).numpy() if self._host is None else self._host[index]
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Float32:
        return self.host()

    @property
    def values(self) -> torch.Tensor:
        if not self._is_current():
            raise GlassloopError("the rows have been overwritten: the program ran again")
        return self._values

    def seconds(self) -> float | None:
        """Returns how long the device took to compute the rows, once it has done so."""
        return self._timer.seconds() if self._timer is not None and self._is_current() else None

    def host(self) -> Float32:
        """Returns all rows, downloaded once."""
        if self._host is None:
            self._host = download(self.values).numpy()
        return self._host

    def rows(self, which: Sequence[int]) -> Float32:
        """Returns some rows."""
        if self._host is not None or len(which) == len(self):
            return self.host()[list(which)]
        found: Float32 = download(self.values[torch.tensor(which, device=DEVICE)]).numpy()
        return found


def download(values: torch.Tensor) -> torch.Tensor:
    """Returns an array in the memory of the host, in float32 if it is one of numbers in half precision."""
    if INTERPRETED:
        return values.clone()
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    host.copy_(values, non_blocking=True)
    torch.cuda.current_stream().synchronize()
    return host.float() if host.dtype is torch.bfloat16 else host


class DeviceChooser:
    """Chooses tokens from rows on the device; implements `ops/rows.py:Chooser`. Rows on the host are left to
    the native chooser."""

    layout = native.layout
    survivors = staticmethod(native.survivors)
    race = staticmethod(native.race)
    luck_of = staticmethod(native.luck_of)

    def __init__(self) -> None:
        self._memory: dict[str, torch.Tensor] = {}

    def choose(self, logits: Any, lines: Sequence[Line], record: np.dtype[np.void]) -> bytes | bytearray:
        if not isinstance(logits, DeviceRows):
            return native.choose(logits, lines, record)
        width, size = logits.shape[1], record.itemsize
        found = self._find(logits.values, lines)
        made, missing = native.choose_found(found, width, lines, record)
        if missing:
            rows = logits.rows([lines[number][1] for number in missing])
            again = [(lines[number][0], place, lines[number][2]) for place, number in enumerate(missing)]
            records = native.choose(rows, again, record)
            for place, number in enumerate(missing):
                made[number * size : (number + 1) * size] = records[place * size : (place + 1) * size]
        return made

    def _find(self, logits: torch.Tensor, lines: Sequence[Line]) -> NDArray[np.uint8]:
        """Returns what the kernels find for each line: [lines, bytes]."""
        count, width = len(lines), logits.shape[1]
        size = native.found_bytes(width)
        packed = np.array([_packed(line, len(logits)) for line in lines], np.uint64).view(np.int64)
        wanted = self._array("lines", packed.size, torch.int64)
        host = self._array("host lines", packed.size, torch.int64, on_host=True)
        host.numpy()[:] = packed.ravel()
        wanted.copy_(host, non_blocking=True)
        found = self._array("found", count * size // 8, torch.float64)
        arrays = {
            "logits": logits,
            "lines": wanted,
            "maxima": self._array("maxima", count * SETTINGS["GROUPS"], torch.float32),
            "places": self._array("places", count * SETTINGS["GROUPS"], torch.int32),
            "ints": found.view(torch.int32),
            "floats": found.view(torch.float32),
            "doubles": found,
            "stride": logits.stride(0),
            "width": width,
            "parts": (parts := triton.cdiv(width, kernels.PART.value)),
            "found_bytes": size,
        }
        blocks = triton.cdiv(width, SETTINGS["BLOCK"])
        programs = {
            kernels.maxima_kernel: SETTINGS["GROUPS"] // SETTINGS["SOME"],
            kernels.sums_kernel: triton.cdiv(parts, SETTINGS["PARTS"]),
            kernels.find_kernel: blocks,
            kernels.rank_kernel: blocks,
        }
        with_luck = any(line[0].branch_key is not None for line in lines)
        for kernel in KERNELS if with_luck else KERNELS[:4]:
            _launch(kernel, (count, programs.get(kernel, 1)), arrays)
        made = self._array("host found", len(found), torch.float64, on_host=True)
        made.copy_(found, non_blocking=True)
        if not INTERPRETED:
            torch.cuda.current_stream().synchronize()
        view: NDArray[np.uint8] = made.numpy().view(np.uint8).reshape(count, size)
        return view

    def _array(self, name: str, size: int, kind: torch.dtype, on_host: bool = False) -> torch.Tensor:
        """Returns an array that is kept for the next call."""
        kept = self._memory.get(name)
        if kept is None or len(kept) < size:
            pinned = on_host and not INTERPRETED
            device = torch.device("cpu") if on_host else DEVICE
            self._memory[name] = kept = torch.empty(2 * size, dtype=kind, device=device, pin_memory=pinned)
        return kept[:size]


def _packed(line: Line, rows: int) -> list[int]:
    """Returns the numbers of a line that the kernels read."""
    request, row, position = line
    if not 0 <= row < rows:
        raise IndexError(f"row {row} of {rows} is asked for")
    key = 0 if request.branch_key is None else mix((request.branch_key + GOLDEN + position) % (1 << 64))
    scale = int(np.float64(request.scale).view(np.uint64))
    return [row, request.head, request.branch_key is not None, key, scale]


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
        self.chooser: Chooser = DeviceChooser()

    def host(self, row: Any) -> Float32:
        return row.host() if isinstance(row, DeviceRows) else row
