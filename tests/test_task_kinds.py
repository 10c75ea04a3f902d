"""Nothing is ignored: each option is tried in each kind of task, on a case in which it matters. Where the
table of `decode/task_kinds.py` says that it acts, the result or its record changes; where it says that the
option is refused, an error names it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine.random_runs import SmallLLM
from engine.small import EOS
from ops.random_adapters import random_adapter

from glassloop import GlassloopError, Run, Sampling, SamplingError, stage
from glassloop.decode.stage import REGISTER
from glassloop.decode.stop import Pause
from glassloop.decode.task_kinds import KINDS, NEEDS, OPTIONS, markdown
from glassloop.edit.record import Edit
from glassloop.engine.adapters import LoadedAdapter
from glassloop.engine.deadline import TimedOut
from glassloop.engine.follow import complete

Values = dict[str, Any]

PROMPT = list(b"the fox: abcabcabcabcab")
TEXT = "abcabcabcabc the fox jumps over it"
LETTERS = [97, 98, 99, 100, EOS]
PRINTABLE = [*range(32, 127), EOS]
COMMON: Values = {"allowed_token_ids": LETTERS, "logit_bias": {EOS: 2.0, 97: 1.0}}
LONG: Values = {**COMMON, "max_tokens": 12}
SEEDS = range(1, 13)  # an option acts if it changes something with one of them


@pytest.fixture(autouse=True)
def own_stage():
    """A stage of one's own, for `stages` and `stage_options`."""
    before = dict(REGISTER)

    @stage("only_letter", kind="mask")
    def only_letter(candidates, step, *, letter: str = "a"):
        return candidates.without([id for id in range(candidates.vocab_size) if id != ord(letter)])

    yield
    REGISTER.clear()
    REGISTER.update(before)


@cache
def model() -> SmallLLM:
    """A model of its own with masks and the adapter "one"."""
    llm = SmallLLM(seed=11)
    holes = random_adapter(np.random.default_rng(5), llm.config, "holes")
    vector = np.random.default_rng(6).standard_normal(llm.config.dim).astype(np.float32)
    llm.load_holes(replace(holes, embedding=vector, mask_token=0))
    one = random_adapter(np.random.default_rng(4), llm.config, "one")
    llm.engine.loop.adapters.add("one", LoadedAdapter(llm.transformer.load_adapter(one), one.sha256))
    return llm


# ── what each kind of task gives ───────────────────────────────────────────────────────────────────────────


def told(run: Run) -> Any:
    """All that is known of a run, but for its options and its times."""
    if run.error is not None:
        raise run.error
    return (
        [token.chosen for token in run.tokens],
        [token.chosen for token in run.prompt_tokens],
        run.text,
        run.finish_reason,
        run.stop_reason,
        len(run.samples),
        [each.token_ids for each in run.drafts_taken_back],
        [each.id for each in run.beams],
        run.passes,
    )


def edited(edit: Edit) -> Any:
    draws = [each.drawn for each in edit.proposals if each.drawn is not None]
    decided = [(each.ids, each.bits, each.accepted, each.refusal) for each in edit.proposals]
    return edit.text, decided, [told(run)[:5] for run in draws]


def generated(seed: int, given: Values) -> Any:
    run = model().generate(PROMPT, Sampling(**{"seed": seed, **given}))
    return [told(each) for each in run.samples]


@cache
def recorded(seed: int) -> Run:
    return model().generate(PROMPT, Sampling(**LONG, seed=seed, min_tokens=5))


def forked(seed: int, given: Values) -> Any:
    # Something is always changed, so that the luck stays the same.
    at = given.pop("at", 3)
    return [told(each) for each in recorded(seed).fork(at, **{"max_tokens": 13, **given}).samples]


def continued(seed: int, given: Values) -> Any:
    timeout = given.pop("timeout", None)
    request = model().prepare(PROMPT, Sampling(**{"seed": seed, **given}))
    request.pause = Pause(2)
    complete(model().engine, [request], progress=False)
    for run in request.runs:
        if run.stop_reason == "paused" or "beam_width" in given or "diffusion" in given:
            run.finish_reason, run.stop_reason, run.tail = None, None, ""
            rest = model().prepare_rest(run, timeout=timeout)
            complete(model().engine, [rest], progress=False)
    return [told(run) for run in request.runs]


