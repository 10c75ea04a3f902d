"""Edits with any mixture of options, adapters and origins: whatever an edit returns can be computed again, a
budget ends what can end, and a run that cannot be continued is refused by name."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from hashlib import sha256
from typing import Any

import numpy as np
import pytest
from diffuse.small import masked_llm
from engine.random_runs import PROMPT, SmallLLM, random_sampling, small_llm
from engine.small import EOS, with_adapters

from glassloop import GlassloopError, Run, Sampling
from glassloop.decode.task_kinds import KINDS
from glassloop.edit.record import Edit
from glassloop.engine.adapters import LoadedAdapter
from glassloop.record.store.store import Store

TEXT = "the quick brown fox jumps"
LETTERS = tuple(range(97, 123))
DRAWN = Sampling(seed=3, temperature=5.0, max_tokens=12, allowed_token_ids=LETTERS)


@cache
def adapted_llm() -> SmallLLM:
    llm = SmallLLM(seed=7)  # a model that no other test uses
    for number, adapter in enumerate(with_adapters(llm.transformer).adapters.loaded):
        if adapter is not None:
            hash = sha256(adapter.name.encode()).hexdigest()  # as a file has it
            llm.engine.loop.adapters.add(adapter.name, LoadedAdapter(number, hash))
    return llm


def many_a(text: str) -> float:
    return min(text.count("a"), 9) / 9


def runs_of(edit: Edit) -> list[Run]:
    """Every run that an edit returns."""
    proposed = [run for each in edit.proposals for run in (each.drawn, each.run)]
    made = [edit.draft, edit.run, *proposed]
    return list({id(run): run for run in made if run is not None}.values())


def check_replays(llm: SmallLLM, edit: Edit, path: Any, **options: Any) -> None:
    for run in runs_of(edit):
        verdict = run.replay()
        assert verdict.identical, f"{run.reason} at {run.fork_at}: {verdict}"
    edit.save(path)
    for each in (edit, Edit.load(path)):
        assert each.replay(llm, **options), str(each.replay(llm, **options))


def drawn_options(rng: np.random.Generator, **fixed: Any) -> Sampling:
    """Options that draw, some of them with an adapter or a timeout that is never reached."""
    length, temperature = int(rng.integers(6, 16)), float(rng.choice([0.7, 1.5, 3.0]))
    common = {"max_tokens": length, "min_tokens": 0, "temperature": temperature, "regex": None}
    made = random_sampling(rng, **common | fixed)
    adapter = [None, "one", "two"][int(rng.integers(3))]
    return replace(made, adapter=adapter, timeout=[None, 600.0][int(rng.integers(2))])


def random_draft(rng: np.random.Generator, llm: SmallLLM, folder: Any) -> Run:
    """A run of this engine, of a file, of a store, or a fork."""
    run = llm.generate(PROMPT, replace(drawn_options(rng), timeout=None, ignore_eos=bool(rng.integers(2))))
    origin = int(rng.integers(4))
    if origin == 0 and run.tokens:
        return llm.fork(run, int(rng.integers(len(run.tokens))), temperature=2.0, max_tokens=20)
    if origin == 1:
        run.save(folder / "run.glass")
        return Run.load(folder / "run.glass")
    if origin == 2:
        store = Store(folder / "runs.db")
        store.put(run)
        store.flush()
        return store.get(run.id)
    return run


@pytest.mark.parametrize("kind", ["infill", "rewrite", "repair", "repair a run", "repair, check=", "sharpen"])
@pytest.mark.parametrize("seed", range(4))
def test_everything_that_an_edit_returns_can_be_computed_again(kind, seed, tmp_path):
    llm = adapted_llm()
    rng = np.random.default_rng([seed, *kind.encode()])
    options: dict[str, Any] = {"sampling": KINDS[kind.removesuffix(" a run")].acting(drawn_options(rng))}
    method = ["rerank", "metropolis"][int(rng.integers(2))]
    checked: dict[str, Any] = {}
    try:
        if kind == "infill":
            edit = llm.infill(TEXT, " over", 4, candidates=3, method=method, **options)
        elif kind == "rewrite":
            edit = llm.rewrite(TEXT, [(4, 7), (16, 19)], candidates=3, method=method, window=2, **options)
        elif kind == "repair":
            edit = llm.repair(TEXT, prompt="now ", candidates=2, budget=600, window=4, tokens=3, **options)
        elif kind == "repair a run":
            run = random_draft(rng, llm, tmp_path)
            edit = llm.repair(run, candidates=2, budget=300, window=4, tokens=3, **options)
        elif kind == "repair, check=":
            run, checked = random_draft(rng, llm, tmp_path), {"check": many_a}
            own = {} if rng.random() < 0.5 else options
            edit = llm.repair(run, check=many_a, candidates=2, budget=120, **own)
        else:
            edit = llm.sharpen(TEXT, 2.0, steps=4, block=5, **options)
    except GlassloopError as error:  # stages at odds, or no replacement that fits
        assert "no token is left" in str(error) or error.field == "candidates", error
        return
    check_replays(llm, edit, tmp_path / "edit.json", **checked)


# ── a verifier ─────────────────────────────────────────────────────────────────────────────────────────────


def test_the_end_of_a_run_is_drawn_as_a_branch_of_it(tmp_path):
    """The kept tokens, the adapter and the conversation are those of the run."""
    llm = adapted_llm()
    run = llm.generate(PROMPT, replace(DRAWN, adapter="one"))
    edit = llm.repair(run, check=many_a, candidates=3, budget=150)
    assert edit.proposals and edit.draft.above is run and edit.draft.token_ids == run.token_ids
    for each in edit.proposals:
        assert each.run.sampling.adapter == "one" and set(each.run.adapters) == {"one"}
        assert each.run.fork_at == each.start
        assert each.run.token_ids[: each.start] == each.run.above.token_ids[: each.start]
        assert len(each.run.tokens) <= DRAWN.max_tokens
    check_replays(llm, edit, tmp_path / "edit.json", check=many_a)


@pytest.mark.parametrize(
    "stop", [{"logit_bias": {EOS: 15.0}}, {"stop_token_ids": [98], "logit_bias": {98: 5.0}}]
)
def test_a_repair_of_a_run_that_ended_by_itself_replays(stop, tmp_path):
    llm = small_llm()
    run = llm.generate(PROMPT, Sampling(seed=5, max_tokens=30, temperature=4.0, **stop))
    assert run.finish_reason == "stop"
    edit = llm.repair(run, check=many_a, candidates=2, budget=200)
    assert len(edit.proposals) > 4
    check_replays(llm, edit, tmp_path / "edit.json", check=many_a)


@pytest.mark.parametrize(
    "ending",
    [{"allowed_token_ids": [EOS]}, {"stop_token_ids": list(range(256))}, {"logit_bias": {EOS: 1000.0}}],
)
def test_a_budget_ends_draws_that_end_at_once(ending):
    llm = small_llm()
    run = llm.generate(PROMPT, DRAWN)
    sampling = Sampling(seed=1, max_tokens=20, **ending)
    edit = llm.repair(run, check=lambda text: False, budget=60, candidates=3, sampling=sampling)
    assert len(edit.proposals) <= 60
    assert edit.sampled >= len(edit.proposals) and edit.sampled + edit.scored >= 60
    assert edit.text == run.text
    assert edit.replay(llm, check=lambda text: False)


def test_beams_are_refused_where_the_end_of_a_text_is_drawn():
    llm = small_llm()
    run = llm.generate(PROMPT, DRAWN)
    with pytest.raises(GlassloopError, match="drawn one by one") as raised:
        llm.repair(run, check=many_a, sampling=Sampling(beam_width=3))
    assert raised.value.field == "beam_width"
    searched = llm.generate(PROMPT, Sampling(beam_width=3, max_tokens=8))
    assert llm.repair(searched, check=many_a, budget=60).given["sampling"]["beam_width"] == 1


def test_a_run_that_cannot_be_continued_is_refused_by_name():
    llm, other = small_llm(), SmallLLM(seed=1)
    run = other.generate(PROMPT, DRAWN)
    for check in (None, many_a):
        with pytest.raises(GlassloopError, match="made by another model") as raised:
            llm.repair(run, check=check)
        assert raised.value.field == "run"
    masked = masked_llm()
    filled = masked.diffuse(PROMPT, Sampling(seed=1, max_tokens=8), diffusion=4)
    with pytest.raises(GlassloopError, match="written by filling masks") as raised:
        masked.repair(filled, check=many_a)
    assert raised.value.field == "run"
    with pytest.raises(GlassloopError, match="op set") as raised:
        small_llm("reference").repair(
            replace(small_llm().generate(PROMPT, DRAWN), llm=None, model_hash=f"{0:064x}"), check=many_a
        )
    assert raised.value.field == "run"
    assert not run.children and not filled.children
