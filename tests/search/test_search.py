"""A search takes the same decisions whatever else runs, keeps its budget, and can be made again."""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassloop import LLM, Budget, GlassloopError, Sampling, Search, Solution, Verdict
from glassloop.search.methods import METHODS, make_method
from glassloop.search.running import Running
from glassloop.search.search import Paths
from glassloop.search.solution import Path as SearchPath
from glassloop.search.solve import Stopped, prepare, solve_each, submit

QUESTION = [104, 101, 108, 108, 111]
OPTIONS = Sampling(seed=3, max_tokens=24, temperature=1.5, logit_bias={10: 3.0, 259: 2.0})


def last_letter(text: str) -> str | None:
    return text[-1:] or None


def is_lucky(text: str) -> Verdict:
    score = (sum(text.encode()) % 7) / 6
    return Verdict(score == 1, score, f"{len(text)} characters")


GIVEN = {
    "none": {},
    "greedy": {},
    "vote": {"n": 5},
    "best": {"n": 6, "width": 2, "stride": 4, "verify": is_lucky},
    "likelihood": {"n": 4},
    "confidence": {"n": 9, "warmup": 3, "wave": 2, "window": 4, "stride": 3, "consensus": 0.99},
    "beam": {"n": 4, "keep": 2, "judge": is_lucky},
    "tree": {"n": 7, "verify": is_lucky, "judge": lambda text: len(text) % 5 != 0},
    "budget": {"n": 2, "waits": 2, "thinking": 10},
    "power": {"n": 2, "alpha": 2.0, "steps": 4},
}


def search(llm: LLM, name: str, **more: object) -> Solution:
    options = {"sampling": OPTIONS, "extract": last_letter, **GIVEN[name], **more}
    return llm.solve(QUESTION, name, **options)


def decided(solution: Solution) -> list[object]:
    """All that must be the same in the same search: what was decided, and every token with its reasons."""
    paths = [(path.run.tokens, path.value, path.vote, path.ended_by, path.why) for path in solution.paths]
    return [solution.decisions, solution.votes, solution.text, solution.usage.tokens, *paths]


def test_every_method_has_a_case():
    assert set(GIVEN) == set(METHODS)


# ── one search, one answer ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", GIVEN)
def test_decisions_do_not_depend_on_what_else_runs(tiny, tiny_path, name):
    alone = decided(search(tiny, name))
    options = {"sampling": OPTIONS, "extract": last_letter, **GIVEN[name]}
    busy = solve_each(tiny, [QUESTION, [97, 98], [99] * 40, QUESTION[:2]] * 2, name, **options)
    first = next(solution for solution in busy if solution.index == 0)
    assert decided(first) == alone
    busy.close()
    with LLM(tiny_path, kv_memory="1MB", draft=False, most_running=2) as narrow:
        assert decided(search(narrow, name)) == alone


@pytest.mark.parametrize("name", GIVEN)
def test_a_search_replays_to_the_last_bit(tiny, name, tmp_path):
    made = search(tiny, name)
    again = made.replay()
    assert again.identical, again.difference
    assert decided(again.solution) == decided(made)
    made.save(tmp_path / "search.glass")
    read = Solution.load(tmp_path / "search.glass", llm=tiny)
    assert read.record == made.record and read.votes == made.votes and read.text == made.text
    assert read.replay().identical
    assert all(path.replay().identical for path in made.paths if path.tokens)


def test_a_vote_of_a_version_that_gave_ties_to_the_first_path_replays_as_it_was(tiny):
    """Its record has no option for ties."""
    differ = 0
    for seed in range(12):
        sampling = replace(OPTIONS, seed=seed)
        old, new = (
            search(tiny, "vote", n=3, sampling=sampling, ties=ties) for ties in ("first", "likelihood")
        )
        assert new.record["options"]["ties"] == METHODS["vote"]().ties == "likelihood"
        differ += old.value != new.value
        del old.record["options"]["ties"]
        assert old.replay().identical and new.replay().identical
    assert differ


