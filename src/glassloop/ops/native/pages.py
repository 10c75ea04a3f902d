"""The cache of keys and values in the memory of the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glassloop.ops.batch import PAGE, Span, check_page, pages_for
from glassloop.ops.kv_cache import CacheSpec, Place
from glassloop.ops.native import library as lib
from glassloop.ops.native.packer import CACHE_LINE
from glassloop.ops.quant import Float32


class NativePages:
    """Keys and values in float16; native.h says how a page is laid out."""

    def __init__(self, spec: CacheSpec, count: int) -> None:
        self.count = count
        padded, heads = _padded(spec.head_dim), spec.layers * spec.kv_heads
        # `zeros` takes memory from the system only when a page is first written.
        self.keys = aligned(np.zeros, count * heads * spec.head_dim * PAGE, np.uint16).reshape(count, -1)
        self.values = aligned(np.zeros, count * heads * PAGE * padded, np.uint16).reshape(count, -1)
        self.page_bytes = page_bytes(spec)
        self.layout = lib.Cache(
            self.keys.ctypes.data,
            self.values.ctypes.data,
            spec.layers,
            spec.kv_heads,
            spec.head_dim,
            padded,
            count,
        )
        self.packed = bytes(self.layout)

    def copy(self, source: int, target: int) -> None:
        check_page(source, self.count)
        check_page(target, self.count)
        self.keys[target], self.values[target] = self.keys[source], self.values[source]

    def read_keys(self, place: Place, span: Span) -> Float32:
        group, layer = place
        pages = span.pages[group, : pages_for(span.length)]
        check_page(int(pages.min()), self.count)
        shape = (-1, self.layout.layers, self.layout.kv_heads, self.layout.head_dim, PAGE)
        keys = self.keys.reshape(shape)[pages, layer]  # [pages, kv heads, head dim, PAGE]
        rows = keys.view(np.float16).transpose(0, 3, 1, 2).reshape(-1, *shape[2:4])
        found: Float32 = rows[: span.length].astype(np.float32)
        return found


def page_bytes(spec: CacheSpec) -> int:
    return 2 * PAGE * spec.layers * spec.kv_heads * (spec.head_dim + _padded(spec.head_dim))


def _padded(head_dim: int) -> int:
    return -(-head_dim // 16) * 16


def aligned(make: Callable[..., NDArray[Any]], count: int, kind: type) -> NDArray[Any]:
    """Returns an array that begins at a cache line, so that no vector lies across two of them."""
    size = count * np.dtype(kind).itemsize
    memory = make(size + CACHE_LINE, np.uint8)
    start = -memory.ctypes.data % CACHE_LINE
    return memory[start : start + size].view(kind)