def explained(seed: int, given: Values) -> Any:
    # Always a what-if: without one, the sentence may tell of a wrong guess of a drafter.
    at = given.pop("at", 5)
    made = model().explain(recorded(seed), at, **{"temperature": 0.9, **given}).to_dict()
    return {name: value for name, value in made.items() if name not in ("sampling", "seed")}


def solved(seed: int, given: Values) -> Any:
    sampling = Sampling(**{"seed": seed, **given})
    solution = model().solve(PROMPT, "vote", n=2, sampling=sampling, chat=False, extract="regex:.*")
    return solution.value, [told(path.run)[:5] for path in solution.paths]


def filled(seed: int, given: Values, **how: Any) -> Any:
    sampling = Sampling(**{"seed": seed, **given})
    return edited(model().infill("the abcabcab", "cab it", 5, candidates=3, sampling=sampling, **how))


def rewritten(seed: int, given: Values) -> Any:
    return edited(model().rewrite(TEXT, (8, 12), Sampling(**{"seed": seed, **given}), candidates=3))


def repaired(seed: int, given: Values, **how: Any) -> Any:
    sampling = Sampling(**{"seed": seed, **given})
    return edited(model().repair(TEXT, sampling=sampling, candidates=3, budget=200, **how))


def checked(seed: int, given: Values) -> Any:
    text, seen = given.pop("text", "abababab"), []

    def check(text: str) -> float:
        seen.append(text)
        return 1.0 if len(seen) > 9 else text.count("a") / 100

    sampling = Sampling(**{"seed": seed, **given})
    return edited(
        model().repair(text, prompt="the fox: abc", sampling=sampling, check=check, candidates=3, budget=999)
    )


def sharpened(seed: int, given: Values) -> Any:
    return edited(model().sharpen(PROMPT, 2.0, steps=3, sampling=Sampling(**{"seed": seed, **given})))


REVISING: Values = {"revise": 3, "revise_window": 2, "revise_bits": 0.5}
TASKS: dict[str, tuple[Callable[[int, Values], Any], Values]] = {
    "sample": (generated, LONG),
    "n": (generated, {**LONG, "n": 2}),
    "beams": (generated, {**LONG, "beam_width": 3}),
    "revise": (generated, {**LONG, **REVISING}),
    "diffusion": (generated, {**LONG, "diffusion": 6}),
    "fork": (forked, {}),
    "continue": (continued, LONG),
    "what-if": (explained, {}),
    "solve": (solved, LONG),
    "infill": (filled, COMMON),
    "infill by masks": (lambda seed, given: filled(seed, given, proposer="diffusion"), COMMON),
    "rewrite": (rewritten, COMMON),
    "repair": (repaired, COMMON),
    "repair, check=": (checked, LONG),
    "repair by masks": (lambda seed, given: repaired(seed, given, proposer="diffusion"), {}),
    "sharpen": (sharpened, LONG),
}

# ── cases in which an option matters ───────────────────────────────────────────────────────────────────────

