"""Runs the tests of this folder: `python tests/gpu`. Each file has a process and a time limit of its own, and
what it prints appears at once, so that a short time on a GPU tells as much as it can.

Two files run at a time: compiling kernels keeps a processor busy, and no test measures time.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic

HERE = Path(__file__).resolve().parent
# The longest come first. Seconds on an H200, with room to spare; the rows of `ROWS` cost more.
LIMITS = {
    "test_choices.py": 400,
    "test_packed.py": 420,
    "test_bits.py": 150,
    "test_training.py": 150,
    "test_one_answer.py": 75,
    "test_adapters.py": 75,
    "test_llm.py": 75,
    "test_selftest.py": 45,
}
_ROWS = 20_000  # that `test_bits.py` compares by default
_ROWS_PER_SECOND = 1500


def main() -> None:
    parser = argparse.ArgumentParser(prog="python tests/gpu", description=__doc__)
    parser.add_argument("files", nargs="*", help="names of files, such as test_bits.py; by default all")
    parser.add_argument("--together", type=int, default=2, help="how many files run at a time")
    parser.add_argument("--seconds", type=float, default=3600.0, help="time limit for everything")
    given = parser.parse_args()
    names = given.files or [
        *LIMITS,
        *sorted(file.name for file in HERE.glob("test_*.py") if file.name not in LIMITS),
    ]
    began = monotonic()
    with ThreadPoolExecutor(given.together) as pool:
        results = [*pool.map(lambda name: _run(name, began, given.seconds), names)]
    print("\n".join(f"{result:8} {name}" for name, result in zip(names, results, strict=True)), flush=True)
    sys.exit(any(result not in ("passed", "skipped") for result in results))


def _run(name: str, began: float, most: float) -> str:
    """Runs one file. Returns what became of it."""
    rows = int(os.environ.get("GLASSLOOP_GPU_ROWS") or _ROWS)
    limit = LIMITS.get(name, 75) + max(0, rows - _ROWS) / _ROWS_PER_SECOND
    limit = min(limit, most - (monotonic() - began))
    if limit <= 1:
        return "not run"
    tests = str(HERE.parent)
    paths = [tests, str(HERE.parent.parent), os.environ.get("PYTHONPATH", "")]
    command = [
        sys.executable,
        "-u",
        "-m",
        "pytest",
        "-x",
        "-s",
        "-v",
        "-p",
        "no:cacheprovider",
        str(HERE / name),
    ]
    process = subprocess.Popen(
        command,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )

    def tell() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            print(f"{monotonic() - began:6.1f} s  {name}: {line.rstrip()}", flush=True)

    with ThreadPoolExecutor(1) as pool:
        told = pool.submit(tell)
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            code = None
        told.result()
    # pytest's 5: every test was skipped while the file was read.
    return "too slow" if code is None else {0: "passed", 5: "skipped"}.get(code, "failed")


if __name__ == "__main__":
    main()
