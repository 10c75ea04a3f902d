"""Texts about a GPU that are found once and kept in Triton's cache: the result of the self-test, the fastest
tiles."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
import triton

from glassloop.errors import GlassloopError
from glassloop.ops.torch.device import INTERPRETED, describe, shared_memory
from glassloop.ops.torch.tile_table import read_table, table_text
from glassloop.ops.torch.tiles import Table, use_table
from glassloop.util.files import read_at_most

_LOG = logging.getLogger(__name__)
_MOST = 1 << 16  # bytes of a text
_TILES = "glassloop-tiles"


def keep_table(table: Table) -> bool:
    """Keeps a table of tiles for this GPU. Returns whether it is kept."""
    return keep(_TILES, table_text(table))


@cache
def use_kept_table() -> None:
    """Takes tiles from the table that was kept for this GPU, if there is one."""
    text = None if INTERPRETED else read_kept(_TILES)
    if text is None:
        return
    try:
        use_table(read_table(text, shared_memory()))
    except GlassloopError as error:
        _LOG.warning("the tiles of an H200 are used: %s", error)


def read_kept(name: str, depends_on: Sequence[str] = ()) -> str | None:
    """Returns the text of a name that was kept for this GPU and version of Triton, and for the same texts on
    which it depends; None if there is none."""
    place = _place(depends_on)
    found = None if place is None else place.get_file(name)
    try:
        return read_at_most(found, _MOST, GlassloopError).decode() if found else None
    except (GlassloopError, ValueError):
        return None


def keep(name: str, text: str, depends_on: Sequence[str] = ()) -> bool:
    """Keeps a text. Returns whether it is kept: a cache may not be writable."""
    place = _place(depends_on)
    try:
        if place is not None:
            place.put(text, name, binary=False)
        return place is not None
    except (OSError, RuntimeError):
        return False


def _place(depends_on: Sequence[str]) -> Any:
    """Returns a place in Triton's cache, or None if there is none."""
    about = [describe(), torch.cuda.get_device_name(), *depends_on]
    try:
        return triton.runtime.cache.get_cache_manager(hashlib.sha256("\n".join(about).encode()).hexdigest())
    except (OSError, RuntimeError):
        return None