def test_a_replay_tells_what_differs(tiny):
    made = search(tiny, "vote")
    made.paths[2].run.tokens[1] = made.paths[2].run.tokens[0]
    assert made.replay(extract=last_letter).difference == "path 2 differs at token 1"
    made = search(tiny, "best")
    del made.decisions[-1]
    assert "decisions" in made.replay().difference


def test_the_paths_of_a_vote_are_the_samples_of_a_request(tiny):
    solution = tiny.solve(QUESTION, "vote", n=5, sampling=OPTIONS, extract=last_letter)
    samples = tiny.generate(QUESTION, Sampling(**{**OPTIONS.to_dict(), "n": 5})).samples
    assert [path.tokens for path in solution.paths] == [run.tokens for run in samples]
    assert [path.end for path in solution.paths] == [run.end for run in samples]
    assert solution.run.samples == [path.run for path in solution.paths]


def test_no_method_is_what_generate_and_chat_do(tiny):
    plain, run = tiny.solve("hello", None, sampling=OPTIONS, chat=False), tiny.generate("hello", OPTIONS)
    assert plain.run.same_record(run) and plain.text == run.text and plain.run.prompt == run.prompt
    messages = [{"role": "user", "content": "hello"}]
    talked, turn = tiny.solve("hello", None, seed=4, max_tokens=9), tiny.chat(messages, seed=4, max_tokens=9)
    assert talked.run.same_record(turn) and talked.run.messages == turn.messages
    assert tiny.solve(messages, None, seed=4, max_tokens=9).run.same_record(turn)


@settings(max_examples=25, deadline=None)
@given(stride=st.integers(1, 30), seed=st.integers(0, 99), drafts=st.booleans())
def test_a_path_that_grows_in_pieces_is_the_run_in_one_piece(tiny, stride, seed, drafts):
    @dataclass
    class Piecewise(Search):
        stride: int

        def start(self, paths: Paths) -> None:
            paths.start(2)

    options = Sampling(seed=seed, max_tokens=20, temperature=0.7, stop=("\nz", "th"), stop_on_repetition=4)
    tiny.drafts, before = drafts, tiny.drafts
    try:
        solution = tiny.solve(QUESTION, Piecewise(stride), sampling=options)
    finally:
        tiny.drafts = before
    whole = tiny.generate(QUESTION, Sampling(**{**options.to_dict(), "n": 2})).samples
    for path, run in zip(solution.paths, whole, strict=True):
        assert path.tokens == run.tokens and path.end == run.end and path.text == run.text
        assert (path.finish_reason, path.stop_reason) == (run.finish_reason, run.stop_reason)


# ── budgets ────────────────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(sorted(GIVEN)),
    tokens=st.none() | st.integers(1, 90),
    branches=st.none() | st.integers(1, 6),
    seed=st.integers(0, 9),
)
def test_a_budget_is_never_exceeded(tiny, name, tokens, branches, seed):
    rows = tiny.engine.loop.counters.rows
    made = search(tiny, name, budget=Budget(tokens=tokens, branches=branches), seed=seed)
    used = made.usage
    assert tokens is None or used.tokens <= tokens
    assert branches is None or used.branches <= branches
    assert used.branches == len(made.paths) and used.tokens == sum(path.spent for path in made.paths)
    assert all(path.ended_by is not None for path in made.paths)
    if tokens is not None and any(path.ended_by == "budget" for path in made.paths):
        assert used.tokens >= tokens - len(made.paths) - 16  # what is left is less than a token for each path
    assert tiny.engine.loop.counters.rows >= rows
    assert made.replay().identical


def test_a_budget_of_tokens_is_spent_to_the_last(tiny):
    options = Sampling(seed=1, max_tokens=50, ignore_eos=True)
    for tokens in (1, 7, 8, 9, 100, 399, 400, 1000):
        made = tiny.solve(QUESTION, "vote", n=8, sampling=options, budget=Budget(tokens=tokens))
        assert made.usage.tokens == min(tokens, 400)


