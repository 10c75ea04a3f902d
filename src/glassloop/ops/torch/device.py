"""The device that the torch op set computes on: its number format, its free memory, and errors about memory.

With TRITON_INTERPRET=1 the kernels run on the CPU in NumPy, for tests. Triton's interpreter cannot multiply
in bfloat16, so float32 takes its place there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
import triton

from glassloop.errors import GlassloopError
from glassloop.ops.memory import format_bytes, free_host_memory
from glassloop.ops.torch import interpreted

INTERPRETED = interpreted()
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
HALF = torch.float32 if INTERPRETED else torch.bfloat16
_WIDE_BYTES = 200 << 10  # of shared memory that the tiles of `wide_linear_kernel` need


def describe() -> str:
    """Returns what bits may depend on: the architecture and the version of Triton."""
    architecture = "interpreter" if INTERPRETED else "sm_{}{}".format(*torch.cuda.get_device_capability())
    return f"{architecture}/triton-{triton.__version__}"


def tma_processors() -> int:
    """Returns the number of multiprocessors, or 0 if they cannot copy tiles by descriptors (TMA) or have no
    room for the tiles of `wide_linear_kernel`, as those of GPUs for desktops."""
    if INTERPRETED or not torch.cuda.is_available():
        return 0
    if torch.cuda.get_device_capability() < (9, 0) or shared_memory() < _WIDE_BYTES:
        return 0
    return processors()


@cache
def processors() -> int:
    """Returns the number of multiprocessors."""
    return int(torch.cuda.get_device_properties(DEVICE).multi_processor_count)


def free_memory() -> int:
    """Returns how many bytes this process could still take."""
    if INTERPRETED:
        return free_host_memory()
    unused = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    return int(torch.cuda.mem_get_info()[0] + unused)


@cache
def shared_memory() -> int:
    """Returns the bytes of shared memory that one program of a kernel may have."""
    if INTERPRETED:
        return 1 << 40
    properties = triton.runtime.driver.active.utils.get_device_properties(torch.cuda.current_device())
    return int(properties["max_shared_mem"])


def check_room(what: str, needed: int) -> None:
    """Raises if this many bytes do not fit into the device's memory."""
    if needed > (free := free_memory()):
        raise GlassloopError(
            f"{what} needs {format_bytes(needed)} of the GPU's memory, of which {format_bytes(free)} is free;"
            " end other programs that use it, or take the op set native"
        )


def keeps_packed(expanded: int, packed: int) -> bool:
    """Returns whether quantized matrices stay as they are in the device's memory, where they take `packed`
    bytes: if GLASSLOOP_GPU_WEIGHTS says so or, unless it says otherwise, if the `expanded` bytes that they
    take in half precision do not fit."""
    asked = os.environ.get("GLASSLOOP_GPU_WEIGHTS", "auto")
    if asked not in ("auto", "packed", "expanded"):
        raise GlassloopError(f"GLASSLOOP_GPU_WEIGHTS is {asked!r}; one of auto, packed, expanded is expected")
    wanted = asked == "packed" or (asked == "auto" and expanded > free_memory())
    return packed < expanded and wanted


@contextmanager
def memory_errors(what: str) -> Iterator[None]:
    """Raises GlassloopError with figures if an allocation for `what` fails."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        torch.cuda.empty_cache()
        raise GlassloopError(
            f"the GPU has no room for {what}: {format_bytes(free_memory())} of its memory is free; give less"
            " kv_memory, end other programs that use it, or take the op set native"
            f" ({' '.join(str(error).split())})"
        ) from None