# A value of each option, and what else is needed for it to matter.
CASES: dict[str, tuple[Any, Values]] = {
    "temperature": (0.5, {}),
    "top_k": (2, {}),
    "top_p": (0.4, {}),
    "min_p": (0.6, {}),
    "typical_p": (0.3, {}),
    "top_n_sigma": (0.5, {}),
    "xtc_probability": (1.0, {"xtc_threshold": 0.02}),
    "xtc_threshold": (0.02, {"xtc_probability": 1.0}),
    "epsilon_cutoff": (0.2, {}),
    "eta_cutoff": (0.5, {}),
    "repetition_penalty": (3.0, {}),
    "presence_penalty": (4.0, {}),
    "frequency_penalty": (4.0, {}),
    "no_repeat_ngram_size": (2, {}),
    "dry_multiplier": (3.0, {"dry_allowed_length": 1}),
    "mirostat_tau": (0.5, {}),
    "mirostat_eta": (1.0, {"mirostat_tau": 2.0}),
    "dry_base": (3.0, {"dry_multiplier": 1.0, "dry_allowed_length": 1}),
    "dry_allowed_length": (1, {"dry_multiplier": 3.0}),
    "logit_bias": ({98: 4.0}, {}),
    "allowed_token_ids": ([97, 98], {}),
    "bad_words": (["a"], {}),
    "seed": (99, {}),
    "n": (3, {}),
    "max_tokens": (6, {}),
    "min_tokens": (8, {}),
    "stop": (["a"], {}),
    "stop_token_ids": ([97], {}),
    "include_stop": (True, {"stop": ["a"]}),
    "ignore_eos": (True, {}),
    "timeout": (1e-9, {}),
    "stop_on_repetition": (2, {"logit_bias": {97: 6.0}}),
    "revise": (3, {"revise_window": 2, "revise_bits": 0.5}),
    "revise_window": (4, {"revise": 3, "revise_bits": 0.5}),
    "revise_bits": (20.0, {"revise": 3, "revise_window": 2}),
    "beam_width": (3, {}),
    "length_penalty": (-3.0, {"beam_width": 3}),
    "early_stopping": (True, {"beam_width": 3, "length_penalty": 3.0, "logit_bias": {EOS: 6.0}}),
    "json_schema": (True, {"allowed_token_ids": PRINTABLE}),
    "regex": ("[ab]{3,19}", {}),
    "choice": (["abba", "baab"], {}),
    "grammar": ("start: /[ab]{3,19}/", {}),
    "diffusion": (3, {}),
    "adapter": ("one", {}),
    "logprobs": (2, {}),
    "prompt_logprobs": (2, {}),
    "stages": (["default", "only_letter"], {}),
    "stage_options": ({"only_letter": {"letter": "b"}}, {"stages": ["default", "only_letter"]}),
}
# Where another case is needed. A fork or a what-if, and a new end of a text, need a constraint that the part
# which is kept satisfies: with `at` 0 nothing is kept.
OWN: dict[tuple[str, str], tuple[Any, Values]] = {
    ("n", "n"): (1, {}),
    ("beams", "beam_width"): (2, {}),
    ("revise", "revise"): (1, {}),
    ("what-if", "stop_token_ids"): ([97], {"min_tokens": 9}),
    ("repair, check=", "choice"): (["ababababaa", "ababababbb"], {}),
    ("repair, check=", "json_schema"): (True, {"text": "[1,2,[3,", "allowed_token_ids": PRINTABLE}),
    # A run is continued with its own options; a parameter is refused with what it is a parameter of.
    ("continue", "length_penalty"): (-3.0, {"beam_width": 3}),
    ("continue", "early_stopping"): (True, {"beam_width": 3}),
}
for title in ("fork", "what-if"):
    OWN[title, "regex"] = ("[a-d]{8,19}", {})
    OWN[title, "grammar"] = ("start: /[a-d]{8,19}/", {})
    OWN[title, "choice"] = (["abbababa", "baababab"], {"at": 0})
    OWN[title, "json_schema"] = (True, {"at": 0, "allowed_token_ids": PRINTABLE})

# Cells that act, by nature without an effect on the text or on the record of a choice.
WITHOUT_EFFECT: dict[tuple[str, str], str] = {
    ("beams", "seed"): "a beam search draws nothing unless XTC is on; the seed is recorded",
    ("repair by masks", "seed"): "nothing is drawn; the seed is recorded",
}


def problem_of(title: str, option: str, before: dict[str, Any]) -> str | None:
    """Returns what is wrong with a cell, or None."""
    if option in KINDS[title].refused:
        return not_refused(title, option)
    task, base = TASKS[title]
    value, needed = OWN.get((title, option), CASES[option])
    base = {**base, **needed}
    for seed in SEEDS:
        key = f"{seed} {sorted(base.items())}"
        if key not in before:
            before[key] = task(seed, dict(base))
            assert task(seed, dict(base)) == before[key]  # what differs comes from the option alone
        try:
            if task(seed, {**base, option: value}) != before[key]:
                return None
        except TimedOut as error:
            return None if error.field == option == "timeout" else str(error)
        except SamplingError as error:
            return f"{option} is refused: {error}"
    return f"{option} changes nothing"


def not_refused(title: str, option: str) -> str | None:
    """Returns what is wrong with the refusal of an option, or None."""
    task, base = TASKS[title]
    value, needed = OWN.get((title, option), (CASES[option][0], {}))
    # Of two options that exclude each other, such as diffusion and beam_width, an error names one.
    named = {option, *needed, {"beams": "beam_width"}.get(title, title)}
    if (title, option) == ("continue", "diffusion"):
        named |= {None, "run"}  # the run is refused, not an option
    try:
        task(1, {**base, **needed, option: value})
    except GlassloopError as error:
        return None if error.field in named else f"{option} is refused as {error.field}: {error}"
    return f"{option} is not refused"