class Stubborn(Search):
    """Starts another path whenever one has ended."""

    def start(self, paths: Paths) -> None:
        paths.start()

    def ended(self, paths: Paths, path: SearchPath) -> None:
        assert len(paths) <= 20
        paths.start()


def test_a_budget_of_tokens_ends_paths_that_end_at_once(tiny):
    options = Sampling(seed=1, allowed_token_ids=[tiny.tokenizer.eos_ids[0]])
    solution = tiny.solve(QUESTION, Stubborn(), sampling=options, budget={"tokens": 9}, chat=False)
    assert len(solution.paths) == 10 and solution.usage.tokens == 9
    assert solution.paths[-1].ended_by == "budget"


class Slow(Search):
    """Grows one path a token at a time, and takes its time between them."""

    stride = 1

    def start(self, paths: Paths) -> None:
        paths.start(2)

    def grown(self, paths: Paths, path: SearchPath) -> None:
        time.sleep(0.02)


def test_a_budget_of_seconds_cuts_and_the_cut_is_replayed(tiny):
    options = Sampling(seed=1, max_tokens=400, ignore_eos=True)
    for method in (Slow(), make_method("vote", {"n": 40})):
        made = tiny.solve(QUESTION, method, sampling=options, budget=Budget(seconds=0.15))
        assert {path.ended_by for path in made.paths} == {"budget"} and made.usage.tokens < 400 * len(
            made.paths
        )
        again = made.replay(method=method)
        assert again.identical, again.difference


def test_the_shorter_of_two_time_limits_is_named(tiny):
    options = Sampling(seed=1, max_tokens=400, ignore_eos=True, timeout=1e-9)
    own = tiny.solve(QUESTION, "vote", n=2, sampling=options, budget=Budget(seconds=600))
    assert {path.ended_by for path in own.paths} == {"timeout"} and own.record["cut"] is None
    options = replace(options, timeout=600)
    all_together = tiny.solve(QUESTION, Slow(), sampling=options, budget=Budget(seconds=0.15))
    assert {path.ended_by for path in all_together.paths} == {"budget"}


def test_a_verifier_that_hangs_does_not_outlast_the_budget(tiny):
    stuck, verdict = threading.Event(), None
    while verdict is None:  # where the machine is slow, the paths themselves may take all of the time
        made = tiny.solve(
            QUESTION,
            "best",
            n=2,
            sampling=OPTIONS,
            verify=lambda text: stuck.wait(600),
            budget=Budget(seconds=0.3),
        )
        verdict = made.paths[0].verdict
    stuck.set()
    assert "took longer" in verdict.reason


@pytest.mark.parametrize(
    "values, field",
    [
        *(({"tokens": 0}, "tokens"), ({"tokens": 1.5}, "tokens"), ({"branches": True}, "branches")),
        *(({"seconds": float("nan")}, "seconds"), ({"seconds": 0}, "seconds"), ({"token": 3}, "budget")),
    ],
)
def test_a_wrong_budget_is_refused_by_its_field(values, field):
    with pytest.raises(GlassloopError, match=field):
        Budget.of(values)


# ── verdicts, errors and ends ──────────────────────────────────────────────────────────────────────────────


def test_an_exception_of_a_verifier_is_a_verdict_against_the_text(tiny):
    made = search(tiny, "best", verify=lambda text: 1 / 0)
    assert made.paths[0].verdict == Verdict(False, 0.0, "ZeroDivisionError: division by zero")
    for budget in (None, Budget(seconds=60)):  # with a limit of time, verifiers run on a thread
        left = search(tiny, "best", verify=lambda text: sys.exit(3), budget=budget)
        assert left.paths[0].verdict == Verdict(False, 0.0, "SystemExit: 3")
    with pytest.raises(GlassloopError, match="verify returned 'yes'; a Verdict"):
        search(tiny, "best", verify=lambda text: "yes")


