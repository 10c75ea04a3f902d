"""The native library under AddressSanitizer and UBSan."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from ops.built import built

from glassloop.ops.native import library

_FLAGS = (
    *("-std=gnu11", "-Og", "-g1", "-ffp-contract=off", "-fno-omit-frame-pointer", "-Wno-psabi"),
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fPIC", "-shared", "-pthread"),
)


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
        "GLASSLOOP_LIBRARY": str(built(compiler, _FLAGS, sorted(library.FILE.parent.glob("*.c")))),
        "GLASSLOOP_THREADS": "2",  # each touches only what is its own
        "LD_PRELOAD": runtime,
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "PYTHONPATH": os.pathsep.join(sys.path),
        "PYTHONMALLOC": "malloc",
    }
