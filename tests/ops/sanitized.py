"""The native library under AddressSanitizer and UBSan, built once for each state of its sources."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from glassloop.ops.native import library

_FLAGS = (
    *("-std=gnu11", "-Og", "-g1", "-ffp-contract=off", "-fno-omit-frame-pointer", "-Wno-psabi"),
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fPIC", "-shared", "-pthread"),
)
_FOLDER = Path(__file__).parents[2] / "build" / "sanitized"


def sanitized_environment() -> dict[str, str]:
    """What a Python process needs in its environment to use the sanitized library; skips where the compiler
    has no sanitizers."""
    compiler = os.environ.get("CC", "cc")
    found = subprocess.run(
        [compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    )
    runtime = found.stdout.strip()
    if "/" not in runtime:
        pytest.skip("the compiler has no AddressSanitizer")
    return os.environ | {
        "GLASSLOOP_LIBRARY": str(_built(compiler)),
        "LD_PRELOAD": runtime,
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "PYTHONPATH": os.pathsep.join(sys.path),
        "PYTHONMALLOC": "malloc",
    }


def _built(compiler: str) -> Path:
    folder = library.FILE.parent
    digest = hashlib.sha256(repr((compiler, _FLAGS)).encode())
    for file in sorted(folder.glob("*.[ch]")):
        digest.update(file.name.encode() + file.read_bytes())
    _FOLDER.mkdir(parents=True, exist_ok=True)
    built = _FOLDER / f"{digest.hexdigest()[:16]}.so"
    with FileLock(f"{built}.lock"):  # another worker may be at it
        if not built.exists():
            beside = built.with_suffix(".part")
            sources = [str(file) for file in sorted(folder.glob("*.c"))]
            subprocess.run([compiler, *_FLAGS, *sources, "-o", str(beside), "-lm"], check=True)
            beside.replace(built)
    return built