def test_an_answer_that_is_no_text_is_refused(tiny):
    with pytest.raises(GlassloopError, match="extract returned 5; a text or None is expected"):
        search(tiny, "vote", extract=lambda text: 5)


def test_the_best_path_is_verified_and_stops_the_others(tiny):
    made = search(tiny, "best", verify=lambda text: True, width=6, n=6)
    assert made.path.verdict.passed
    ended = [path for path in made.paths if path.ended_by != "search"]
    assert made.path is ended[0] and all(len(path.tokens) <= len(made.path.tokens) + 4 for path in made.paths)
    never = search(tiny, "best", verify=is_lucky, seed=8)
    judged = [path for path in never.paths if path.verdict]
    assert never.path.verdict.score == max(path.verdict.score for path in judged)


def test_a_tree_goes_back_to_a_step_and_keeps_what_came_before(tiny):
    made = search(tiny, "tree", verify=lambda text: False, judge=None, n=12)
    forks = [path for path in made.paths if path.parent is not None]
    assert forks and made.usage.branches == 12
    for path in forks:
        kept = path.parent.token_ids[: path.kept]
        assert path.token_ids[: path.kept] == kept and bytes(kept[-1:]) == b"\n"


def test_an_error_of_every_path_is_raised(tiny):
    with pytest.raises(GlassloopError, match="no token is left"):
        tiny.solve(QUESTION, "vote", sampling=Sampling(allowed_token_ids=(97,), bad_words=("a",)))
    with pytest.raises(GlassloopError, match="n is 2; a search does not take it"):
        tiny.solve(QUESTION, "vote", sampling=Sampling(n=2))


@pytest.mark.parametrize(
    "method, options, message",
    [
        ("votes", {}, "method is 'votes'; one of beam, best"),
        ("vote", {"n": 0}, "n is 0; a whole number from 1 to 1024"),
        ("vote", {"nn": 3}, "nn is not an option of the method vote; did you mean n"),
        ("best", {}, "verify is missing"),
        (3, {}, "method is 3"),
        ("vote", {"temperature": -1}, "temperature is -1"),
    ],
)
def test_wrong_options_are_named(tiny, method, options, message):
    with pytest.raises(GlassloopError, match=message):
        tiny.solve(QUESTION, method, **options)


# ── leaving ────────────────────────────────────────────────────────────────────────────────────────────────


def test_ctrl_c_keeps_what_is_there_and_gives_back_the_pages(tiny):
    def interrupt(running: Running) -> None:
        if running.round > 1:
            raise KeyboardInterrupt

    from glassloop.search.solve import solve

    options = {"sampling": Sampling(seed=1, max_tokens=400, ignore_eos=True), "extract": last_letter}
    with pytest.raises(Stopped) as caught:
        solve(tiny, QUESTION, method="confidence", n=4, stride=8, watch=interrupt, **options)
    left = caught.value.solution
    assert {path.ended_by for path in left.paths} == {"cancelled"} and left.usage.tokens == 4 * 8
    assert left.value is not None and left.replay().identical


def test_a_vote_by_confidence_ends_when_the_lead_is_large_enough(tiny):
    def parity(text: str) -> str:
        return "even" if len(text) % 2 == 0 else "odd"

    ended = 0
    for seed in range(8):
        common = {"extract": parity, "keep": 1.0, "sampling": replace(OPTIONS, seed=seed, max_tokens=16)}
        found = {lead: search(tiny, "confidence", lead=lead, **common) for lead in (0.5, 1.5, 2.5)}
        paths = [len(solution.paths) for solution in found.values()]
        assert paths == sorted(paths)
        for lead, solution in found.items():
            weights = [path.vote for path in solution.paths if path.vote is not None]
            first, second, *_ = *solution.votes.values(), 0.0, 0.0
            ahead = (first - second) * len(weights) / sum(weights)
            reasons = [each.why for each in solution.decisions if "leads by" in (each.why or "")]
            if second:
                assert reasons == (
                    [f"{solution.value!r} leads by {ahead:.1f} paths"] if ahead >= lead else []
                )
                assert ahead >= lead or len(solution.paths) == 9
            ended += len(reasons)
    assert ended >= 2


