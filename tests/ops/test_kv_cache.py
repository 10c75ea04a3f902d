"""One pool of pages for all groups of layers, within one budget of memory."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
from engine.small import model

from glassloop.errors import GlassloopError
from glassloop.model.config import LayerConfig
from glassloop.model.transformer import Transformer
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
def test_pages_of_two_sizes_are_refused(ops):
    with pytest.raises(GlassloopError, match="one size is expected"):
        ops.cache([CacheSpec(1, 1, 16), CacheSpec(2, 1, 16, 40)], 1 << 20)


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
    of = Transformer.__new__(Transformer)
    of.config = replace(model().config, layers=tuple(LayerConfig(window, None) for window in windows))
    specs, places = of._cache_groups()
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
