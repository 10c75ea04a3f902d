"""Rows that see more than what is before them: the op sets agree with `transformers`, a row's result does not
depend on its batch, and a batch without reach is computed as ever."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model.tiny import TINY, VOCAB, make
from ops.holes import Hole, hole_alone, hole_batch, hole_logits, random_hole
from ops.random_models import random_model

from glassloop.model.cache import Branches
from glassloop.model.loader import ModelFiles
from glassloop.model.transformer import Transformer
from glassloop.ops.batch import BatchError
from glassloop.ops.native.ops import NativeOps
from glassloop.ops.reference import ReferenceOps

FAMILIES = ("llama", "gemma3", "gpt2", "gemma2", "xglm")


@pytest.fixture(scope="module", params=FAMILIES)
def tiny(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    theirs = make(next(tiny for tiny in TINY if tiny.name == request.param), folder)
    files = ModelFiles(folder)
    return request.param, theirs, files.transformer(ReferenceOps()), files.transformer(NativeOps())


@pytest.mark.parametrize("sizes", [(9, 6, 4), (0, 7, 3), (8, 0, 5), (0, 0, 6), (30, 10, 9)])
def test_a_hole_equals_transformers_with_the_same_mask(tiny, sizes):
    """transformers computes the text in the order of its positions, with a mask that says who sees whom."""
    name, theirs, reference, native = tiny
    if name not in ("llama", "gpt2"):
        pytest.skip("transformers counts a window in positions, and the op sets in slots")
    rng = np.random.default_rng(sum(sizes))
    hole = Hole(*(rng.integers(3, VOCAB, size).tolist() for size in sizes))
    count, order = len(hole.tokens), np.argsort(hole.positions)
    sees = np.array([[key < hole.reach(slot) for key in range(count)] for slot in range(count)])
    mask = torch.where(torch.tensor(sees[np.ix_(order, order)]), 0.0, torch.finfo(torch.float32).min)
    with torch.no_grad():
        made = theirs(
            torch.tensor([[hole.tokens[slot] for slot in order]]),
            attention_mask=mask[None, None],
            position_ids=torch.arange(count)[None],
        ).logits[0]
    expected = np.empty((count, VOCAB), np.float32)
    expected[order] = made.numpy()
    for model, error in ((reference, 1e-4), (native, 2e-2)):
        found = hole_alone(model, hole)
        assert np.abs(found - expected).max() / np.abs(expected).max() < error, model.ops.name


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32))
def test_a_row_of_a_hole_is_the_same_bit_for_bit_in_any_batch(tiny, seed):
    """Random holes beside plain texts; clean rows in random chunks; masked rows again and again, since their
    keys are written over by those of the next pass."""
    model = tiny[3]
    rng = np.random.default_rng(seed)
    holes = [random_hole(rng, VOCAB, 20) for _ in range(rng.integers(1, 4))]
    texts = [rng.integers(0, VOCAB, rng.integers(1, 50)).tolist() for _ in range(rng.integers(0, 3))]
    alone = [hole_alone(model, hole) for hole in holes]
    plain = [Branches(model, 64).forward([(0, 0, text)], every_logit=True) for text in texts]
    cache = Branches(model, 64, branches=len(holes) + len(texts))
    done = [0] * (len(holes) + len(texts))
    for _ in range(200):
        work, others = [], []
        for branch, hole in enumerate(holes):
            clean = hole.clean - done[branch]
            if done[branch] == hole.clean or rng.random() < 0.2:  # the last clean rows and the masks
                work.append((branch, hole, done[branch], len(hole.tokens)))
            elif step := int(rng.integers(0, clean + 1)):
                work.append((branch, hole, done[branch], done[branch] + step))
        for number, text in enumerate(texts):
            branch = len(holes) + number
            if step := int(rng.integers(0, len(text) - done[branch] + 1)):
                others.append((branch, done[branch], text[done[branch] : done[branch] + step]))
        if not work:
            continue
        logits, row = hole_logits(cache, model, work, others), 0
        for branch, hole, first, end in work:
            assert logits[row : row + end - first].tobytes() == alone[branch][first:end].tobytes()
            row += end - first
            done[branch] = min(end, hole.clean)
        for branch, first, ids in others:
            expected = plain[branch - len(holes)][first : first + len(ids)]
            assert logits[row : row + len(ids)].tobytes() == expected.tobytes()
            row += len(ids)
            done[branch] += len(ids)
        if all(done[branch] == hole.clean for branch, hole in enumerate(holes)) and rng.random() < 0.5:
            break


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32))
def test_a_causal_reach_changes_no_bit(seed):
    rng = np.random.default_rng(seed)
    config, weights = random_model(rng)
    for ops in (NativeOps(), ReferenceOps()):
        model = Transformer(config, weights, ops)
        ids = rng.integers(0, config.vocab_size, rng.integers(1, 80)).tolist()
        cache = Branches(model, 96)
        plain = cache.batch([(0, 0, ids)], every_logit=True)
        expected = np.array(model.forward(plain, cache.pages))
        found = model.forward(plain._replace(reach=[at + 1 for at in plain.positions]), cache.pages)
        assert found.tobytes() == expected.tobytes(), ops.name


@pytest.mark.parametrize("ops", [NativeOps(), ReferenceOps()], ids=lambda ops: ops.name)
def test_a_wrong_reach_is_refused_in_words(ops):
    config, weights = random_model(np.random.default_rng(1))
    model = Transformer(config, weights, ops)
    cache, hole = Branches(model, 96), Hole([1] * 5, [1] * 3, [0] * 4)
    batch = hole_batch(cache, [(0, hole, 0, 12)])
    with pytest.raises(BatchError, match="row 3 has the reach 13; one from 4 to 12 is expected"):
        model.forward(batch._replace(reach=[*batch.reach[:3], 13, *batch.reach[4:]]), cache.pages)
    with pytest.raises(BatchError, match="12 rows, and a reach for 11"):
        model.forward(batch._replace(reach=batch.reach[1:]), cache.pages)
    with pytest.raises(BatchError, match="row 0 has the position -1"):
        model.forward(batch._replace(positions=[-1, *batch.positions[1:]]), cache.pages)
