"""The free memory of the machine, and numbers of bytes as text."""

from __future__ import annotations

import re
from pathlib import Path


def format_bytes(count: int) -> str:
    for unit in ("B", "KB", "MB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if count >= 10 or unit == "B" else f"{count:.1f} {unit}"
        count = count / 1024  # type: ignore[assignment]
    return f"{count:.1f} GB"


def free_host_memory() -> int:
    """Returns how many bytes this process could still take, within the limits of its control group."""
    free = _number(Path("/proc/meminfo"), r"MemAvailable:\s+(\d+) kB", 1 << 22) * 1024
    group = Path("/sys/fs/cgroup")
    limit = _number(group / "memory.max", r"(\d+)", 0)
    if limit:
        free = min(free, max(0, limit - _number(group / "memory.current", r"(\d+)", 0)))
    return free


def _number(file: Path, pattern: str, otherwise: int) -> int:
    try:
        found = re.search(pattern, file.read_text())
    except OSError:
        return otherwise
    return int(found[1]) if found else otherwise
