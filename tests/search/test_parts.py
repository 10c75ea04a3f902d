"""The parts of a search by themselves: votes, confidence, verdicts, records from files."""

from __future__ import annotations

from copy import deepcopy
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassloop import GlassloopError, Sampling, Solution, TraceError, Verdict
from glassloop.record.run import Run
from glassloop.record.token import Token
from glassloop.search.methods import METHODS, make_method
from glassloop.search.path_confidence import likelihood, lowest_group, token_confidences
from glassloop.search.record import read_record
from glassloop.search.solution import Path, from_runs
from glassloop.search.verdict import verdict_of
from glassloop.search.voting import consensus, elect, voters, votes_of

OPTIONS = Sampling(seed=1, max_tokens=30, temperature=1.2, logit_bias={10: 3.0, 259: 2.0})


def path(number: int, value: str | None, ended_by: str = "stop") -> Path:
    return Path(number, Run("none", [1], 0, 10), value=value, ended_by=ended_by)


@given(values=st.lists(st.sampled_from("abc") | st.none(), min_size=1, max_size=9), data=st.data())
def test_a_vote_is_the_sum_of_the_weights(values, data):
    weights = data.draw(st.lists(st.integers(1, 5), min_size=len(values), max_size=len(values)))
    paths = [path(number, value) for number, value in enumerate(values)]
    won = elect(paths, lambda each: float(weights[each.number]))
    sums = {value: 0 for value in values if value is not None}
    for value, weight in zip(values, weights, strict=True):
        if value is not None:
            sums[value] += weight
    assert votes_of(paths) == sums
    if sums:
        assert sums[won.value] == max(sums.values()) and values.index(won.value) == won.number
        first = min(values.index(value) for value in sums if sums[value] == max(sums.values()))
        assert won.number == first
        assert consensus(votes_of(paths)) == pytest.approx(max(sums.values()) / sum(sums.values()))
    else:
        assert won is paths[0] and consensus({}) == 0


@pytest.mark.parametrize(
    "values, sure, winner",
    [
        ("abba", [-3, -1, -1, -2], 1),  # the mean over the paths of an answer counts,
        ("abba", [-1, -1, -1, -2], 1),  # also if one of them is as sure as those of the other;
        ("abab", [-1, -2, -2, -1], 0),  # if it is equal, the lowest number does
        ("abb", [0, -9, -9], 1),  # without a tie only votes count
        ("ab", [-inf, -1], 1),
        ("ab", [-inf, -inf], 0),
    ],
)
def test_a_tie_goes_to_the_answer_whose_paths_are_surest(values, sure, winner):
    paths = [path(number, value) for number, value in enumerate(values)]
    assert elect(paths, sure=lambda each: float(sure[each.number])) is paths[winner]


def test_a_run_with_a_token_of_unknown_probability_is_the_least_likely(tiny):
    run = tiny.generate([104, 105], Sampling(seed=2, max_tokens=6, temperature=1.0))
    every = [token.raw_logprob for token in [*run.tokens, *([] if run.end is None else [run.end])]]
    assert likelihood(run) == sum(every) / len(every) and likelihood(run, "sum") == sum(every)
    run.tokens.append(Token.told(1, "", b"", str, None))
    assert likelihood(run) == likelihood(run, "sum") == -inf
    empty = Run("none", [1], 0, 10)
    assert likelihood(empty) == likelihood(empty, "sum") == -inf


def test_a_path_that_was_cut_off_votes_only_if_no_other_can():
    whole, cut, stopped = path(0, "a"), path(1, "b", "length"), path(2, "c", "search")
    cut.run.tokens = stopped.run.tokens = [None]
    assert voters([cut, stopped, whole]) == [whole]
    assert voters([stopped, cut]) == [cut] and voters([stopped]) == [stopped]
    assert voters([path(3, "d", "error"), path(4, "e", "budget")]) == []  # an error, and nothing written


@given(st.lists(st.floats(0, 10), max_size=40), st.integers(1, 12))
def test_the_lowest_group_is_that_of_the_definition(values, window):
    found = lowest_group(np.array(values), window)
    if not values:
        assert found is None
        return
    groups = [values[at : at + window] for at in range(max(1, len(values) - window + 1))]
    assert found == pytest.approx(min(sum(group) / len(group) for group in groups), abs=1e-9)


