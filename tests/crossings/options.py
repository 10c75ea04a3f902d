"""A generator for every option of `Sampling`. An option without one fails the tests, so that each new option
meets all that there is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from crossings.stages import EXITS, GOOD, RAISES
from engine.small import EOS

from glassloop.decode.chain import DEFAULT_ORDER

Rng = np.random.Generator
Options = dict[str, Any]
Generate = Callable[[Rng, Options], Any]

LETTERS = "abcd"  # with few letters, stop strings and repetitions occur
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
GRAMMARS = ('start: "a" start | "b"', 'start: /[ab]+/ "c"')


def letters(rng: Rng, least: int, most: int) -> str:
    return "".join(rng.choice(list(LETTERS), int(rng.integers(least, most + 1))))


def pick(rng: Rng, *values: Any) -> Any:
    return values[int(rng.integers(len(values)))]


def _number(low: float, high: float) -> Generate:
    return lambda rng, _: round(float(rng.uniform(low, high)), 3)


def _whole(low: int, high: int) -> Generate:
    return lambda rng, _: int(rng.integers(low, high + 1))


def _one_of(*values: Any) -> Generate:
    return lambda rng, _: pick(rng, *values)


def _stages(rng: Rng, _: Options) -> list[str]:
    chosen = str(rng.choice([*GOOD, *GOOD, RAISES, EXITS, "order"]))
    if chosen == "order":
        return [str(name) for name in rng.permutation(DEFAULT_ORDER)]
    return ["default", chosen] if rng.random() < 0.7 else [chosen, "default"]


def _stage_options(rng: Rng, options: Options) -> Options:
    known: Options = {"crossing_lift": {"by": 2.5}}
    known |= {name: {"one_in": int(rng.integers(2, 30))} for name in (RAISES, EXITS)}
    return {name: known[name] for name in options.get("stages", ()) if name in known}


def _diffusion(rng: Rng, _: Options) -> Options:
    made: Options = {
        "block": int(rng.integers(1, 9)),
        "order": pick(rng, "confidence", "entropy", "left", "random"),
    }
    if rng.random() < 0.5:
        made["passes"] = int(rng.integers(1, 9))
    made["threshold"] = pick(rng, None, 0.1, 0.5, 0.9)
    if rng.random() < 0.3:
        made |= {"most": int(rng.integers(1, 4))}
    if rng.random() < 0.2:
        made |= {"entropy": 3.0}
    if rng.random() < 0.4:
        made |= {"revise": int(rng.integers(1, 3)), "revise_by": pick(rng, "confidence", "likelihood")}
    return made


# How often an option is drawn, and what. They are drawn in this order: later ones may depend on earlier ones.
GENERATORS: dict[str, tuple[float, Generate]] = {
    "temperature": (0.5, _one_of(0.0, 0.3, 0.7, 1.5, 3.0)),
    "top_k": (0.15, _whole(1, 60)),
    "top_p": (0.15, _number(0.1, 1)),
    "min_p": (0.1, _one_of(0.02, 0.05, 0.3)),
    "typical_p": (0.1, _number(0.2, 1)),
    "top_n_sigma": (0.1, _number(0.5, 3)),
    "xtc_probability": (0.15, _one_of(0.3, 0.6, 1.0)),
    "xtc_threshold": (0.15, _one_of(0.02, 0.1, 0.3)),
    "epsilon_cutoff": (0.08, _one_of(0.001, 0.02)),
    "eta_cutoff": (0.08, _one_of(0.01, 0.05)),
    "repetition_penalty": (0.12, _one_of(0.8, 1.3)),
    "presence_penalty": (0.12, _one_of(-0.5, 0.4)),
    "frequency_penalty": (0.12, _one_of(-0.2, 0.3)),
    "no_repeat_ngram_size": (0.1, _whole(1, 3)),
    "dry_multiplier": (0.12, _one_of(0.4, 1.2)),
    "dry_base": (0.06, _one_of(1.2, 2.0)),
    "dry_allowed_length": (0.06, _whole(1, 4)),
    "logit_bias": (0.35, lambda rng, _: {str(EOS): round(float(rng.uniform(-2, 7)), 3), "97": 1.5}),
    "allowed_token_ids": (0.45, lambda rng, _: pick(rng, [*map(ord, LETTERS), EOS], [*range(90, 257)])),
    "bad_words": (0.12, lambda rng, _: [letters(rng, 1, 2), pick(rng, "cd", [98, 99])]),
    "seed": (1.0, _whole(0, 10_000)),
    "n": (0.2, _whole(2, 4)),
    "max_tokens": (1.0, lambda rng, _: int(rng.integers(1, pick(rng, 6, 24, 24, 60)))),
    "min_tokens": (0.15, lambda rng, options: int(rng.integers(0, options["max_tokens"] + 1))),
    "stop": (0.35, lambda rng, _: [letters(rng, 1, 4) for _ in range(int(rng.integers(1, 4)))]),
    "stop_token_ids": (0.1, lambda rng, _: [int(rng.integers(97, 101)), int(rng.integers(0, 257))]),
    "include_stop": (0.15, _one_of(True)),
    "ignore_eos": (0.15, _one_of(True)),
    "timeout": (0.08, _one_of(1e6, 1e6, 1e-6)),
    "stop_on_repetition": (0.15, _whole(2, 4)),
    "revise": (0.15, _whole(1, 4)),
    "revise_window": (0.12, _whole(2, 24)),
    "revise_bits": (0.12, _one_of(0.5, 1.5, 4.0)),
    "beam_width": (0.12, _whole(2, 5)),
    "length_penalty": (0.06, _one_of(-1.0, 0.0, 2.0)),
    "early_stopping": (0.06, _one_of(True)),
    "json_schema": (0.03, _one_of(SCHEMA, True)),
    "regex": (0.06, _one_of("[a-d]+", "(ab|cd)*x?", "[0-9]{3,9}", "[a-z ]{3,30}")),
    "choice": (0.04, _one_of(["abba", "cab", "dad"], ["a", "aa", "aaa"])),
    "grammar": (0.03, _one_of(*GRAMMARS)),
    "diffusion": (0.12, _diffusion),
    "adapter": (0.25, _one_of("one", "two")),
    "logprobs": (0.5, _whole(0, 8)),
    "prompt_logprobs": (0.2, _whole(1, 4)),
    "stages": (0.15, _stages),
    "stage_options": (0.6, _stage_options),
}
CONSTRAINTS = ("json_schema", "regex", "choice", "grammar")


def draw_options(rng: Rng, without: Collection[str] = (), odd: float = 0.03, **fixed: Any) -> Options:
    """Returns options as JSON has them. A few contradict each other (`odd`), which must be refused."""
    made: Options = {}
    for name, (chance, generate) in GENERATORS.items():
        if rng.random() < chance and name not in without:
            made[name] = generate(rng, made)
    if not made.get("stage_options"):
        made.pop("stage_options", None)
    made |= fixed
    bad = {"raises": RAISES, "exits": EXITS}
    if any(word in without and name in made.get("stages", ()) for word, name in bad.items()):
        del made["stages"]
        made.pop("stage_options", None)
    if rng.random() >= odd:
        _settle(rng, made)
    return made


def _settle(rng: Rng, made: Options) -> None:
    """Removes options until none contradicts another."""

    def drop(*names: str) -> None:
        for name in names:
            made.pop(name, None)

    constraints = [name for name in CONSTRAINTS if name in made]
    drop(*constraints[1:])
    if constraints:
        drop("ignore_eos", "allowed_token_ids", "stop_token_ids", "stages", "stage_options")
    if "diffusion" in made:
        drop("beam_width", "revise", "adapter", "prompt_logprobs")
        if constraints:
            made["diffusion"].pop("revise", None)
    if "beam_width" in made:
        drop("revise")
        made["n"] = min(made.get("n", 1), made["beam_width"])
        if rng.random() < 0.7:
            drop("prompt_logprobs")
    else:
        drop("length_penalty", "early_stopping")
    if made.get("temperature", 1) == 0:
        drop("revise")
    if "revise" not in made:
        drop("revise_window", "revise_bits")
    elif "revise_window" in made:
        made["max_tokens"] = max(made.get("max_tokens", 1), made["revise_window"] + 2)
    if made.get("n") == 1:
        drop("n")
