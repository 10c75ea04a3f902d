"""The counters of the native op set: they say which units of work each op had, and change no result."""

from __future__ import annotations

import numpy as np
import pytest
from model.tiny import TINY, VOCAB, make

from glassloop.model.cache import Branches
from glassloop.model.loader import ModelFiles
from glassloop.ops.native import library
from glassloop.ops.native.ops import NativeOps


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    make(TINY[0], folder)
    return ModelFiles(folder).transformer(NativeOps())


def _forward(model, rows: int) -> np.ndarray:
    ids = np.random.default_rng(rows).integers(3, VOCAB, rows).tolist()
    return Branches(model, 64).forward([(0, 0, ids)])


def test_a_profile_has_every_op_with_its_units_and_leaves_the_logits_as_they_are(model):
    plain = _forward(model, 40)
    with model.ops.profile() as profile:
        measured = _forward(model, 40)
    assert measured.tobytes() == plain.tobytes()
    *ops, end = profile
    assert end.kind == "end" and not end.units
    assert all(op.units > 0 and op.working >= 0 and op.waiting >= 0 for op in ops)
    linears = [op.matrix.out for op in ops if op.kind == "linear"]
    assert linears[-1] == model.config.vocab_size
    assert [op.is_fine for op in ops if op.kind == "linear"] == [False] * (len(linears) - 1) + [True]
    assert [op.kind for op in ops if op.rows == "wanted"][-1] == "linear"


def test_units_add_up_over_runs_and_end_with_the_context(model):
    with model.ops.profile() as once:
        _forward(model, 7)
    with model.ops.profile() as thrice:
        for _ in range(3):
            _forward(model, 7)
    assert [op.units for op in thrice] == [3 * op.units for op in once]
    before = list(thrice)
    _forward(model, 7)
    assert thrice == before


def test_a_program_that_did_not_run_is_not_in_the_profile(model):
    with model.ops.profile() as profile:
        pass
    assert profile == []


@pytest.mark.parametrize("what", range(len(library.LIMITS)))
def test_the_limits_count_what_they_do(what):
    native = library.library()
    one = native.gl_multiply(1, 10, what)
    assert one == 10 * 8 * native.gl_lanes() * (16 if library.LIMITS[what] == "words" else 32)
    assert native.gl_multiply(7, 10, what) == 7 * one
    array = np.ones((1 << 20) + 5, np.float32)
    assert native.gl_read(library.address(array), len(array)) == 4 << 20