def test_the_confidence_of_a_token_is_the_mean_surprise_of_its_alternatives(tiny):
    for count in (0, 1, 7):
        run = tiny.generate([104, 105], Sampling(seed=2, max_tokens=6, logprobs=count, ignore_eos=True))
        expected = [
            -sum(each.raw_logprob for each in token.alternatives) / count if count else np.nan
            for token in run.tokens
        ]
        assert np.allclose(token_confidences(run.tokens), expected, equal_nan=True)
    mixed = [
        *run.tokens[:2],
        *tiny.generate([104], Sampling(max_tokens=2, logprobs=3, ignore_eos=True)).tokens,
    ]
    assert len(token_confidences(mixed)) == 4 and not np.isnan(token_confidences(mixed)).any()


def test_unsure_paths_stop_below_the_threshold_of_the_warm_up(tiny):
    """Every decision of the method is checked against the definition, from the record alone."""
    window, stride, warmup, keep = 4, 3, 4, 0.5
    options = {"n": 14, "warmup": warmup, "wave": 5, "keep": keep, "window": window, "stride": stride}
    made = tiny.solve([104, 105], "confidence", sampling=OPTIONS, extract=lambda text: text[-1:], **options)

    def lowest(tokens: list) -> float:
        each = [-np.mean([other.raw_logprob for other in token.alternatives]) for token in tokens]
        last = max(1, len(each) - window + 1)
        return 0.0 if not each else min(float(np.mean(each[at : at + window])) for at in range(last))

    first = made.paths[:warmup]
    assert all(path.ended_by in ("stop", "length") for path in first)
    threshold = sorted(lowest(path.tokens) for path in first)[int((1 - keep) * warmup)]
    stopped = [path for path in made.paths if path.ended_by == "search"]
    assert stopped
    for each in made.paths[warmup:]:
        if each.ended_by == "search":
            assert lowest(each.tokens) < threshold and len(each.tokens) % stride == 0
            assert len(each.tokens) <= window or lowest(each.tokens[:-stride]) >= threshold
        else:
            whole = each.tokens[: len(each.tokens) // stride * stride]
            assert len(whole) < window or lowest(whole) >= threshold
    for each in made.paths:
        able = each.complete and each.value is not None and lowest(each.tokens) >= threshold
        assert (each.vote is not None) == able and (
            not able or each.vote == pytest.approx(lowest(each.tokens))
        )


@pytest.mark.parametrize(
    "said, verdict",
    [
        (True, Verdict(True, 1.0)),
        (False, Verdict(False, 0.0)),
        (0.4, Verdict(False, 0.4)),
        (1, Verdict(True, 1.0)),
        (Verdict(True, 0.5, "why"), Verdict(True, 0.5, "why")),
    ],
)
def test_what_a_verifier_may_return(said, verdict):
    assert verdict_of(lambda text: said, "text") == verdict


@pytest.mark.parametrize("said", [None, "yes", 2, -0.1, float("nan")])
def test_what_a_verifier_may_not_return(said):
    with pytest.raises(GlassloopError, match="verify returned"):
        verdict_of(lambda text: said, "text")


@pytest.mark.parametrize("name", METHODS)
def test_the_options_of_a_method_make_it_again(name):
    made = make_method(name, {})
    assert make_method(name, made.options).options == made.options == made.fresh().options


# ── records from files ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def solution(tiny) -> Solution:
    verify = {"verify": lambda text: len(text) > 40, "extract": lambda text: text[-1:]}
    return tiny.solve([104, 105], "tree", n=5, sampling=OPTIONS, **verify)


@pytest.mark.parametrize(
    "place, value",
    [
        (("version",), 2),
        (("votes",), []),
        (("votes",), {"a": "b"}),
        (("answer",), 99),
        (("answer",), -1),
        (("paths", 0, "parent"), 3),
        (("paths", 1, "number"), 0),
        (("paths", 1, "verdict"), {"passed": 1}),
        (("paths", 0), None),
        (("decisions", 0, "round"), "1"),
        (("decisions",), {}),
        (("verdicts",), [[1]]),
        (("cut",), {"round": 1}),
        (("usage", "tokens"), None),
        (("budget",), {"tokens": -3}),
        (("method",), None),
    ],
)
def test_a_record_of_another_form_is_refused(solution, place, value):
    record = deepcopy(solution.record)
    read_record(record)
    *before, last = place
    inner = record
    for key in before:
        inner = inner[key]
    inner[last] = value
    with pytest.raises(GlassloopError):
        read_record(record)


def test_a_record_with_a_missing_part_or_run_is_refused(solution):
    for name in solution.record:
        record = {key: value for key, value in solution.record.items() if key != name}
        with pytest.raises(TraceError):
            read_record(record)
    with pytest.raises(TraceError, match="of path 1 is missing"):
        from_runs([solution.paths[0].run], "the file")
    with pytest.raises(TraceError, match="has no search"):
        from_runs([solution.paths[1].run], "the file")
