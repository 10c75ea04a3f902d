"""Masked passes in the engine: equal to the naive way, alone or beside any other work, preempted or not, and
nothing of them is found in the KV tree by others."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from diffuse.small import MASK, MaskedLLM, masked_llm, naive_logits, naive_text
from engine.random_runs import PROMPT
from engine.small import CONTEXT, EOS, loop, model, naive, request, same, with_adapters
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glassloop import GlassloopError, Sampling
from glassloop.decode.diffusion import Diffusion
from glassloop.decode.stop import Ending
from glassloop.diffuse.hole import fill_holes
from glassloop.diffuse.masked_rows import MaskedRows
from glassloop.edit.infill import infill
from glassloop.engine.tasks.masked import Mask, Masked, MaskedRow, Pass

OPTIONS = Diffusion(block=8, threshold=0.5)
REVISED = Diffusion(block=8, threshold=0.5, revise=2, revise_by="likelihood")
LETTERS = Sampling(seed=1, allowed_token_ids=[97, 98, 99])


def _sampling(seed: int, **more) -> Sampling:
    return Sampling(seed=seed, temperature=0.8, max_tokens=30, **more)


def _sharp() -> Sampling:
    return Sampling(seed=2, temperature=0.5, max_tokens=8)


@pytest.mark.parametrize("seed", range(4))
def test_a_text_is_what_the_naive_way_writes(seed):
    llm = masked_llm()
    run = llm.diffuse(PROMPT, _sampling(seed), diffusion=OPTIONS)
    assert run.token_ids == naive_text(llm, run, OPTIONS)
    assert run.finish_reason in ("length", "stop") and all(token.source == "mask" for token in run.tokens)
    assert llm.diffuse(PROMPT, _sampling(seed), diffusion=OPTIONS).tokens == run.tokens
    filled = [each for record in run.passes for each in record.filled]
    assert [each.id for each in sorted(filled, key=lambda each: each.at)][: len(run.tokens)] == run.token_ids


@pytest.mark.parametrize("seed", range(12))
def test_a_token_that_ends_the_text_ends_the_block(seed):
    """It may be filled before places on both sides of it. The places behind it are not computed any more, and
    every pass before and after is explained."""
    llm = masked_llm()
    letters = [*range(97, 105)]
    sampling = _sampling(seed, allowed_token_ids=letters, stop_token_ids=letters[:1])
    for options in (Diffusion(block=12, threshold=None, most=1), Diffusion(block=12, revise=2, retake=0.5)):
        run = llm.diffuse(PROMPT, sampling, diffusion=options)
        assert run.finish_reason in ("stop", "length") and 97 not in run.token_ids
        if not options.revise:
            assert run.token_ids == naive_text(llm, run, options)
        for at, token in enumerate([*run.tokens, *([] if run.end is None else [run.end])]):
            assert llm.explain(run, at).winner.id == token.id
    ignoring = _sampling(seed, allowed_token_ids=[97, EOS], ignore_eos=True)
    run = llm.diffuse(PROMPT, ignoring, diffusion=options)
    assert run.finish_reason == "length" and {97, EOS} == set(run.token_ids)


def test_the_last_token_of_a_page_and_the_first_of_the_next():
    """The plain text ends anywhere in a page."""
    llm = masked_llm()
    for length in (1, 2, 31, 32, 33, 64, 65):
        run = llm.diffuse([65] * length, _sampling(1), diffusion=OPTIONS)
        assert run.token_ids == naive_text(llm, run, OPTIONS), length
    llm.engine.call(llm.engine.loop.tree.check_integrity)


def _hole(llm: MaskedLLM, seed: int, before: list[int], after: list[int], width: int):
    return fill_holes(llm, before, after, width, [_sampling(seed)], [0], OPTIONS, llm.mask)[0]


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 10**6))
def test_a_hole_is_what_the_naive_way_fills(seed):
    llm, rng = masked_llm(), np.random.default_rng(seed)
    before, after = (rng.integers(1, 256, rng.integers(1, 50)).tolist() for _ in range(2))
    width = int(rng.integers(1, 9))
    hole = _hole(llm, seed, before, after, width)
    rows, tokens = MaskedRows(before, width, after, llm.mask), [None] * width
    for record in hole.passes:
        logits = naive_logits(llm.transformer, rows, rows.of_pass(tokens))
        masks = [place for place, token in enumerate(tokens) if token is None]
        for each in record.filled:
            row = logits[masks.index(each.at)].astype(np.float64)
            assert each.raw_logprob == pytest.approx(row[each.id] - np.logaddexp.reduce(row), abs=1e-6)
            tokens[each.at] = each.id
    assert tokens == hole.ids and MASK not in hole.ids and EOS not in hole.ids


def test_everything_beside_everything_is_as_it_is_alone():
    """Diffusing, editing, searching and plain requests in one engine, each equal to itself alone."""
    llm = masked_llm()
    plain, forced = _sampling(3), Sampling(seed=9, regex="[a-z ]{5,20}", max_tokens=20)
    jobs = {
        "diffuse": lambda: llm.diffuse(PROMPT, _sampling(1), diffusion=OPTIONS).tokens,
        "revise": lambda: llm.diffuse(PROMPT[:20], _sampling(2), diffusion=REVISED).tokens,
        "diffused samples": lambda: [
            (run.tokens, run.passes)
            for run in llm.diffuse(PROMPT, _sampling(6, n=3), diffusion=OPTIONS).samples
        ],
        "hole": lambda: _hole(llm, 5, PROMPT, PROMPT[:30], 6).ids,
        "infill by masks": lambda: (
            infill(llm, "the quick", "fox", 3, candidates=2, sampling=LETTERS, proposer="diffusion").text
        ),
        "rewrite": lambda: llm.rewrite("the quick brown fox", [[4, 9]], LETTERS, candidates=3).text,
        "sharpen": lambda: llm.sharpen(PROMPT, 2.0, steps=3, sampling=_sharp()).text,
        "plain": lambda: llm.generate(PROMPT, plain).tokens,
        "constrained": lambda: llm.generate(PROMPT, forced).tokens,
        "samples": lambda: [run.tokens for run in llm.generate(PROMPT, _sampling(4, n=3)).samples],
        "beams": lambda: llm.generate(PROMPT, Sampling(beam_width=3, max_tokens=10)).tokens,
        "infill": lambda: infill(llm, "the quick", "fox", 3, candidates=4, sampling=LETTERS).text,
        "solve": lambda: llm.solve("ab", "vote", n=3, chat=False, seed=1, max_tokens=6).text,
        "tree search": lambda: llm.solve("ab", "beam", n=3, chat=False, seed=1, max_tokens=6).text,
        "long": lambda: llm.generate(PROMPT * 4, Sampling(temperature=0, max_tokens=6)).tokens,
    }
    alone = {name: job() for name, job in jobs.items()}
    for _ in range(2):
        with ThreadPoolExecutor(len(jobs)) as threads:
            started = {name: threads.submit(job) for name, job in jobs.items()}
        assert {name: each.result() for name, each in started.items()} == alone
    llm.engine.call(llm.engine.loop.tree.check_integrity)


class _Fixed:
    """A pilot that asks for the same pass again and again, and keeps the logits."""

    def __init__(self, made: Pass, times: int) -> None:
        self.made, self.times = made, times
        self.found: list[bytes] = []
        self.ending: Ending | None = None

    def advance(self, logits):
        self.found.append(logits.tobytes())
        return self.made if len(self.found) < self.times else None

    def finish(self, ending):
        self.ending = ending
        return False


def _task(before: list[int], after: list[int], width: int, times: int) -> tuple[Masked, _Fixed, bytes]:
    rows = MaskedRows(before, width, after, Mask(MASK))
    made = rows.of_pass([None] * width)
    pilot = _Fixed(made, times)
    expected = naive_logits(model(), rows, made).tobytes()
    return Masked(rows.tokens, rows.kept, made, pilot), pilot, expected


@pytest.mark.parametrize("masked_first", [True, False])
def test_passes_survive_preemption_and_leave_nothing_behind(masked_first):
    """A cache that is far too small for all of them: pages are given up and computed again, by the youngest
    first."""
    engine = loop(model(), pages=9)
    rng = np.random.default_rng(2)
    texts = rng.integers(1, 256, (11, 50)).tolist()
    tasks = [_task(texts[number][:40], texts[4 + number], 6, 50) for number in range(4)]
    plain = [request(texts[8 + seed][:30], Sampling(max_tokens=60, seed=seed)) for seed in range(3)]
    preempted = []
    for task, _, _ in tasks:
        task.preempted = lambda: preempted.append(1)
    masked = [task for task, _, _ in tasks]
    for each in (*masked, *plain) if masked_first else (*plain, *masked):
        engine.add(each)
    while engine.busy:
        engine.step()
        engine.tree.check_integrity()
    for task, pilot, expected in tasks:
        task.wait()
        assert pilot.found == [expected] * 50
    assert engine.tree.held == 0
    others = sum(run.timings.preempted for each in plain for run in each.runs)
    assert others if masked_first else preempted


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 10**6))
def test_random_holes_beside_random_requests_in_a_random_engine(seed):
    """Small steps, few pages, windows, adapters of requests: each pass has the logits of the naive way, and
    each run is what it is alone."""
    rng = np.random.default_rng(seed)
    window = int(rng.integers(1, 70)) if rng.random() < 0.3 else None
    small = with_adapters(model(window))
    tasks, expected = [], []
    for _ in range(int(rng.integers(1, 5))):
        before, after = (rng.integers(1, 256, rng.integers(1, 60)).tolist() for _ in range(2))
        rows = MaskedRows(before, int(rng.integers(1, 8)), after, Mask(MASK, int(rng.integers(0, 3))))
        made = rows.of_pass([None if rng.random() < 0.7 else 66 for _ in range(6)] + [None])
        pilot = _Fixed(made, int(rng.integers(1, 20)))
        expected.append(naive_logits(small, rows, made).tobytes())
        tasks.append((Masked(rows.tokens, rows.kept, made, pilot), pilot))
    plain = []
    for number in range(int(rng.integers(0, 5))):
        adapter = None if rng.random() < 0.5 else str(rng.choice(["one", "two"]))
        options = Sampling(seed=number, max_tokens=int(rng.integers(1, 50)), adapter=adapter)
        plain.append(request(rng.integers(0, 256, rng.integers(1, 70)).tolist(), options))
    alone = {run: naive(small, run) for each in plain for run in each.runs}
    engine = loop(small, int(rng.integers(8, 30)), most_running=int(rng.integers(1, 9)))
    sizes = {"step_rows": int(rng.choice([16, 40, 512])), "rows_beside": int(rng.choice([1, 7, 128]))}
    engine.scheduler._ops = type("Few", (), {**sizes, "most_running": 64})()
    waiting = [*(task for task, _ in tasks), *plain]
    for place in rng.permutation(len(waiting)).tolist():
        engine.add(waiting[place])
        for _ in range(int(rng.integers(0, 4))):
            engine.step()
    steps = 0
    while engine.busy:
        engine.step()
        steps += 1
        assert steps < 5000
    engine.tree.check_integrity()
    assert engine.tree.held == 0
    for (task, pilot), logits in zip(tasks, expected, strict=True):
        task.wait()
        assert pilot.found == [logits] * pilot.times, seed
    for run, other in alone.items():
        assert same(run, other), seed


def test_a_hole_that_never_fits_ends_with_an_error():
    """Alone and beside a request that does fit, which is not disturbed."""
    engine = loop(model(), pages=4)
    task, pilot, _ = _task(PROMPT, [65] * 90, 6, 2)
    other = request(PROMPT, Sampling(max_tokens=20, seed=1))
    for each in (task, other):
        engine.add(each)
    for _ in range(500):
        if not engine.busy:
            break
        engine.step()
        engine.tree.check_integrity()
    assert not engine.busy and pilot.ending is not None and not pilot.found
    with pytest.raises(GlassloopError, match="no room for"):
        task.wait()
    assert other.runs[0].finish_reason in ("length", "stop")


def test_the_text_after_a_hole_is_found_by_no_one_else():
    """A plain text with the same tokens must not match keys that were computed at other positions."""
    engine = loop(model())
    before, after = list(b"the quick brown fox jumps over it"), list(b" and the lazy dog")
    task, pilot, expected = _task(before, after, 4, 1)
    engine.add(task)
    while engine.busy:
        engine.step()
    assert pilot.found == [expected]
    assert engine.tree.match([*before, *after], 50).length == len(before) - 1


@pytest.mark.parametrize("after", [0, 150])
def test_many_kept_rows_are_computed_in_pieces(after):
    rng = np.random.default_rng(1)
    engine = loop(model())
    engine.scheduler._ops = type("Few", (), {"step_rows": 40, "rows_beside": 10, "most_running": 64})()
    task, pilot, expected = _task(PROMPT[:20], rng.integers(1, 256, after).tolist(), 5, 2)
    others = [request(PROMPT, Sampling(max_tokens=30, seed=seed)) for seed in range(3)]
    for each in (*others, task):
        engine.add(each)
    while engine.busy:
        engine.step()
    assert pilot.found == [expected] * 2


def test_a_pass_that_does_not_fit_is_refused_before_it_disturbs_anyone():
    engine = loop(model())
    for tokens, kept, rows in (
        ([1, 2], [], []),
        ([1, 2], [], [MaskedRow(MASK, 2, True)] * 300),
        ([1, 2], [], [MaskedRow(999, 2, True)]),
        ([1, 2], [MaskedRow(3, CONTEXT)], [MaskedRow(MASK, 2, True)]),
        ([1, 999], [], [MaskedRow(MASK, 2, True)]),
    ):
        task = Masked(tokens, kept, Pass(rows, len(rows)), _Fixed(Pass(rows, len(rows)), 1))
        engine.add(task)
        with pytest.raises(GlassloopError, match="expected"):
            task.wait()
    assert not engine.busy


def test_a_cancelled_text_gives_back_what_it_held():
    llm = MaskedLLM()
    from glassloop.engine.deadline import Cancelled, Deadline

    deadline = Deadline()
    seen = []

    def on_pass(run, record):
        seen.append(record)
        deadline.cancel()

    with pytest.raises(Cancelled):
        llm.diffuse(PROMPT, _sampling(1), diffusion=OPTIONS, on_pass=on_pass, deadline=deadline)
    assert len(seen) == 1
    llm.engine.call(llm.engine.loop.tree.check_integrity)
    assert llm.engine.loop.tree.held == 0


def test_a_time_limit_ends_the_text_with_what_it_has():
    run = masked_llm().diffuse(PROMPT, _sampling(1, timeout=1e-6), diffusion=OPTIONS)
    assert run.finish_reason == "timeout"


def test_a_model_without_masks_says_so():
    from engine.random_runs import small_llm

    with pytest.raises(GlassloopError, match="small has no adapter for masked rows"):
        small_llm().diffuse(PROMPT)
    for wrong in ({"beam_width": 2}, {"revise": 1}, {"prompt_logprobs": 1}):
        with pytest.raises(GlassloopError, match=next(iter(wrong))):
            masked_llm().diffuse(PROMPT, Sampling(**wrong))
