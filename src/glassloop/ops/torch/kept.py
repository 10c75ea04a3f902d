"""Texts about a GPU that are found once and kept in Triton's cache: the result of the self-test, the fastest
tiles."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import triton

from glassloop.ops.torch.device import describe


def read_kept(name: str, depends_on: Sequence[str] = ()) -> str | None:
    """Returns the text of a name that was kept for this GPU and version of Triton, and for the same texts on
    which it depends; None if there is none."""
    place = _place(depends_on)
    found = None if place is None else place.get_file(name)
    try:
        return Path(found).read_text() if found else None
    except (OSError, ValueError):
        return None


def keep(name: str, text: str, depends_on: Sequence[str] = ()) -> bool:
    """Keeps a text. Returns whether it is kept: a cache may not be writable."""
    place = _place(depends_on)
    try:
        if place is not None:
            place.put(text, name, binary=False)
        return place is not None
    except OSError:
        return False


def _place(depends_on: Sequence[str]) -> Any:
    """Returns a place in Triton's cache, or None if there is none."""
    about = [describe(), torch.cuda.get_device_name(), *depends_on]
    try:
        return triton.runtime.cache.get_cache_manager(hashlib.sha256("\n".join(about).encode()).hexdigest())
    except (OSError, RuntimeError):
        return None
