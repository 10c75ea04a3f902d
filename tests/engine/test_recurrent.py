"""Models with recurrent layers: whatever is kept of states and rows, no bit of a result differs."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from engine.random_runs import SmallLLM
from engine.small import MIXERS, check_held, finish, loop, model, naive, request, same, with_adapters
from engine.test_one_answer import _guess_badly, _prompt, _sampling, _serve

from glassloop.decode.sampling import Sampling
from glassloop.engine.loop import Loop
from glassloop.engine.state_slots import StateSlots
from glassloop.errors import GlassloopError, ModelError
from glassloop.model.cache import Branches
from glassloop.model.cache_groups import CachePlan
from glassloop.model.needed_ops import check_ops
from glassloop.ops.batch import PAGE, BatchError
from glassloop.ops.state_cache import STATE_LINES
from glassloop.train.gradient_ops import TrainOps

SCENARIOS = 12


def _with_slots(monkeypatch: pytest.MonkeyPatch, states: int, rows: int) -> None:
    """Gives caches so many slots, whatever their memory is."""
    monkeypatch.setattr(CachePlan, "slot_counts", lambda plan, memory: (states, rows))


def _forgetful(engine: Loop, random: Random) -> None:
    """Gives back states and rows at random while the engine runs."""
    plan, slots = engine.scheduler.plan, engine.tree.slots
    assert slots is not None

    def planned() -> Any:
        if random.random() < 0.3:
            slots.drop_some(random, random.random())
        return plan()

    engine.scheduler.plan = planned  # type: ignore[method-assign]


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("ops", ["native", "ahead"])
def test_every_run_is_what_the_naive_loop_gives(mixer, ops, monkeypatch):
    drafts = given_back = 0
    for seed in range(SCENARIOS if ops == "native" else SCENARIOS // 3):
        rng = np.random.default_rng([seed, 5])
        window = int(rng.integers(1, 70)) if rng.random() < 0.3 else None
        small = with_adapters(model(window, ops, mixer=mixer))
        monkeypatch.setattr(small.ops, "step_rows", int(rng.choice([16, 40, 512])), raising=False)
        _with_slots(monkeypatch, int(rng.integers(4, 24)), int(rng.integers(3 * PAGE, 8 * PAGE)))
        shared = rng.integers(0, 256, 100).tolist()
        requests = [
            request(_prompt(rng, shared), _sampling(rng), drafts=rng.random() < 0.7)
            for _ in range(int(rng.integers(2, 8)))
        ]
        expected = {run: naive(small, run) for each in requests for run in each.runs}
        engine = loop(small, int(rng.choice([6, 10, 100])), most_running=int(rng.integers(1, 9)))
        _guess_badly(engine, rng, expected)
        _forgetful(engine, Random(seed))
        if seed % 2:  # more are admitted than there is room for
            monkeypatch.setattr(StateSlots, "has_room", lambda slots, branches: True)
        cancelled = _serve(engine, requests, rng)
        check_held(engine)
        for each in requests:
            for run in each.runs:
                if each in cancelled:
                    assert run.tokens == expected[run].tokens[: len(run.tokens)]
                else:
                    assert same(run, expected[run]), f"seed {seed}: {run.sampling}"
                drafts += sum(token.refused is not None for token in run.tokens)
        assert engine.tree.slots is not None
        given_back += engine.tree.slots.states_given_back
    assert drafts and (given_back or ops == "ahead")


def test_it_holds_if_all_slots_are_held_and_runs_give_way(monkeypatch):
    _with_slots(monkeypatch, 4, 3 * PAGE)
    monkeypatch.setattr(StateSlots, "has_room", lambda slots, branches: True)
    small, rng = model(mixer="short_conv"), np.random.default_rng(0)
    sampling = Sampling(max_tokens=40, temperature=0)
    requests = [request(rng.integers(0, 256, 80).tolist(), sampling) for _ in range(8)]
    engine = loop(small, 100, most_running=8)
    runs = finish(engine, *requests)
    assert sum(run.timings.preempted for run in runs) > 5
    assert all(same(run, naive(small, run)) for run in runs)
    check_held(engine)


@pytest.mark.parametrize("mixer", MIXERS)
def test_rows_have_the_same_bits_however_they_are_cut(mixer):
    """Token by token, in random chunks, as a whole, after rejected drafts and from any earlier border."""
    small, rng = model(mixer=mixer), np.random.default_rng(2)
    ids = rng.integers(0, 256, 150).tolist()
    whole = Branches(small, 192).forward([(0, 0, ids)], every_logit=True)
    for size in (1, 31, 32, 33, None, None):
        cache, at, ways_back = _dead_rows(Branches(small, 192)), 0, 6
        while at < len(ids):
            if rng.random() < 0.4:  # a draft that is taken back, over a border now and then
                wrong = rng.integers(0, 256, int(rng.integers(1, 20))).tolist()
                cache.forward([(0, at, wrong)])
            if (
                at >= PAGE and ways_back and rng.random() < 0.3
            ):  # back to a border, the state at which is kept
                at, ways_back = PAGE * int(rng.integers(1, at // PAGE + 1)), ways_back - 1
            part = ids[at : at + (size or int(rng.integers(1, 70)))]
            logits = cache.forward([(0, at, part)], every_logit=True)
            assert logits.tobytes() == whole[at : at + len(part)].tobytes(), (size, at)
            at += len(part)


def _dead_rows(cache: Branches) -> Branches:
    """Fills slots that nothing was written to with what would be seen in any sum."""
    cache.pages[-1].states[:] = np.nan  # type: ignore[attr-defined]
    cache.pages[-1].rows[:] = np.nan  # type: ignore[attr-defined]
    return cache


@pytest.mark.parametrize("mixer", MIXERS)
def test_a_batch_that_lacks_a_state_or_a_row_is_refused(mixer):
    for ops in ("native", "reference"):
        small = model(ops=ops, mixer=mixer)
        for first, line, page in ((40, 0, 0), (40, 1, 1), (40, 8, 1), (64, 0, 1)):
            cache = Branches(small, 96)
            cache.forward([(0, 0, [1] * first)])
            table = cache._table(0)
            kept = table[-STATE_LINES:]
            for wrong in (-1, -2, 10_000):
                before, kept[line, page] = int(kept[line, page]), wrong
                with pytest.raises(BatchError):
                    cache.forward([(0, first, [1, 2])])
                kept[line, page] = before
            cache.forward([(0, first, [1, 2])])
        batch = cache.batch([(0, 66, [3, 4])])._replace(reach=[68, 68])
        with pytest.raises(BatchError, match="reach"):
            small.forward(batch, cache.pages)


@pytest.mark.parametrize("mixer", MIXERS)
def test_a_prefix_is_found_again_to_the_token(mixer, monkeypatch):
    small = model(mixer=mixer)
    engine = loop(small)
    prompt = list(range(100))
    first = finish(engine, request(prompt, Sampling(temperature=0, max_tokens=20)))[0]
    again, longer = finish(
        engine,
        request(prompt, Sampling(temperature=0, max_tokens=5)),
        request(prompt + first.token_ids, Sampling(temperature=0, max_tokens=5)),
    )
    assert again.cached_tokens == 99 and longer.cached_tokens == 119
    # Without the last page's rows, from the border before; without any state, from the beginning.
    slots = engine.tree.slots
    assert slots is not None
    rows = list(slots._with_rows)
    for node in rows:
        slots._drop_rows(node, 0)
    third = finish(engine, request(prompt, Sampling(temperature=0, max_tokens=5)))[0]
    assert third.cached_tokens == 96
    slots.drop_some(Random(1), 1.0)
    last = finish(engine, request(prompt, Sampling(temperature=0, max_tokens=5)))[0]
    assert last.cached_tokens == 0 and same(last, third)
    check_held(engine)


def test_a_long_text_with_forks_stays_within_its_memory(monkeypatch):
    """States are given away, fewer of those near the end; coming back computes little again."""
    small, rng = model(mixer="short_conv"), np.random.default_rng(3)
    states = 24
    _with_slots(monkeypatch, states, 6 * PAGE)
    engine = loop(small, 400)
    tree, slots = engine.tree, engine.tree.slots
    assert isinstance(slots, StateSlots)
    ids = rng.integers(0, 256, 3200).tolist()
    path = tree.match(ids, 0)
    forks = []
    for at in range(0, len(ids), 40):
        if at % 1000 == 0 and at:
            forks.append(at)
            twin = tree.fork(path)
            tree.extend(twin, [1, 2, 3])
            tree.computed(twin)
            tree.release(twin)
        tree.extend(path, ids[at : at + 40])
        tree.computed(path)
    tree.release(path)
    tree.check_integrity()
    assert slots.states_kept <= states and slots.states_given_back > 50
    for back in (1, 33, 100, 300, 800, 1600, 2500):
        length = len(ids) - back
        found = tree.match(ids, length)
        assert length - found.length <= max(2 * PAGE, back), back
        tree.release(found)
    for at in forks:
        found = tree.match(ids, at)
        assert at - found.length <= 256, at
        tree.release(found)


def test_masks_are_refused_in_words():
    llm = SmallLLM(transformer=model(mixer="short_conv"))
    with pytest.raises(GlassloopError, match="recurrent layers"):
        llm.diffuse("text")
    assert not llm.can_diffuse
    with pytest.raises(ModelError, match="operation conv, which the op set train lacks"):
        check_ops(model(mixer="short_conv").config, TrainOps())


def test_the_lens_shows_the_layers_with_attention():
    llm = SmallLLM(transformer=model(mixer="short_conv"))
    ids = list(range(50))
    assert llm.lens.attention(ids).weights.shape == (2, 4, 50)
    assert len(llm.lens.layers(ids).layers) == 4
