"""One request, one answer: whatever else runs, and however little room there is, every run is what the naive
loop gives, bit for bit."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from engine.small import (
    EOS,
    drafting_model,
    finish,
    loop,
    model,
    naive,
    request,
    same,
    with_adapters,
)

from glassloop.decode.diffusion import Diffusion
from glassloop.decode.sampling import Sampling
from glassloop.diffuse.write import DiffusionRequest
from glassloop.engine.ahead import Flight
from glassloop.engine.loop import Loop
from glassloop.engine.request import Request
from glassloop.engine.tasks import sample
from glassloop.engine.tasks import task as task_module
from glassloop.engine.tasks.masked import Mask
from glassloop.engine.tasks.task import PlannedCall
from glassloop.model.transformer import Transformer
from glassloop.record.run import Run

# Each scenario has a dozen requests or so. More for who wants to be surer: GLASSLOOP_SCENARIOS=5000.
SCENARIOS = int(os.environ.get("GLASSLOOP_SCENARIOS", "120"))
AUDITED, AUDITED_AHEAD = 30, 8  # the first ones, which one test looks at as a whole


def _sampling(rng: np.random.Generator) -> Sampling:
    """Any mixture of options; most of them off."""
    longest = int(rng.choice([30, 30, 70]))
    given: dict[str, Any] = {"max_tokens": int(rng.integers(1, longest)), "seed": int(rng.integers(1000))}
    given["logprobs"] = int(rng.integers(0, 4))

    def now_and_then(**options: Any) -> None:
        if rng.random() < 0.25:
            given.update(options)

    now_and_then(temperature=float(rng.choice([0.0, 0.0, 0.3, 0.7, 1.5])))
    now_and_then(top_k=int(rng.integers(1, 40)))
    now_and_then(top_p=float(rng.uniform(0.1, 1)))
    now_and_then(min_p=0.05)
    now_and_then(repetition_penalty=1.2, frequency_penalty=0.3)
    now_and_then(no_repeat_ngram_size=2)
    now_and_then(dry_multiplier=0.8)
    now_and_then(xtc_probability=0.5, xtc_threshold=0.05)
    now_and_then(mirostat_tau=float(rng.uniform(0.5, 6)), mirostat_eta=float(rng.choice([0.1, 0.5])))
    now_and_then(stop=[chr(rng.integers(33, 127)), "ab"])
    now_and_then(logit_bias={EOS: float(rng.uniform(-2, 4))})
    now_and_then(min_tokens=min(5, given["max_tokens"]))
    now_and_then(stop_on_repetition=3)
    now_and_then(include_stop=True)
    now_and_then(n=int(rng.integers(2, 6)))
    now_and_then(prompt_logprobs=2)
    now_and_then(adapter=str(rng.choice(["one", "two"])))
    if rng.random() < 0.15 and find_spec("llguidance"):
        given["regex"] = str(rng.choice(["[a-f]+", "(ab|cd)*x?", "[0-9]{3,9}"]))
    return Sampling(**given)


def _prompt(rng: np.random.Generator, shared: list[int]) -> list[int]:
    """Often with a beginning that others have too, often with repetitions in it."""
    own = rng.integers(0, 256, rng.integers(1, 60)).tolist()
    if rng.random() < 0.3:
        own = own[:5] * int(rng.integers(2, 8))
    return shared[: rng.integers(0, len(shared) + 1)] + own if rng.random() < 0.6 else own


class _Adversary:
    """Guesses at random, always as many as it may."""

    name = "lookup"
    is_own = True

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def guess(self, tokens, room):
        return self._rng.integers(0, 256, min(room, 6)).tolist()

    def learn(self, branch, place):
        pass


class _Oracle:
    """Knows what will come, but for a slip now and then: guesses long and mostly right."""

    name = "lookup"
    is_own = True

    def __init__(self, rng: np.random.Generator, prompt_length: int, expected: list[int]) -> None:
        self._rng, self._prompt_length, self._expected = rng, prompt_length, expected

    def guess(self, tokens, room):
        made = len(tokens) - self._prompt_length
        guess = self._expected[made : made + min(room, int(self._rng.integers(1, 9)))]
        return [token if self._rng.random() < 0.9 else (token + 1) % 256 for token in guess]

    def learn(self, branch, place):
        pass


@pytest.mark.parametrize("seed", range(AUDITED, max(AUDITED + 1, SCENARIOS)))
def test_every_run_is_what_the_naive_loop_gives(seed, monkeypatch):
    scenario(seed, monkeypatch)


@pytest.mark.parametrize("seed", range(AUDITED_AHEAD, max(AUDITED_AHEAD + 1, SCENARIOS // 5)))
def test_it_holds_if_steps_are_computed_ahead(seed, monkeypatch):
    scenario(seed, monkeypatch, "ahead")


def test_the_scenarios_have_what_they_are_about(monkeypatch):
    """They are worth something only if it happens in them. (The runs are compared here, too.)"""
    happened: Counter[str] = Counter()
    for seed in range(AUDITED):
        happened += scenario(seed, monkeypatch)
    assert {kind for kind, count in happened.items() if count > 0} == {
        "accepted drafts",
        "adapters",
        "cached prefixes",
        "cancelled",
        "chunked prompts",
        "diffused texts",
        "evicted pages",
        "grammars",
        "places taken back",
        "preempted passes",
        "preempted runs",
        "preempted samples",
        "refused drafts",
        "samples",
        "scored prompts",
        "steps with several tasks",
        "stop strings",
        "windows",
    }


def test_the_scenarios_have_steps_ahead(monkeypatch):
    happened: Counter[str] = Counter()
    for seed in range(AUDITED_AHEAD):
        happened += scenario(seed, monkeypatch, "ahead")
    assert happened["steps ahead"] > 50 and happened["steps ahead with prompts"] > 0
    assert happened["wrong predictions"] > 3 and happened["promises of runs that ended"] > 0


def scenario(seed: int, monkeypatch: pytest.MonkeyPatch, ops: str = "native") -> Counter[str]:
    """Random requests in a random engine, each run compared with the naive loop. Returns what happened."""
    rng = np.random.default_rng(seed)
    step_rows, rows_beside = int(rng.choice([16, 40, 512])), int(rng.choice([1, 7, 128]))
    monkeypatch.setattr(task_module, "_SCORED_ROWS", int(rng.choice([1, 5, 64])))
    window = int(rng.integers(1, 70)) if rng.random() < 0.5 else None
    drafts_itself = window is None and rng.random() >= 0.5 and ops == "native"
    small = with_adapters(drafting_model() if drafts_itself else model(window, ops))
    monkeypatch.setattr(sample, "_TOO_MANY_TO_GUESS", (1, 1, 3, 32)[seed % 4])
    monkeypatch.setattr(small.ops, "step_rows", step_rows, raising=False)
    monkeypatch.setattr(small.ops, "rows_beside", rows_beside, raising=False)
    shared = rng.integers(0, 256, 70).tolist()
    requests = [
        request(
            _prompt(rng, shared), _sampling(rng), priority=int(rng.integers(0, 2)), drafts=rng.random() < 0.7
        )
        for _ in range(int(rng.integers(2, 14)))
    ]
    expected = {run: naive(small, run) for each in requests for run in each.runs}
    diffused = _diffused(np.random.default_rng([seed, 1]), small, shared, step_rows)
    expected |= {run: alone for each in diffused for run, alone in _alone(small, each).items()}
    requests += diffused
    clients = np.random.default_rng([seed, 2])
    for each in requests if seed % 2 else ():  # of several clients, which take turns
        each.owner = str(clients.integers(3))
    least = max(len(each.prompt_ids) + each.sampling.max_tokens for each in requests) // 32 + 3
    pages = least + int(rng.choice([0, 0, 1, 12]))
    engine = loop(small, pages, most_running=int(rng.integers(1, 9)))
    _guess_badly(engine, rng, expected)
    happened = _watched(engine)
    cancelled = _serve(engine, requests, rng)
    engine.tree.check_integrity()
    assert engine.tree.held == 0 and not engine.scheduler.running and not engine.scheduler.waiting
    for each in requests:
        for run in each.runs:
            told = f"seed {seed}: {run.sampling}"
            if each in cancelled:
                assert run.finish_reason is not None, told
                assert run.tokens == expected[run].tokens[: len(run.tokens)], told
            else:
                assert same(run, expected[run]), told
                assert run.passes == expected[run].passes, told
                assert len(run.prompt_tokens) == (len(run.prompt_ids) - 1) * (
                    run.sampling.prompt_logprobs > 0
                )
    runs = [run for each in requests for run in each.runs]
    happened["cancelled"] += len(cancelled)
    happened["evicted pages"] += engine.tree.evicted
    happened["windows"] += [spec.window for spec in small.cache_specs] != [None]
    for run in runs:
        happened["accepted drafts"] += run.drafts.accepted
        happened["refused drafts"] += sum(token.refused is not None for token in run.tokens)
        happened["preempted runs"] += run.timings.preempted
        happened["cached prefixes"] += run.cached_tokens > 0
        happened["samples"] += run.sample > 0 and bool(run.tokens)
        happened["preempted samples"] += len(run.samples) > 1 and run.timings.preempted > 0
        happened["adapters"] += run.sampling.adapter is not None and run.cached_tokens > 0
        happened["scored prompts"] += bool(run.prompt_tokens)
        happened["grammars"] += run.sampling.regex is not None and bool(run.tokens)
        happened["stop strings"] += run.stop_reason in run.sampling.stop
        if run.diffusion is not None:
            happened["diffused texts"] += bool(run.tokens)
            happened["preempted passes"] += run.timings.preempted
            happened["places taken back"] += any(record.unfilled for record in run.passes)
    return happened


def _diffused(
    rng: np.random.Generator, small: Transformer, shared: list[int], step_rows: int
) -> list[Request]:
    """Now and then, some texts that are written by diffusion."""
    made: list[Request] = []
    if rng.random() < 0.6:
        return made
    number = int(rng.integers(0, 3))
    mask = Mask(0, number)
    for _ in range(int(rng.integers(1, 3))):
        sampling = replace(_sampling(rng), prompt_logprobs=0, adapter=None, mirostat_tau=0.0)
        options = Diffusion(
            block=int(rng.integers(1, min(24, step_rows // 2) + 1)),
            passes=None if rng.random() < 0.5 else int(rng.integers(1, 9)),
            threshold=float(rng.uniform(0.1, 1)),
            order=str(rng.choice(["confidence", "entropy", "left", "random"])),  # type: ignore[arg-type]
            revise=int(rng.integers(0, 3)) if sampling.constraint is None else 0,
            revise_by=str(rng.choice(["confidence", "likelihood"])),  # type: ignore[arg-type]
        )
        plain = request(_prompt(rng, shared), sampling, priority=int(rng.integers(0, 2)))
        made.append(_by_diffusion(plain, options, mask))
    return made


def _by_diffusion(plain: Request, options: Diffusion, mask: Mask) -> DiffusionRequest:
    known = (plain.prompt_ids, plain.sampling, plain.runs)
    for run in plain.runs:
        run.diffusion = options.to_dict()
    return DiffusionRequest(*known, priority=plain.priority, built=plain.built, options=options, mask=mask)


def _alone(small: Transformer, asked: Request) -> dict[Run, Run]:
    """Returns what each run of a request is if nothing else is computed and there is room for everything."""
    assert isinstance(asked, DiffusionRequest)
    alone = {}
    for run in asked.runs:
        copy = Run("alone", run.prompt_ids, run.seed, run.context, run.sampling, run.salt, sample=run.sample)
        single = Request(asked.prompt_ids, asked.sampling, [copy], built=asked.built)
        finish(loop(small), _by_diffusion(single, asked.options, asked.mask))
        assert copy.error is None or "no token is left" in str(copy.error), (copy.error, asked.options)
        alone[run] = copy
    return alone


def _watched(engine: Loop) -> Counter[str]:
    """Counts, while the engine runs, prompts that are computed in chunks and steps that tasks share."""
    happened: Counter[str] = Counter()
    plan = engine.scheduler.plan

    def planned() -> list[PlannedCall]:
        calls = plan()
        works = [work for call in calls for work in call.works]
        happened["chunked prompts"] += sum(work.wanted == 0 for work in works)
        happened["steps with several tasks"] += len({work.task for work in works}) > 1
        return calls

    settle = engine.ahead._settle

    def settled(following: Flight, predicted: Sequence[int]) -> None:
        settle(following, predicted)
        works = following.call.works
        happened["steps ahead"] += 1
        happened["steps ahead with prompts"] += 0 < len(following.promised) < len(works)
        happened["wrong predictions"] += len(following.dropped)
        happened["promises of runs that ended"] += sum(work.ids[0] < 0 and work.task.ended for work in works)

    engine.scheduler.plan = planned  # type: ignore[method-assign]
    engine.ahead._settle = settled  # type: ignore[method-assign]
    return happened


def _guess_badly(engine: Loop, rng: np.random.Generator, expected: dict[Run, Run]) -> None:
    """Some runs get a drafter that is mostly wrong or mostly right; the others keep their own."""
    own_guesser = engine.drafts.guesser

    def guesser(run: Run, *given):
        kind = rng.integers(4)
        if kind == 0:
            return _Adversary(rng)
        if kind == 1:
            return _Oracle(rng, len(run.prompt_ids), expected[run].token_ids)
        return own_guesser(run, *given)

    engine.drafts.guesser = guesser  # type: ignore[method-assign]


def _serve(engine: Loop, requests: list[Request], rng: np.random.Generator) -> set[Request]:
    """Requests come at random steps; a few are cancelled on the way."""
    waiting, cancelled = list(requests), set()
    while waiting or engine.busy:
        while waiting and rng.random() < 0.4:
            engine.add(waiting.pop())
        if engine.busy and rng.random() < 0.02:
            open_requests = list(engine.tasks.by_request)
            victim = open_requests[int(rng.integers(len(open_requests)))]
            engine.cancel(victim)
            cancelled.add(victim)
        engine.step()
        if rng.random() < 0.2:
            engine.tree.check_integrity()
    return cancelled


def test_it_holds_in_little_room():
    small = model(None)
    rng = np.random.default_rng(1)
    prompts = [rng.integers(0, 256, 90).tolist() for _ in range(6)]
    requests = [request(prompt, Sampling(max_tokens=60, seed=1, temperature=0)) for prompt in prompts]
    engine = loop(small, pages=9)
    runs = finish(engine, *requests)
    assert sum(run.timings.preempted for run in runs) > 0 and engine.tree.evicted > 0
    assert all(same(run, naive(small, run)) for run in runs)
