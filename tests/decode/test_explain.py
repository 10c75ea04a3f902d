"""What the explanation says is what happened, since it is the same code; a what-if is what would have."""

from __future__ import annotations

import json
import re
from decimal import Decimal

import numpy as np
import pytest
from decode.naive import Naive, recorded
from decode.test_chain import NATIVE, random_logits, random_sampling
from decode.words import EOS, tokenizer

from glassloop import Sampling, SamplingError
from glassloop.cli.explain import print_reasons
from glassloop.decode.decoder import Decoder
from glassloop.decode.explain import Explanation, explain
from glassloop.decode.explanation import BeamRank, race_table
from glassloop.decode.sentence import ordinal
from glassloop.ops import choose_ops

LOGITS = np.log(np.array([0.05, 0.5, 0.25, 0.15, 0.05], np.float32))


def check_sums(told: Explanation) -> None:
    """Checks that each row of the race adds up as it is shown, to the last digit, and that no number is more
    than a hundredth off."""
    table = race_table(told)
    places = [table.header.index(name) for name in ("luck", "score")]
    for row, racer in zip(table.rows, told.candidates, strict=True):
        logit, luck, score = row[places[0] - 1], row[places[0]], row[places[1]]
        if racer.score is None:
            assert logit == score == ""
            continue
        assert Decimal(logit) + Decimal(luck) == Decimal(score)
        shown = (racer.logit, float(logit)), (racer.luck, float(luck)), (racer.score, float(score))
        assert all(abs(exact - rounded) < 0.0101 for exact, rounded in shown)


@pytest.mark.parametrize("name", ["reference", NATIVE])
def test_the_race_can_be_checked_with_a_calculator(name):
    random, ops = np.random.default_rng(6), choose_ops(name).rows
    for case in range(50):
        temperature = float(random.choice([0.1, 0.5, 1.0, 1.7]))
        told = explain(random_logits(random, 90), [1, 2], Sampling(temperature=temperature), case, ops=ops)
        for racer in told.candidates:
            assert racer.raw_logit / temperature + racer.luck == pytest.approx(racer.score, abs=1e-4)


@pytest.mark.parametrize("name", ["reference", NATIVE])
def test_it_says_what_happened_whatever_was_asked_for(name):
    ops = choose_ops(name).rows
    random = np.random.default_rng(5)
    explained = 0
    for case in range(400):
        size = int(random.choice([2, 8, 90]))
        logits, sampling = random_logits(random, size), random_sampling(random, size)
        tokens = [int(i) for i in random.integers(0, min(size, 6), 9)]
        decoder = Decoder(sampling, size, case, tokens[:4], salt=2, eos_ids=(0,), ops=ops)
        choices = [recorded(token) for token in tokens[4:]]
        for past in choices:
            decoder.commit(past.id, past)
        try:
            chosen = decoder.choose(logits)
        except SamplingError:
            continue
        known = (logits, tokens, sampling, case, 9)
        told = explain(*known, prompt_length=4, choices=choices, salt=2, eos_ids=(0,), ops=ops)
        assert told.winner.id == chosen.id and told.margin == chosen.margin
        assert (told.runner_up and told.runner_up.id) == chosen.runner_up
        assert told.winner.luck == chosen.luck and told.winner.rank == chosen.rank
        assert told.winner.logprob == chosen.logprob and told.winner.raw_logprob == chosen.raw_logprob
        assert told.candidates[0] == told.winner and told.sentence.endswith(".")
        assert [report.name for report in told.stages] == [stage.name for stage in decoder.chain]
        if told.stages and chosen.survivors is not None:
            assert told.stages[-1].survivors == chosen.survivors
        scores = [racer.score for racer in told.candidates if racer.score is not None]
        assert scores == sorted(scores, reverse=True)
        assert all(
            (racer.removed_by is None) == (racer.score is not None) or logits[racer.id] == -np.inf
            for racer in told.candidates
        )
        json.dumps(told.to_dict(), allow_nan=False)
        check_sums(told)
        explained += 1
    assert explained > 300


@pytest.mark.parametrize(
    "options",
    [{"top_k": 3}, {"top_p": 0.6}, {"min_p": 0.4}, {"bad_words": [[1]]}, {"temperature": 2, "top_p": 0.8}],
)
def test_survivors_and_mass_are_those_of_the_definition(options):
    sampling = Sampling(**options)
    told = explain(LOGITS, [0], sampling, 3)
    naive = Naive(LOGITS, [0], 1, sampling, 3, 1)
    for report in told.stages:
        alive, masses = len(naive.ranked), naive.probabilities
        getattr(naive, report.name)(sampling)
        assert (report.survivors_before, report.survivors) == (alive, len(naive.ranked))
        assert report.mass_kept == pytest.approx(masses[naive.ranked].sum())
        assert report.removed_count == alive - len(naive.ranked)
        assert {change.id for change in report.removed}.isdisjoint(naive.ranked)


