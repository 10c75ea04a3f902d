"""One budget of memory for all groups of layers: it is never exceeded, and long sequences keep their room."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassloop.ops.batch import pages_for
from glassloop.ops.kv_cache import CacheSpec, divide_pages, window_pages
from glassloop.ops.native.ops import NativeOps
from glassloop.ops.reference import ReferenceOps

FULL, WINDOWED = CacheSpec("full", 3, 1, 256), CacheSpec("window", 15, 1, 256, 512)  # as Gemma 3 270M


@st.composite
def groups(draw):
    made = draw(st.lists(st.sampled_from([0, 1, 40, 512, 4096]), min_size=1, max_size=3, unique=True))
    return [CacheSpec("window" if window else "full", 1, 1, 2, window) for window in made]


@given(groups(), st.data(), st.integers(2, 10_000), st.integers(1, 200_000))
def test_all_groups_together_fit_into_the_memory(specs, data, pages, context):
    sizes = [data.draw(st.integers(1, 1000)) for _ in specs]
    memory = pages * sum(sizes) + data.draw(st.integers(0, sum(sizes) - 1))
    counts = divide_pages(specs, sizes, memory, context)
    assert sum(count * size for count, size in zip(counts, sizes, strict=True)) <= memory
    least = min(pages, *(window_pages(spec.window) for spec in specs if spec.window), pages)
    assert min(counts) >= least, "each group has pages for one sequence"


@pytest.mark.parametrize("ops", [NativeOps(), ReferenceOps()], ids=lambda ops: ops.name)
def test_long_sequences_have_more_pages_than_an_equal_division_gives(ops):
    sizes = [ops.page_bytes(spec) for spec in (FULL, WINDOWED)]
    for pages in (300, 2000, 20_000):
        memory = pages * sum(sizes)
        full, windowed = divide_pages([FULL, WINDOWED], sizes, memory, 32768)
        assert full >= max(2 * pages, min(pages_for(32768), memory // sizes[0] - 100))
        assert windowed >= min(pages // 2, 18)


@pytest.mark.parametrize("ops", [NativeOps(), ReferenceOps()], ids=lambda ops: ops.name)
def test_pages_take_the_bytes_that_were_told(ops):
    specs = [FULL, WINDOWED, CacheSpec("full", 2, 3, 20)]
    for spec, pages, count in zip(specs, ops.cache(specs, [3, 4, 5]), [3, 4, 5], strict=True):
        assert pages.count == count and pages.page_bytes == ops.page_bytes(spec)
        assert pages.keys.nbytes + pages.values.nbytes == count * pages.page_bytes


_RESIDENT = """
import resource, sys
from glassloop.ops import choose_ops
from glassloop.ops.kv_cache import CacheSpec
ops, spec = choose_ops(sys.argv[1]), CacheSpec("full", 4, 4, 64)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
pages = ops.cache([spec], [(1 << 30) // ops.page_bytes(spec)])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("name", ["native", "reference"])
def test_pages_are_taken_from_the_system_only_when_they_are_used(name):
    done = subprocess.run([sys.executable, "-c", _RESIDENT, name], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 100 << 10  # KB, of a gigabyte
