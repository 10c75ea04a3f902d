"""Clients that are kept apart share no keys and values and tell nothing of each other, and their answers are
the same as ever."""

from __future__ import annotations

import numpy as np
import pytest
from engine.random_runs import SmallLLM
from engine.small import finish, loop, model, naive, request, same

from glassloop import Sampling
from glassloop.engine.owner import owned_by
from glassloop.engine.tree import KVTree
from glassloop.ops.batch import PAGE

PROMPT = np.random.default_rng(0).integers(0, 256, 100).tolist()


def cached(llm: SmallLLM, owner: str, *, apart: bool) -> int:
    with owned_by(owner, apart=apart):
        return llm.generate(PROMPT, Sampling(seed=1, max_tokens=2)).usage.cached_tokens


def test_a_client_that_is_kept_apart_finds_only_what_it_has_computed_itself():
    llm = SmallLLM()
    assert cached(llm, "alice", apart=True) == 0
    assert cached(llm, "mallory", apart=True) == 0
    assert cached(llm, "alice", apart=True) == cached(llm, "mallory", apart=True) == 99
    with owned_by("eve", apart=True):
        assert llm.logits(PROMPT).shape == (1, 257) and llm.lens.layers(PROMPT).layers
        assert llm.embed(PROMPT).shape == (32,)
    llm.engine.loop.tree.check_integrity()
    assert llm.engine.loop.tree.held == 0


def test_clients_that_share_the_cache_are_told_of_whole_pages():
    llm = SmallLLM()
    cached(llm, "alice", apart=False)
    assert cached(llm, "mallory", apart=False) == 99 // PAGE * PAGE
    assert cached(llm, "", apart=False) == 99  # Python has one client


@pytest.mark.parametrize("seed", range(6))
def test_answers_do_not_depend_on_realms(seed):
    rng = np.random.default_rng(seed)
    small, shared = model(None if seed % 2 else 20), rng.integers(0, 256, 70).tolist()
    asked = []
    for number in range(8):
        beams = {"beam_width": 3} if number == 3 else {"revise": 2, "revise_window": 4} if number == 5 else {}
        sampling = Sampling(seed=number, max_tokens=20, n=1 + (number == 1), **beams)
        made = request(shared[: int(rng.integers(1, 71))], sampling)
        made.owner = made.realm = str(rng.integers(3))
        asked.append(made)
    engine = loop(small, pages=12)
    finish(engine, *asked)
    engine.tree.check_integrity()
    assert engine.tree.held == 0 and len(engine.tree.roots) > 1
    for each in asked:
        if each.sampling.beam_width == 1 and not each.sampling.revise:
            assert all(same(run, naive(small, run)) for run in each.runs)


def test_roots_of_clients_that_have_gone_are_dropped(monkeypatch):
    monkeypatch.setattr("glassloop.engine.tree._MANY_ROOTS", 4)
    tree = KVTree(model(), 4 * model().page_bytes)
    for client in range(50):
        path = tree.match([1, 2, 3], 2, realm=str(client))
        tree.extend(path, [1, 2, 3])
        tree.computed(path)
        tree.release(path)
        tree.check_integrity()
    assert len(tree.roots) <= 8
