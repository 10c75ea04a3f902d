"""Rows that a program has computed and that stay on the device, and how long they took."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from glassloop.errors import GlassloopError
from glassloop.ops.quant import Float32
from glassloop.ops.torch.device import Device


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

    def __init__(
        self, values: torch.Tensor, device: Device, age: Callable[[], int], timer: Timer | None = None
    ) -> None:
        """`age` returns how often the program has run since. Two runs in a row have different timers."""
        self._values = values
        self._device = device
        self._age = age
        self._timer = timer
        self._host: Float32 | None = None
        self._kept: torch.cuda.Event | None = None  # when the copy is made
        self._is_kept = False
        self.shape = tuple(values.shape)

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, index: int | slice) -> Float32:
        rows: Float32 = (
            self._download(lambda values: values[index]) if self._host is None else self._host[index]
        )
        return rows

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
            if self._device.has_streams:
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
        return self._download(lambda values: values[torch.tensor(which, device=self._device.torch)])

    def _download(self, part: Callable[[torch.Tensor], torch.Tensor]) -> Float32:
        """Returns a part of the rows. Those that are kept do not wait for what was launched after them."""
        downloaded: Float32
        if self._kept is None:
            downloaded = download(part(self.values), self._device).numpy()
        else:
            aside = self._device.aside
            with torch.cuda.stream(aside):
                aside.wait_event(self._kept)
                downloaded = download(part(self.values), self._device).numpy()
        return downloaded


def download(values: torch.Tensor, device: Device) -> torch.Tensor:
    """Returns an array in the memory of the host, in float32 if it is one of numbers in half precision."""
    if not device.has_streams:
        return values.clone()
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    host.copy_(values, non_blocking=True)
    torch.cuda.current_stream(device.torch).synchronize()
    return host.float() if host.dtype is torch.bfloat16 else host
