"""The GPU that a torch op set computes on. An op set is given a `Device` and passes it to all its parts, so
that no module knows which GPU it is.

With TRITON_INTERPRET=1 the kernels run on the CPU in NumPy, for tests. Triton's interpreter cannot multiply
in bfloat16, so float32 takes its place there.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, cached_property
from typing import Any

import torch
import triton

from glassloop.errors import GlassloopError
from glassloop.ops.memory import format_bytes, free_host_memory
from glassloop.ops.torch import interpreted
from glassloop.ops.torch.tiles import H200, Table, TileTable, read_table, table_text
from glassloop.util.files import read_at_most

_LOG = logging.getLogger(__name__)
_WIDE_BYTES = 200 << 10  # of shared memory that the tiles of `wide_linear_kernel` need
_MOST_REMEMBERED = 1 << 16  # bytes of a text in Triton's cache
_TILES = "glassloop-tiles"


@cache
def default_device() -> Device:
    """Returns the GPU that torch uses by default, or the CPU under Triton's interpreter."""
    return Device(torch.device("cpu" if interpreted() else "cuda"))


class Device:
    """One GPU: its number format, what it can do, its free memory, and errors about memory."""

    def __init__(self, device: torch.device) -> None:
        self.torch = device
        self.interpreted = device.type == "cpu"
        self.half = torch.float32 if self.interpreted else torch.bfloat16
        self.has_streams = not self.interpreted  # and events and graphs

    def current(self) -> AbstractContextManager[Any]:
        """Returns a context in which kernels are launched on this device."""
        several = not self.interpreted and torch.cuda.device_count() > 1
        return torch.cuda.device(self.torch) if several else nullcontext()

    @cached_property
    def description(self) -> str:
        """What bits may depend on: the architecture and the version of Triton."""
        architecture = "interpreter" if self.interpreted else "sm_{}{}".format(*self.capability)
        return f"{architecture}/triton-{triton.__version__}"

    @cached_property
    def capability(self) -> tuple[int, int]:
        major, minor = torch.cuda.get_device_capability(self.torch)
        return int(major), int(minor)

    @cached_property
    def processors(self) -> int:
        """The number of multiprocessors."""
        return int(torch.cuda.get_device_properties(self.torch).multi_processor_count)

    @cached_property
    def tma_processors(self) -> int:
        """The number of multiprocessors, or 0 if they cannot copy tiles by descriptors (TMA) or have no room
        for the tiles of `wide_linear_kernel`, as those of GPUs for desktops."""
        if self.interpreted or not torch.cuda.is_available():
            return 0
        if self.capability < (9, 0) or self.shared_memory < _WIDE_BYTES:
            return 0
        return self.processors

    @cached_property
    def shared_memory(self) -> int:
        """The bytes of shared memory that one program of a kernel may have."""
        if self.interpreted:
            return 1 << 40
        index = torch.cuda.current_device() if self.torch.index is None else self.torch.index
        properties = triton.runtime.driver.active.utils.get_device_properties(index)
        return int(properties["max_shared_mem"])

    @cached_property
    def aside(self) -> torch.cuda.Stream:
        """A stream on which a download does not wait for the programs."""
        return torch.cuda.Stream(self.torch)

    @cached_property
    def tiles(self) -> TileTable:
        """The tiles of products: those that were found for this GPU, if any were, else those of an H200."""
        text = None if self.interpreted else self.remembered(_TILES)
        if text is not None:
            try:
                return TileTable(read_table(text, self.shared_memory))
            except GlassloopError as error:
                _LOG.warning("the tiles of an H200 are used: %s", error)
        return TileTable(H200)

    def remember_tiles(self, table: Table) -> bool:
        """Keeps a table of tiles for this GPU. Returns whether it is kept."""
        return self.remember(_TILES, table_text(table))

    def remembered(self, name: str, depends_on: Sequence[str] = ()) -> str | None:
        """Returns the text that Triton's cache has under a name for this GPU and version of Triton, and for
        the same texts on which it depends; None if there is none."""
        folder = self._cache_folder(depends_on)
        file = None if folder is None else folder.get_file(name)
        try:
            return read_at_most(file, _MOST_REMEMBERED, GlassloopError).decode() if file else None
        except (GlassloopError, ValueError):
            return None

    def remember(self, name: str, text: str, depends_on: Sequence[str] = ()) -> bool:
        """Writes a text to Triton's cache. Returns whether it is kept: a cache may not be writable."""
        folder = self._cache_folder(depends_on)
        try:
            if folder is not None:
                folder.put(text, name, binary=False)
            return folder is not None
        except (OSError, RuntimeError):
            return False

    def _cache_folder(self, depends_on: Sequence[str]) -> Any:
        """Returns a folder of Triton's cache, or None if there is none."""
        key = "\n".join([self.description, torch.cuda.get_device_name(self.torch), *depends_on])
        try:
            return triton.runtime.cache.get_cache_manager(hashlib.sha256(key.encode()).hexdigest())
        except (OSError, RuntimeError):
            return None

    def free_memory(self) -> int:
        """Returns how many bytes this process could still take."""
        if self.interpreted:
            return free_host_memory()
        unused = torch.cuda.memory_reserved(self.torch) - torch.cuda.memory_allocated(self.torch)
        return int(torch.cuda.mem_get_info(self.torch)[0] + unused)

    def check_room(self, what: str, needed: int) -> None:
        """Raises if this many bytes do not fit into the device's memory."""
        if needed > (free := self.free_memory()):
            raise GlassloopError(
                f"{what} needs {format_bytes(needed)} of the GPU's memory, of which {format_bytes(free)} is"
                " free; end other programs that use it, or take the op set native"
            )

    def keeps_packed(self, expanded: int, packed: int) -> bool:
        """Returns whether quantized matrices stay as they are in the device's memory, where they take
        `packed` bytes: if GLASSLOOP_GPU_WEIGHTS says so or, unless it says otherwise, if the `expanded` bytes
        that they take in half precision do not fit."""
        asked = os.environ.get("GLASSLOOP_GPU_WEIGHTS", "auto")
        if asked not in ("auto", "packed", "expanded"):
            raise GlassloopError(
                f"GLASSLOOP_GPU_WEIGHTS is {asked!r}; one of auto, packed, expanded is expected"
            )
        wanted = asked == "packed" or (asked == "auto" and expanded > self.free_memory())
        return packed < expanded and wanted

    @contextmanager
    def memory_errors(self, what: str) -> Iterator[None]:
        """Raises GlassloopError with figures if an allocation for `what` fails."""
        try:
            yield
        except torch.OutOfMemoryError as error:
            torch.cuda.empty_cache()
            raise GlassloopError(
                f"the GPU has no room for {what}: {format_bytes(self.free_memory())} of its memory is free;"
                " give less kv_memory, end other programs that use it, or take the op set native"
                f" ({' '.join(str(error).split())})"
            ) from None
