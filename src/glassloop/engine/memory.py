"""The size of the memory for keys and values: its default, and numbers of bytes as text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from glassloop.errors import GlassloopError
from glassloop.ops.batch import pages_for

if TYPE_CHECKING:
    from glassloop.model.transformer import Transformer

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_bytes(text: str | int, name: str = "kv_memory") -> int:
    """Reads a number of bytes: 2000000, "512MB", "2 GiB", "1.5g"."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)I?B?\s*", str(text).upper())
    if found is None or isinstance(text, bool):
        raise GlassloopError(f"{name} is {text!r}; a number of bytes such as 512MB or 2GB is expected")
    return int(float(found[1]) * _UNITS[found[2]])


def format_bytes(count: int) -> str:
    for unit in ("B", "KB", "MB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if count >= 10 or unit == "B" else f"{count:.1f} {unit}"
        count = count / 1024  # type: ignore[assignment]
    return f"{count:.1f} GB"


def free_memory() -> int:
    """Returns how many bytes this process could still take, within the limits of its control group."""
    free = _number(Path("/proc/meminfo"), r"MemAvailable:\s+(\d+) kB", 1 << 22) * 1024
    group = Path("/sys/fs/cgroup")
    limit = _number(group / "memory.max", r"(\d+)", 0)
    if limit:
        free = min(free, max(0, limit - _number(group / "memory.current", r"(\d+)", 0)))
    return free


def default_memory(transformer: Transformer, most_running: int) -> int:
    """Returns a quarter of the free memory, and no more than all running branches could ever use."""
    page_bytes = transformer.page_bytes
    most = page_bytes * pages_for(transformer.config.context) * most_running
    return max(2 * page_bytes, min(free_memory() // 4, most))


def _number(file: Path, pattern: str, otherwise: int) -> int:
    try:
        found = re.search(pattern, file.read_text())
    except OSError:
        return otherwise
    return int(found[1]) if found else otherwise
