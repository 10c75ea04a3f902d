"""The native library under AddressSanitizer and UBSan."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ops.built import FOLDER, built

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
        "GLASSLOOP_LIBRARY": str(built(compiler, _FLAGS, _sources(), include=[library.FILE.parent])),
        "GLASSLOOP_THREADS": "2",  # each touches only what is its own
        "LD_PRELOAD": runtime,
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "PYTHONPATH": os.pathsep.join(sys.path),
        "PYTHONMALLOC": "malloc",
    }


def _sources() -> list[Path]:
    """Returns the sources of the library. Kernels that cannot run here, which take long to compile, are
    replaced by functions that return none."""
    native = library.library()
    best = native.gl_name()
    lacking = [name for name in library.INSTRUCTION_SETS if not native.gl_select_kernels(name.encode())]
    native.gl_select_kernels(best)
    replaced = {f"kernels_{name}.c": f"gl_kernels_{name}" for name in lacking}
    FOLDER.mkdir(parents=True, exist_ok=True)
    empty = FOLDER / f"no_{'_'.join(lacking)}.c"
    part = empty.with_suffix(f".{os.getpid()}")
    part.write_text("".join(f"const void *{each}(void) {{ return 0; }}\n" for each in replaced.values()))
    part.replace(empty)
    every = sorted(library.FILE.parent.glob("*.c"))
    return [*(file for file in every if file.name not in replaced), empty]
