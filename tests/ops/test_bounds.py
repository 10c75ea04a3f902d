"""No number that Python hands to an op set reaches memory that is not its own: it is refused, in one line,
and nothing was computed or changed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model.tiny import TINY, VOCAB, make
from ops.bad_numbers import check_batches, check_rules

from glassloop.errors import ModelError
from glassloop.model.cache import Branches
from glassloop.model.loader import ModelFiles
from glassloop.ops.batch import BatchError
from glassloop.ops.kv_cache import CacheSpec
from glassloop.ops.native import program
from glassloop.ops.native.ops import NativeOps
from glassloop.ops.quant import FORMATS
from glassloop.ops.reference import ReferenceOps
from glassloop.ops.tensor import Tensor


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32))
def test_a_batch_with_a_wrong_number_is_refused(seed):
    check_batches(seed)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32))
def test_a_rule_that_does_not_fit_is_refused(seed):
    check_rules(seed)


def test_nothing_is_computed_of_a_batch_in_parts_whose_last_token_is_wrong(tmp_path, monkeypatch):
    monkeypatch.setattr(program, "ROWS_PER_THREAD", 4)
    make(TINY[0], tmp_path)
    cache = Branches(ModelFiles(tmp_path).transformer(NativeOps()), 64)
    before = cache.pages[0].keys.tobytes()
    with pytest.raises(BatchError):
        cache.forward([(0, 0, [5] * 59 + [VOCAB])])
    assert cache.pages[0].keys.tobytes() == before
    cache.forward([(0, 0, [5] * 60)])
    assert cache.pages[0].keys.tobytes() != before


@pytest.mark.parametrize("ops", [NativeOps(), ReferenceOps()], ids=lambda ops: ops.name)
def test_pages_are_copied_only_where_there_are_any(ops):
    spec = CacheSpec(1, 1, 16)
    (pages,) = ops.cache([spec], 3 * ops.page_bytes(spec))
    for source, target in ((-1, 0), (0, -1), (3, 0), (0, 3), (0, 2**40)):
        with pytest.raises(BatchError, match="there is no page"):
            pages.copy(source, target)


def test_a_matrix_has_the_bytes_of_its_shape():
    ops = NativeOps()
    for shape, size in (((4, 32), 71), ((4, 33), 72), ((0, 32), 0), ((2**40, 32), 72)):
        tensor = Tensor("bad", shape, FORMATS["Q4_0"], np.zeros(size, np.uint8))
        with pytest.raises(ModelError, match="bad has"):
            ops.matrix(tensor)
