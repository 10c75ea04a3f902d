"""How the layers of a model share the pages of the KV cache."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from glassloop.ops.kv_cache import CacheSpec, Place, shapes_of
from glassloop.ops.protocol import Ops


def cache_groups(caches: Sequence[CacheSpec]) -> tuple[list[CacheSpec], list[Place]]:
    """Divides layers, given by what each keeps, into groups with the same window, each with a page table of
    its own. Returns the spec of each group and the place of each layer.

    All groups have the same number of layers, so all pages have one size and come from one pool: a page that
    a window gives back can be used for any layers.
    """
    layers = math.gcd(*Counter(caches).values())
    groups: dict[tuple[CacheSpec, int], int] = {}
    places: list[Place] = []
    for index, cache in enumerate(caches):
        number = caches[:index].count(cache)
        group = groups.setdefault((cache, number // layers), len(groups))
        places.append((group, number % layers))
    return [replace(cache, layers=layers) for cache, _ in groups], places


def page_bytes_of(specs: Sequence[CacheSpec], ops: Ops) -> int:
    """Returns the bytes of the keys and values of one page of tokens, in all groups of layers."""
    return len(specs) * sum(map(ops.page_bytes, set(shapes_of(specs))))