def test_it_names_the_stage_that_removed_or_moved_each_candidate():
    sampling = Sampling(logit_bias={4: 3.0}, bad_words=[[1]], top_k=3)
    told = explain(LOGITS, [0], sampling, 3)
    bias, bad_words, top_k = told.stages
    (moved,) = bias.moved
    assert moved.id == 4 and moved.after > moved.before and bias.moved_count == 1 and not bias.removed
    assert [change.id for change in bad_words.removed] == [1] and bad_words.mass_kept < 0.75
    assert {racer.id: racer.removed_by for racer in told.candidates} == {
        0: "top_k",
        1: "bad_words",
        2: None,
        3: None,
        4: None,
    }
    assert (bias.kind, bad_words.kind, top_k.survivors) == ("bias", "mask", 3)


def test_overrides_make_it_a_what_if_with_the_same_luck():
    sampling = Sampling(temperature=1.5)
    what_if = explain(LOGITS, [0, 1], sampling, 8, temperature=0.1, top_k=2)
    asked = explain(LOGITS, [0, 1], Sampling(temperature=0.1, top_k=2), 8)
    actual = explain(LOGITS, [0, 1], sampling, 8)
    assert what_if == asked
    lucks = {racer.id: racer.luck for racer in actual.candidates}
    assert all(lucks[racer.id] == racer.luck for racer in what_if.candidates)
    with pytest.raises(SamplingError, match="did you mean temperature"):
        explain(LOGITS, [0], sampling, 8, temprature=1)


def test_the_temperatures_it_names_are_those_at_which_the_token_wins():
    """At both ends it still does; a hundredth beyond them it does not."""
    random = np.random.default_rng(6)
    told_of = {"up to": 0, "from": 0, "to": 0}
    for case in range(300):
        logits, size = random_logits(random, 40), 40
        options = {"temperature": float(random.choice([0.3, 0.8, 1.0, 1.7]))}
        options |= {"top_k": int(random.integers(2, 20))} if random.random() < 0.5 else {}
        options |= {"repetition_penalty": 1.4} if random.random() < 0.5 else {}
        tokens = random.integers(0, size, 5).tolist()

        def ask(sampling=Sampling(**options), logits=logits, tokens=tokens, case=case, **changed):
            return explain(logits, tokens, sampling, case, prompt_length=2, **changed)

        told = ask()
        found = re.search(r"any temperature(?: from (\d+\.\d\d))?(?: (?:up )?to (\d+\.\d\d))?", told.sentence)
        if found is None:
            continue
        low, high = (float(bound) if bound else None for bound in found.groups())
        for bound, beyond in ((low, -0.0101), (high, 0.0101)):
            if bound is not None:
                assert ask(temperature=bound).winner.id == told.winner.id
                assert bound + beyond <= 0 or ask(temperature=bound + beyond).winner.id != told.winner.id
        for bound, edge in ((low, 0.0), (high, 100.0)):
            assert bound is not None or ask(temperature=edge).winner.id == told.winner.id
        told_of["up to"] += low is None and high is not None
        told_of["from"] += low is not None and high is None
        told_of["to"] += low is not None and high is not None
    assert min(told_of.values()) >= 5, told_of


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"top_p": 0.9}, False),
        ({"min_p": 0.01}, False),
        ({"temperature": 0}, False),
        ({"stages": ["top_p", "temperature"], "top_p": 0.99}, True),  # what is left is not its affair
        ({"stages": ["temperature", "repetition_penalty"], "repetition_penalty": 1.2}, False),
        ({"stages": ["top_k"]}, False),  # there is no other temperature
        ({"top_k": 3, "frequency_penalty": 0.1}, True),
    ],
)
def test_temperatures_are_named_only_where_nothing_else_changes_with_them(options, said):
    told = explain(LOGITS, [0], Sampling(**options), 3)
    assert ("with this luck it would win at any temperature" in told.sentence) == said


def test_it_says_what_a_drafter_had_guessed():
    plain = explain(LOGITS, [0], Sampling(), 3)
    wrong = next(racer for racer in plain.candidates if racer.id != plain.winner.id)
    told = explain(LOGITS, [0], Sampling(), 3, refused=wrong.id, shown=1)
    chose = f"The drafter had guessed “<{wrong.id}>”; the model chose “<{plain.winner.id}>”."
    assert told.sentence == f"{plain.sentence} {chose}" and wrong in told.candidates
    assert explain(LOGITS, [0], Sampling(), 3, source="draft").sentence.endswith("had guessed it.")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"taken": 4, "temperature": 0}, "“<4>”. It was 5th with 5.0 % and would have lost by 2.30. Without"),
        (
            {"taken": 4, "temperature": 0},
            "Without that, “<1>” would have been chosen: it was the likeliest (",
        ),
        (
            {"taken": 1, "temperature": 0},
            "It would have been chosen anyway: it was the likeliest (50.0 %): it",
        ),
        ({"taken": 1, "top_k": 1}, "It would have been chosen anyway: the stages left no other token."),
        ({"taken": 4, "top_k": 2}, "It had been removed by top_k. Without that, “<"),
        ({"taken": 0}, "You forced “<0>”. It was 4th with 5.0 %, drew "),
        ({"taken": 0}, " of luck and would have lost by "),
    ],
)
def test_a_forced_token_is_told_with_how_it_would_have_fared(options, said):
    assert said in explain(LOGITS, [0], Sampling(), 3, source="forced", **options).sentence


