"""One pool of pages for all groups of layers, within one budget of memory."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
from engine.small import model

from glassloop.model.cache_groups import cache_groups
from glassloop.ops.kv_cache import CacheSpec
from glassloop.ops.native.ops import NativeOps
from glassloop.ops.reference import ReferenceOps

OPS = pytest.mark.parametrize("ops", [NativeOps(), ReferenceOps()], ids=lambda ops: ops.name)


@OPS
@pytest.mark.parametrize("head_dim", [16, 20])
def test_the_pool_takes_no_more_than_its_memory(ops, head_dim):
    specs = [CacheSpec(2, 3, head_dim, window) for window in (None, 40, 512)]
    for memory in (3, 4.5, 100):
        pages = ops.cache(specs, int(memory * ops.page_bytes(specs[0])))
        assert len(pages) == 3 and pages[0] is pages[1] is pages[2]
        assert pages[0].count == int(memory) and pages[0].page_bytes == ops.page_bytes(specs[0])
        assert pages[0].keys.nbytes + pages[0].values.nbytes == pages[0].count * pages[0].page_bytes


@OPS
def test_groups_of_two_shapes_have_a_pool_each_within_the_same_memory(ops):
    specs, memory = [CacheSpec(1, 1, 16), CacheSpec(2, 1, 16, 40), CacheSpec(1, 1, 16, 40)], 1 << 20
    one, two, third = ops.cache(specs, memory)
    assert one is third and one is not two and one.count == two.count > 0
    used = sum(array.nbytes for pool in (one, two) for array in (pool.keys, pool.values))
    assert used <= memory < used + ops.page_bytes(specs[0]) + ops.page_bytes(specs[1])


def _layer(window):
    layer = model().config.layers[0]
    return replace(layer, mixer=replace(layer.mixer, window=window))


@pytest.mark.parametrize(
    ("windows", "groups", "layers"),
    [
        ([None] * 5, [None], 5),
        ([40] * 5, [40], 5),
        ([40, 40, None] * 2, [40, None, 40], 2),
        ([40, 40, 40, None, None], [40, 40, 40, None, None], 1),
        ([40, 50, None] * 4, [40, 50, None], 4),
    ],
)
def test_groups_have_one_window_and_the_same_number_of_layers(windows, groups, layers):
    specs, places = cache_groups([_layer(window).mixer.cache for window in windows])
    assert [spec.window for spec in specs] == groups and {spec.layers for spec in specs} == {layers}
    assert [specs[group].window for group, _ in places] == windows
    assert len(set(places)) == len(windows) and {layer for _, layer in places} == set(range(layers))


_RESIDENT = """
import resource, sys
from glassloop.ops import choose_ops
from glassloop.ops.kv_cache import CacheSpec
ops = choose_ops(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
pages = ops.cache([CacheSpec(4, 4, 64)], 1 << 30)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("name", ["native", "reference"])
def test_pages_are_taken_from_the_system_only_when_they_are_used(name):
    done = subprocess.run([sys.executable, "-c", _RESIDENT, name], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 100 << 10  # KB, of a gigabyte
