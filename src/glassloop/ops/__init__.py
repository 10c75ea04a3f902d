"""Array operations. `choose_ops` returns an op set: `torch` if there is a GPU and the extra `gpu` is
installed, else the native one if it was built, else the reference."""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import cast

from glassloop.errors import GlassloopError
from glassloop.ops.protocol import Ops

NAMES = ("torch", "native", "reference")


def default_threads() -> int:
    """Returns how many threads the native op set takes: GLASSLOOP_THREADS, or one for each core."""
    from glassloop.ops.native.library import wanted_threads

    return wanted_threads()


def choose_ops(name: str | None = None) -> Ops:
    """Returns an op set by name, by GLASSLOOP_OPS, or the best that is available."""
    name = name or os.environ.get("GLASSLOOP_OPS") or None
    if name not in (None, *NAMES):
        raise GlassloopError(f"the op set is {name!r}; one of {', '.join(NAMES)} is expected")
    if name in ("torch", None):
        from glassloop.ops import torch

        if torch.has_device() or (name == "torch" and torch.installed() and torch.interpreted()):
            from glassloop.ops.torch.ops import TorchOps

            return cast(Ops, TorchOps())
        if name == "torch":
            raise GlassloopError(
                "ops is 'torch', which needs an NVIDIA GPU of 2020 or newer (compute capability 8.0)"
                if torch.installed()
                else "ops is 'torch', which needs torch and Triton: pip install 'glassloop[gpu]'"
            )
    if name != "reference":
        from glassloop.ops.native import library

        if library.available():
            from glassloop.ops.native.ops import NativeOps

            return cast(Ops, NativeOps())
        if name == "native":
            raise GlassloopError(
                "ops is 'native', which was not built: install a C compiler and glassloop again"
            )
        _say_once()
    from glassloop.ops.reference import ReferenceOps

    return cast(Ops, ReferenceOps())


@cache
def _say_once() -> None:
    print(
        "glassloop: the native op set was not built (no C compiler?); NumPy computes, several times slower",
        file=sys.stderr,
    )
