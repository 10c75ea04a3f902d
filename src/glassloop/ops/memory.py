"""The memory that this process may still take on the host, and numbers of bytes as text.

What is free is the least of what the machine has, what each control group above the process leaves (versions
1 and 2), and what the limits of the process allow (`ulimit -v`, `ulimit -d`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from glassloop.errors import NoMemoryError

_UNKNOWN = 1 << 32  # bytes, where the system does not say what is free
_MOST_GROUPS = 64  # control groups above a process that are looked at


class FreeMemory(NamedTuple):
    size: int  # bytes
    bound: str  # what limits it, for people ("under ulimit -v"); "" if it is the machine

    def __str__(self) -> str:
        return f"{format_bytes(self.size)} are free" + (f" {self.bound}" if self.bound else "")


def format_bytes(count: int) -> str:
    for unit in ("B", "KB", "MB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if count >= 10 or unit == "B" else f"{count:.1f} {unit}"
        count = count / 1024  # type: ignore[assignment]
    return f"{count:.1f} GB"


def free_host_memory() -> int:
    """Returns how many bytes this process could still take."""
    return host_memory().size


def host_memory(root: Path = Path("/")) -> FreeMemory:
    """Returns how much memory this process could still take, and what limits it. `root` is where the files of
    the system are."""
    machine = _number(root / "proc/meminfo", r"MemAvailable:\s+(\d+) kB", _UNKNOWN >> 10) << 10
    return min([FreeMemory(machine, ""), *_under_limits(root), *_in_groups(root)])


def check_room(what: str, needed: int, free: FreeMemory, remedy: str) -> None:
    """Raises `NoMemoryError` if something needs more bytes than are free."""
    if needed > free.size:
        raise NoMemoryError(f"{what} {format_bytes(needed)}; {free}: {remedy}")


@contextmanager
def memory_errors(what: str) -> Iterator[None]:
    """Raises `NoMemoryError` with figures if an allocation for `what` fails: another program may have taken
    what was free before."""
    try:
        yield
    except NoMemoryError:
        raise
    except MemoryError:
        raise NoMemoryError(f"there is no memory for {what}; {host_memory()}") from None


def _under_limits(root: Path) -> Iterator[FreeMemory]:
    """Yields what the limits of the process leave."""
    try:
        import resource
    except ImportError:
        return
    for name, limit, taken in (
        ("under ulimit -v", resource.RLIMIT_AS, "VmSize"),
        ("under ulimit -d", resource.RLIMIT_DATA, "VmData"),
    ):
        most = resource.getrlimit(limit)[0]
        if most != resource.RLIM_INFINITY:
            used = _number(root / "proc/self/status", rf"{taken}:\s+(\d+) kB", 0) << 10
            yield FreeMemory(max(0, most - used), name)


def _in_groups(root: Path) -> Iterator[FreeMemory]:
    """Yields what each control group that the process is in leaves, and each above it."""
    own_groups = _own_groups(_read(root / "proc/self/cgroup"))
    for line in _read(root / "proc/self/mountinfo").splitlines():
        mount, _, system = line.partition(" - ")
        fields, kind = mount.split(), system.split()
        if len(fields) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        if kind[0] == "cgroup" and "memory" not in kind[2].split(","):
            continue
        names = _V2 if kind[0] == "cgroup2" else _V1
        for group in _above(PurePosixPath(fields[3]), own_groups.get(kind[0])):
            folder = root / fields[4].lstrip("/") / group
            limit = _number(folder / names.limit, r"(\d+)\s*$", 0)
            if limit:
                used = _number(folder / names.used, r"(\d+)", 0)
                # Pages of files that nobody uses now are given back when they are needed.
                used -= _number(folder / "memory.stat", rf"(?m)^{names.unused_files} (\d+)", 0)
                yield FreeMemory(max(0, limit - max(0, used)), "in its control group")


class _GroupFiles(NamedTuple):
    """The names of a control group's files, which differ between the versions."""

    limit: str
    used: str
    unused_files: str


_V1 = _GroupFiles("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = _GroupFiles("memory.max", "memory.current", "inactive_file")


def _own_groups(text: str) -> dict[str, PurePosixPath]:
    """Returns the group of the process for memory, by the type of its file system."""
    groups = {}
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            groups["cgroup"] = PurePosixPath(path)
        elif number == "0" and not controllers:
            groups["cgroup2"] = PurePosixPath(path)
    return groups


def _above(mounted: PurePosixPath, own: PurePosixPath | None) -> list[PurePosixPath]:
    """Returns the folders of a group and of all above it, relative to where they are mounted. In a container
    only a part of the tree may be mounted, of which the top is the container's own group."""
    if own is None or not own.is_relative_to(mounted):
        return [PurePosixPath()]
    inner = own.relative_to(mounted)
    return [inner, *inner.parents][:_MOST_GROUPS]


def _read(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


def _number(file: Path, pattern: str, otherwise: int) -> int:
    match = re.search(pattern, _read(file))
    return int(match[1]) if match else otherwise
