"""How the layers of a model share the KV cache: pages of keys and values, and slots of recurrent layers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from glassloop.ops.batch import PAGE
from glassloop.ops.kv_cache import CacheSpec, Place, shapes_of
from glassloop.ops.protocol import Ops
from glassloop.ops.state_cache import StateSpec

_LEAST_STATES, _LEAST_ROWS = 4, 3 * PAGE  # of which one branch always has enough
# Shares of the memory. A state is worth as much as some dozens of pages of attention, and rows live briefly.
_FOR_STATES, _FOR_ROWS = 3 / 8, 1 / 8


class CachePlan(NamedTuple):
    """What all layers of a model keep, and where each has its part."""

    specs: list[CacheSpec]  # of each group of attention layers
    states: StateSpec | None  # of all recurrent layers
    places: list[Place]  # of each layer

    def page_bytes(self, ops: Ops) -> int:
        """Returns the bytes of the keys and values of one page of tokens, in all groups of layers."""
        return len(self.specs) * sum(map(ops.page_bytes, set(shapes_of(self.specs))))

    def slot_bytes(self, states: int, rows: int) -> int:
        """Returns the bytes of so many slots of recurrent layers."""
        spec = self.states
        return 0 if spec is None else states * spec.state_bytes + rows * spec.row_bytes

    def least(self, ops: Ops) -> int:
        """Returns the bytes of the smallest cache that a branch can run in."""
        return 2 * self.page_bytes(ops) + self.slot_bytes(_LEAST_STATES, _LEAST_ROWS)

    def slot_counts(self, memory: int) -> tuple[int, int]:
        """Returns how many states and rows a cache of so many bytes has. The rest of it is for pages."""
        if self.states is None:
            return 0, 0
        spec = self.states
        states = max(_LEAST_STATES, int(_FOR_STATES * memory) // spec.state_bytes)
        return states, max(_LEAST_ROWS, int(_FOR_ROWS * memory) // spec.row_bytes)


def cache_plan(caches: Sequence[CacheSpec | StateSpec]) -> CachePlan:
    """Returns what layers need of the cache, given what each keeps. Recurrent layers, which must be alike,
    come after the groups of attention layers in page tables."""
    recurrent = [cache for cache in caches if isinstance(cache, StateSpec)]
    specs, found = cache_groups([cache for cache in caches if isinstance(cache, CacheSpec)])
    attention, slots = iter(found), iter(range(len(recurrent)))
    if len(set(recurrent)) > 1:
        raise ValueError("recurrent layers of different sizes; layers of one size are expected")
    places = [
        next(attention) if isinstance(cache, CacheSpec) else (len(specs), next(slots)) for cache in caches
    ]
    spec = replace(recurrent[0], layers=len(recurrent)) if recurrent else None
    return CachePlan(specs, spec, places)


def cache_groups(caches: Sequence[CacheSpec]) -> tuple[list[CacheSpec], list[Place]]:
    """Divides attention layers, given by what each keeps, into groups with the same window, each with a page
    table of its own. Returns the spec of each group and the place of each layer.

    All groups have the same number of layers, so all pages have one size and come from one pool: a page that
    a window gives back can be used for any layers.
    """
    if not caches:
        raise ValueError("no layer has attention; at least one is expected")
    layers = math.gcd(*Counter(caches).values())
    groups: dict[tuple[CacheSpec, int], int] = {}
    places: list[Place] = []
    for index, cache in enumerate(caches):
        number = caches[:index].count(cache)
        group = groups.setdefault((cache, number // layers), len(groups))
        places.append((group, number % layers))
    return [replace(cache, layers=layers) for cache, _ in groups], places
