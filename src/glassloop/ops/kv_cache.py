"""The cache of keys and values: pages of tokens, which all groups of layers take from one pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from glassloop.errors import GlassloopError
from glassloop.ops.batch import Span
from glassloop.ops.quant import Float32

Place = tuple[int, int]  # a group of layers, and a layer's number in it


@dataclass(frozen=True)
class CacheSpec:
    """What a group of layers keeps: the keys and values of all tokens, or of those in a window."""

    layers: int
    kv_heads: int
    head_dim: int
    window: int | None = None  # a token sees itself and the `window - 1` tokens before it; None: all of them

    @property
    def kind(self) -> Literal["full", "window"]:
        return "full" if self.window is None else "window"


class Pages(Protocol):
    """A pool of pages for keys and values: `count` of them, each of `page_bytes` bytes."""

    page_bytes: int
    count: int

    def copy(self, source: int, target: int) -> None: ...

    def read_keys(self, place: Place, span: Span) -> Float32:
        """Returns the keys of a branch as attention sees them: [length, kv heads, head dim]."""


def pool_pages(specs: Sequence[CacheSpec], sizes: Sequence[int], memory: int) -> int:
    """Returns how many pages of one pool for all groups fit into `memory` bytes. `sizes` has the bytes of a
    page of each group, which must be equal."""
    if len(set(sizes)) != 1:
        raise GlassloopError(f"the pages of {specs} have {sizes} bytes; one size is expected")
    return memory // sizes[0]
