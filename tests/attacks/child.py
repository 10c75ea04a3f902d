"""Tries many inputs of strangers in one process: `python -m attacks.child KIND SEED FIRST COUNT`. It prints a
JSON line when it begins an input and one when it is done with it, so that a crash or an endless loop has a
number. With a fifth argument, a path, the input with the number FIRST is written there and nothing is tried.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from attacks.inputs import KINDS, make

MOST_MEMORY = 6 << 30  # bytes of address space: a bomb becomes a MemoryError and not somebody else's trouble
_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")


def _peak() -> int:
    found = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM"))
    return int(found.split()[1]) << 10


def _tell(**told: Any) -> None:
    print(json.dumps(told), flush=True)


def main(kind: str, seed: int, first: int, count: int) -> None:
    if "libasan" not in os.environ.get("LD_PRELOAD", ""):  # whose shadow memory is larger than any limit
        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as name:
        folder = Path(name)
        for number in range(first, first + count):
            given = make(kind, seed, number, folder)
            _tell(begin=number)
            _RESET.write_text("5")
            before, began = _peak(), time.monotonic()
            try:
                how, detail = KINDS[kind].use(given, folder), ""
            except BaseException as error:
                how = "error"
                detail = "".join(traceback.format_exception(error)[-4:])
            seconds = time.monotonic() - began
            _tell(end=number, how=how, detail=detail, seconds=seconds, grown=max(0, _peak() - before))


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if len(arguments) == 5:
        with tempfile.TemporaryDirectory() as name:
            made = make(arguments[0], int(arguments[1]), int(arguments[2]), Path(name))
        if isinstance(made, dict):
            target = Path(arguments[4])
            target.mkdir(parents=True, exist_ok=True)
            for name, data in made.items():
                (target / name).write_bytes(data)
        else:
            Path(arguments[4]).write_bytes(
                made if isinstance(made, bytes) else made.encode("utf-8", "surrogatepass")
            )
    else:
        main(arguments[0], *map(int, arguments[1:4]))