def test_leaving_many_searches_early_gives_back_the_pages(tiny):
    options = {"sampling": Sampling(seed=1, max_tokens=60, ignore_eos=True), "extract": last_letter}
    searches = solve_each(tiny, [QUESTION] * 30, "vote", **options)
    next(searches)
    searches.close()


def test_an_error_in_a_method_gives_back_the_pages(tiny):
    class Faulty(Slow):
        def grown(self, paths: Paths, path: SearchPath) -> None:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        tiny.solve(QUESTION, Faulty(), sampling=OPTIONS)
    with pytest.raises(ZeroDivisionError):
        list(solve_each(tiny, [QUESTION] * 3, Faulty(), sampling=OPTIONS))


def test_a_path_that_has_ended_shows_its_answer_before_the_round_is_over(tiny):
    running = prepare(tiny, QUESTION, "vote", n=3, sampling=OPTIONS, extract=last_letter)
    requests, over = running.next_round(), threading.Event()
    assert all(running.preview(path).running for path in running.paths)
    submit(running, requests, over.set)
    assert over.wait(60)
    seen = [running.preview(path) for path in running.paths]
    assert all(path.running and path.value is None for path in running.paths)  # nothing is decided yet
    assert running.next_round() == []
    for early, late in zip(seen, running.solution().paths, strict=True):
        for name in ("value", "confidence", "ended_by", "why"):
            assert getattr(early, name) == getattr(late, name) is not None


def test_nothing_runs_before_the_first_round(tiny):
    steps = tiny.engine.loop.counters.steps
    running = prepare(tiny, QUESTION, "vote", extract=last_letter)
    assert running.tokens == 0 and tiny.engine.loop.counters.steps == steps


# ── a method of one's own ──────────────────────────────────────────────────────────────────────────────────


def from_the_docs() -> Search:
    """The method that docs/thinking.md shows."""
    page = (Path(__file__).parents[2] / "docs" / "thinking.md").read_text(encoding="utf-8")
    shown = page.split("## A method of your own")[1].split("```python\n")[1].split("```")[0]
    code = shown.split("print(")[0]
    assert len(code.strip().splitlines()) <= 20
    names: dict[str, type[Search]] = {}
    exec(code, names)
    return names["TwoThatAgree"]()


def test_a_method_of_ones_own(tiny):
    method = from_the_docs()
    made = tiny.solve(QUESTION, method, sampling=OPTIONS, extract=last_letter)
    values = [path.value for path in made.paths]
    assert values.count(made.value) == 2 and len(set(values)) == len(values) - 1
    assert made.record["method"] == "TwoThatAgree" and made.replay(method=method).identical
    with pytest.raises(GlassloopError, match="method is missing; the search was made by TwoThatAgree"):
        made.replay()
    with pytest.raises(GlassloopError, match="n is given beside a method object"):
        tiny.solve(QUESTION, method, n=3)


def test_searches_are_kept_in_a_store(tiny_path, tmp_path):
    with LLM(tiny_path, kv_memory="16MB", store=tmp_path / "runs.db") as llm:
        made = search(llm, "tree")
        llm.store.flush()
        kept = llm.store.get(made.paths[0].id)
        assert kept.search == made.record and len(llm.store) == len(made.paths)


def test_closing_the_model_ends_a_search_that_runs(tiny_path):
    llm = LLM(tiny_path, kv_memory="16MB")
    ended: list[Solution] = []
    options = Sampling(seed=1, max_tokens=480, ignore_eos=True)
    thread = threading.Thread(
        target=lambda: ended.append(llm.solve(QUESTION, "vote", n=30, sampling=options, extract=last_letter))
    )
    thread.start()
    while not llm.engine.loop.busy:
        time.sleep(0.001)
    llm.close()
    thread.join(60)
    assert ended and {path.ended_by for path in ended[0].paths} <= {"cancelled", "length"}