def test_a_beam_token_is_told_without_luck():
    def ask(taken, beam=None, **options):
        return explain(LOGITS, [0], Sampling(**options), 3, source="beam", taken=taken, beam=beam).sentence

    first = "“<2>” (25.0 %) is on the beam that was best as a whole, 2nd of 3 at this step"
    scored = "Beam search scores the whole text and has no luck."
    alone = "Looking at this step alone, “<1>” (50.0 %) would have won, 0.69 ahead of “<2>”."
    assert ask(2, BeamRank(2, 3, 1)) == f"{first}. {scored} {alone}"
    assert "was 3rd best as a whole, 11th of 20" in ask(2, BeamRank(11, 20, 3))
    assert ask(1).endswith("at this step alone, it would have won as well, 0.69 ahead of “<2>”.")
    assert "is on a beam that the search kept" in ask(1)
    assert ask(None) == f"{scored} {alone}"
    assert "“<1>” (100.0 %) would have won: the stages left no other token" in ask(2, top_k=1)
    assert "“<1>” (50.0 %) had been removed by bad_words" in ask(2, bad_words=[[1]])


def test_a_token_of_the_prompt_is_told_with_the_models_own_numbers():
    def ask(taken):
        return explain(LOGITS, [0], Sampling(top_k=1, temperature=0.1), 3, source="prompt", taken=taken)

    told = "is part of the prompt, so it was given and not chosen: the model"
    assert ask(1).sentence == f"“<1>” {told} found it the likeliest, with 50.0 %."
    assert (
        ask(3).sentence
        == f"“<3>” {told} ranked it 3rd, with 15.0 %; its own favourite was “<1>” with 50.0 %."
    )
    assert not ask(3).stages and all(racer.luck == 0 for racer in ask(3).candidates)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"temperature": 0}, "“<1>” won because it was the likeliest (50.0 %): it led “<2>” by 0.69"),
        ({"top_k": 1}, "“<1>” won because the stages left no other token."),
        ({"temperature": 0, "bad_words": [[1]]}, "favourite “<1>” (50.0 %) had been removed by bad_words"),
        ({"temperature": 0, "logit_bias": {4: 9}}, "to the model itself the winner was 5th with 5.0 %"),
        ({}, "of luck and won by"),
    ],
)
def test_the_sentence_is_plain(options, said):
    assert said in explain(LOGITS, [0], Sampling(**options), 3).sentence


# ── as text ────────────────────────────────────────────────────────────────────────────────────────────────


def test_printed_it_is_what_the_terminal_shows(capsys):
    sampling = Sampling(temperature=0.7, top_k=3, logit_bias={2: 1.5}, seed=7)
    told = explain(LOGITS, [1, 2], sampling, 7)
    print_reasons(told)
    printed = capsys.readouterr().out.strip()
    first = f"“<{told.winner.id}>” at position 2 (prompt included) · seed 7 · sampled"
    assert str(told) == f"{first}\n\n{printed}" and printed.endswith(f"\n\n{told.sentence}")
    lines = printed.removesuffix(told.sentence).strip().splitlines()
    assert lines[0].split() == ["stage", "left", "mass", "kept", "removed", "moved"]
    assert [line.split()[0] for line in lines[1:4]] == ["logit_bias", "temperature", "top_k"]
    assert re.fullmatch(r"top_k +3 +\d\d\.\d % +2: “<\d>”, “<\d>”", lines[3])
    header = re.split(r" {2,}", lines[5].strip())
    assert header[3:] == ["after stages", "logit ÷ temperature", "luck", "score"]
    assert lines[5].split()[:3] == ["token", "rank", "model"]
    assert [line.split()[0] for line in lines[6:]] == [f"“{racer.text}”" for racer in told.candidates]
    assert sum("removed by top_k" in line for line in lines) == 2
    assert str(explain(LOGITS, [1], Sampling(), 7)).count("\n\n") == 2  # no stages, no table of them


def test_printed_it_cannot_steer_a_terminal():
    logits = np.zeros(EOS + 1, np.float32)
    logits[27] = 20.0  # the byte of an escape sequence
    shown = str(explain(logits, [65], Sampling(temperature=0), 1, tokenizer=tokenizer()))
    assert "\x1b" not in shown and "\\x1b" in shown


def test_ordinal_numbers():
    found = [ordinal(number) for number in (1, 2, 3, 4, 11, 12, 13, 21, 22, 23, 101, 111, 1002)]
    assert found == [
        "1st",
        "2nd",
        "3rd",
        "4th",
        "11th",
        "12th",
        "13th",
        "21st",
        "22nd",
        "23rd",
        "101st",
        "111th",
        "1002nd",
    ]
