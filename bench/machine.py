"""The name of the machine, and its read bandwidth. Decoding one token reads every weight once, so the
bandwidth is an upper limit for the speed of a single stream.
"""

from __future__ import annotations

import platform
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter

import numpy as np

_BYTES = 1 << 30  # far more than a core's own caches hold


class ReadSpeed:
    """Measures the read bandwidth with a large array on all threads. It holds the array while it exists."""

    def __init__(self, threads: int, size: int = _BYTES) -> None:
        self._parts = np.split(np.ones(size // 4 // threads * threads, np.float32), threads)
        self._pool = ThreadPoolExecutor(threads)

    def measure(self, times: int = 3) -> float:
        """Returns bytes per second, the best of several: noise can only make it slower."""
        return max(self._once() for _ in range(times))

    def _once(self) -> float:
        began = perf_counter()
        list(self._pool.map(np.max, self._parts))
        return sum(part.nbytes for part in self._parts) / (perf_counter() - began)


def describe(threads: int) -> dict[str, str | int | float]:
    load = _text("/proc/loadavg").split()
    return {
        "processor": _field("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "threads": threads,
        "memory_gb": round(int((_field("/proc/meminfo", "MemTotal") or "0").split()[0]) / 1e6),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load_before": float(load[0]) if load else 0.0,
    }


def _field(file: str, name: str) -> str:
    for line in _text(file).splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return " ".join(value.split())
    return ""


def _text(file: str) -> str:
    try:
        return Path(file).read_text()
    except OSError:
        return ""
