"""The cache of keys and values: pages of tokens, which groups of layers of one shape take from one pool."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from glassloop.ops.batch import Span
from glassloop.ops.memory import format_bytes, memory_errors
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
    lines: int  # that it has in the page table of a branch

    def copy(self, source: int, target: int) -> None: ...

    def read_keys(self, place: Place, span: Span) -> Float32:
        """Returns the keys of a branch as attention sees them: [length, kv heads, head dim]."""


def shapes_of(specs: Sequence[CacheSpec]) -> list[CacheSpec]:
    """Returns what decides the size of a page of each group: its spec without the window."""
    return [replace(spec, window=None) for spec in specs]


def make_pools(
    specs: Sequence[CacheSpec],
    memory: int,
    page_bytes: Callable[[CacheSpec], int],
    make: Callable[[CacheSpec, int], Pages],
) -> list[Pages]:
    """Returns the pool of each group; all of them together fit into `memory` bytes.

    Groups of one shape share a pool. Where there are several, each has room for every page, since a page that
    one group gives back may be taken by any other.
    """
    shapes = shapes_of(specs)
    count = memory // sum(map(page_bytes, set(shapes)))
    with memory_errors(f"{format_bytes(memory)} of keys and values"):
        pools = {shape: make(shape, count) for shape in dict.fromkeys(shapes)}
    return [pools[shape] for shape in shapes]
