"""The cache of keys and values: what each group of layers needs, and how one budget of memory is divided.

Layers with the same window are a group, with pages of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from glassloop.ops.batch import Span, pages_for
from glassloop.ops.quant import Float32

Place = tuple[int, int]  # a group of layers, and a layer's number in it


@dataclass(frozen=True)
class CacheSpec:
    """What a group of layers keeps: the keys and values of all tokens, or of those in a window."""

    kind: Literal["full", "window"]
    layers: int
    kv_heads: int
    head_dim: int
    window: int = 0  # for the kind "window": a token sees itself and the `window - 1` tokens before it


class Pages(Protocol):
    """Pages for the keys and values of one group of layers: `count` of them, each of `page_bytes` bytes."""

    page_bytes: int
    count: int

    def copy(self, source: int, target: int) -> None: ...

    def read_keys(self, place: Place, span: Span) -> Float32:
        """Returns the keys of a branch as attention sees them: [length, kv heads, head dim]."""


def window_pages(window: int) -> int:
    """Returns how many pages of a windowed group one sequence needs at most, extended by a page at a time."""
    return pages_for(window) + 2


def divide_pages(specs: Sequence[CacheSpec], sizes: Sequence[int], memory: int, context: int) -> list[int]:
    """Returns how many pages each group gets, so that all of them together fit into `memory` bytes. `sizes`
    has the bytes of a page of each group.

    Short sequences need as many pages in all groups. Long ones need few pages of a window, so windowed groups
    get fewer: a quarter of the others' number, but enough for one sequence. If the memory allows one sequence
    of the whole context, there are full pages for it.
    """
    equal = memory // sum(sizes)
    windows = [window_pages(spec.window) for spec in specs if spec.kind == "window"]
    full = sum(size for spec, size in zip(specs, sizes, strict=True) if spec.kind == "full")
    windowed = sum(sizes) - full
    if not windows or not full or max(windows) >= pages_for(context):
        return [equal] * len(specs)
    least = min(equal, max(windows))
    of_window = max(least, memory // (4 * full + windowed))
    beside_context = (memory - pages_for(context) * full) // windowed
    if beside_context >= least:
        of_window = min(of_window, beside_context)
    return [of_window if spec.kind == "window" else (memory - of_window * windowed) // full for spec in specs]
