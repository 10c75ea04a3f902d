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
    """Keys and values in integers of 16 bits; native.h says how a page is laid out."""

    lines = 1

    def __init__(self, spec: CacheSpec, count: int) -> None:
        self.count = count
        padded, heads = _padded(spec.head_dim), spec.layers * spec.kv_heads
        # `zeros` takes memory from the system only when a page is first written.
        words = _key_rows(spec) * PAGE
        self.keys = aligned(np.zeros, count * heads * words, np.int32).reshape(count, -1)
        self.values = aligned(np.zeros, count * heads * PAGE // 2 * padded, np.int32).reshape(count, -1)
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
        layout = self.layout
        shape = (self.count, layout.layers, layout.kv_heads, -1, PAGE)
        words = self.keys.reshape(shape)[pages, layer].transpose(0, 3, 1, 2)  # [pages, PAGE, kv heads, words]
        words = words.reshape(-1, *words.shape[2:])[: span.length]
        pairs, scales = words[..., :-2].copy(), words[..., -2:-1].copy()
        found: Float32 = pairs.view(np.int16)[..., : layout.head_dim] * scales.view(np.float32)
        return found


def page_bytes(spec: CacheSpec) -> int:
    return PAGE * spec.layers * spec.kv_heads * (4 * _key_rows(spec) + 2 * _padded(spec.head_dim))


def _key_rows(spec: CacheSpec) -> int:
    """Returns how many words are kept for a key: one for two dimensions, its scale, and that of its value."""
    return (spec.head_dim + 1) // 2 + 2


def _padded(head_dim: int) -> int:
    return -(-head_dim // 16) * 16


def aligned(make: Callable[..., NDArray[Any]], count: int, kind: type) -> NDArray[Any]:
    """Returns an array that begins at a cache line, so that no vector lies across two of them."""
    size = count * np.dtype(kind).itemsize
    memory = make(size + CACHE_LINE, np.uint8)
    start = -memory.ctypes.data % CACHE_LINE
    return memory[start : start + size].view(kind)