@pytest.mark.parametrize("title", KINDS)
def test_every_option_acts_or_is_refused_by_name(title):
    before: dict[str, Any] = {}
    problems = {
        option: problem
        for option in OPTIONS
        if (title, option) not in WITHOUT_EFFECT and (problem := problem_of(title, option, before))
    }
    assert not problems, "\n".join(problems.values())


def test_every_option_has_a_case():
    assert set(CASES) == set(OPTIONS) and set(TASKS) == set(KINDS)


# ── what counts as given ───────────────────────────────────────────────────────────────────────────────────


def test_a_default_is_never_refused():
    for kind in KINDS.values():
        kind.check(Sampling())
        kind.check(Sampling.from_dict(Sampling().to_dict()))


def test_options_that_are_no_sampling_are_refused():
    for call in (
        lambda: model().infill("a", "b", sampling={}),
        lambda: model().rewrite("abc", (0, 1), {"seed": 1}),
        lambda: model().repair("abc", sampling={}),
        lambda: model().sharpen("abc", sampling={}),
    ):
        with pytest.raises(SamplingError, match=r"^sampling is \{.*\}; a Sampling is expected$"):
            call()


def test_a_parameter_of_something_that_is_off_has_nothing_to_do_and_is_refused_with_it():
    plain = generated(1, LONG)
    for parameter, option in NEEDS.items():
        value = CASES[parameter][0]
        assert getattr(Sampling(), option) in (0, 1)
        assert generated(1, {**LONG, parameter: value}) == plain
        for kind in KINDS.values():
            assert (parameter in kind.refused) == (option in kind.refused)


def test_what_a_run_has_by_itself_is_not_refused_in_its_forks():
    run = model().generate(PROMPT, Sampling(**LONG, seed=1, beam_width=3, length_penalty=0.5))
    fork = run.fork(2, beam_width=1)
    assert fork.sampling.length_penalty == 0.5
    assert run.explain(0, temperature=0.5).winner
    with pytest.raises(SamplingError, match="beam_width is 3; a fork does not take it: it continues one"):
        run.fork(2)
    with pytest.raises(SamplingError, match="length_penalty is 2"):
        run.fork(2, beam_width=1, length_penalty=2.0)


def test_a_recorded_run_with_a_parameter_of_something_that_is_off_is_continued_and_replayed():
    run = model().generate(PROMPT, Sampling(**LONG, seed=1, length_penalty=0.5)).rewind(2)
    complete(model().engine, [model().prepare_rest(run)], progress=False)
    assert run.replay(model()).identical
    filled = model().generate(PROMPT, Sampling(**LONG, seed=1, diffusion=6))
    filled.sampling = replace(filled.sampling, length_penalty=0.5)
    assert filled.replay(model()).identical and model().explain(filled, 0).winner


@pytest.mark.parametrize(
    "argument, value", [("tokens", 6), ("window", 16), ("least_gain", 3.0), ("spans", 4)]
)
def test_a_repair_with_a_verifier_refuses_what_is_for_spans(argument, value):
    problem = f"{argument} is {value}; repair with a verifier does not take it"
    with pytest.raises(GlassloopError, match=problem) as raised:
        model().repair("abc", check=lambda text: True, **{argument: value})
    assert raised.value.field == argument
    if argument == "tokens":
        with pytest.raises(GlassloopError, match="tokens is 6; repair by masks does not take it"):
            model().repair("abc", proposer="diffusion", tokens=6)


@pytest.mark.parametrize("proposer", ["left", "diffusion"])
def test_an_edit_whose_record_has_options_that_were_ignored_is_made_again(proposer):
    sampling = Sampling(seed=1, allowed_token_ids=LETTERS)
    edit = model().infill("the fox", " it", 3, candidates=2, sampling=sampling, proposer=proposer)
    ignored = {"max_tokens": 2, "stop": ["a"], "revise": 2}
    if proposer == "diffusion":
        ignored |= {"timeout": 600.0, "adapter": "one"}
    edit.given["sampling"] |= ignored
    assert edit.replay(model()).identical


# ── the docs ───────────────────────────────────────────────────────────────────────────────────────────────


def test_the_docs_have_the_table():
    """`python -m glassloop.decode.task_kinds` prints it."""
    page = (Path(__file__).parents[1] / "docs" / "decoding.md").read_text(encoding="utf-8")
    section = page.split("\n## Options by kind of task\n")[1].split("\n## ")[0]
    assert section.endswith(f"\n\n{markdown()}\n")
