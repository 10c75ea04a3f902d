"""The size of the memory for keys and values: its default, and numbers of bytes given as text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from glassloop.errors import GlassloopError
from glassloop.ops.batch import pages_for

if TYPE_CHECKING:
    from glassloop.model.transformer import Transformer

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_bytes(text: str | int, name: str = "kv_memory") -> int:
    """Reads a number of bytes: 2000000, "512MB", "2 GiB", "1.5g"."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)I?B?\s*", str(text).upper())
    if match is None or isinstance(text, bool):
        raise GlassloopError(f"{name} is {text!r}; a number of bytes such as 512MB or 2GB is expected")
    return int(float(match[1]) * _UNITS[match[2]])


def default_memory(transformer: Transformer, most_running: int) -> int:
    """Returns the op set's share of the free memory, and no more than all running branches could ever use."""
    share, context = transformer.ops.cache_memory(), transformer.config.context
    return cache_share(share, transformer.page_bytes, context, most_running)


def cache_share(share: int, page_bytes: int, context: int, most_running: int) -> int:
    """Returns how much of a share of the memory the keys and values of a model take: no more than all running
    branches could ever use, and no less than any branch needs."""
    return max(2 * page_bytes, min(share, page_bytes * pages_for(context) * most_running))
