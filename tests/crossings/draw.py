"""Draws scenarios. A scenario is plain data: a model, the settings of an engine, requests that come at some
step, and questions that are asked when they have ended. It can be written as JSON, cut down and played again.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from crossings.options import GENERATORS, Options, Rng, draw_options, letters, pick
from crossings.world import EXTRAS
from engine.small import EOS, PARTS

from glassloop.ops.batch import PAGE
from glassloop.search.methods import METHODS

Scenario = dict[str, Any]
Op = dict[str, Any]

# Words for --without, beside the names of options: each takes something out of all scenarios.
FEATURES = {
    "window": "sliding windows",
    "experts": "a layer with experts",
    "recurrent": "a recurrent layer",
    "sinks": "attention with sinks",
    "gates": "attention whose output has a gate",
    "row_norms": "norms of the queries and keys of all heads as one row",
    "shared": "a layer that reads the keys of another one",
    "parallel": "layers whose mixer and feed-forward read the same norm",
    "forgetful": "states and rows of recurrent layers that are given back at random",
    "tight": "little memory for keys and values, and few states and rows",
    "reference": "the op set reference",
    "ahead": "steps that are computed ahead",
    "lookup": "drafts from earlier text",
    "drafter": "drafts of a drafter",
    "model": "drafts of a draft model",
    "masks": "edits by masks",
    "raises": "stages that raise",
    "exits": "stages and listeners that ask for the end of the process",
    "listeners": "listeners that raise",
    "extras": "adapters that are loaded and unloaded under way",
    "cancel": "requests that are cancelled, and continued",
    "pause": "requests that pause, and are continued",
    "forks": "forks while requests run",
    "changes": "forks with other options",
    "clients": "requests of several clients, which take turns",
    "questions": "all questions",
}
# The questions, by name, and how often each is asked. The names are words for --without too.
QUESTIONS = {
    "fork": 4.0,
    "what_if": 4.0,
    "replay": 1.0,
    "save": 1.0,
    "store": 0.5,
    "lens": 1.0,
    "logits": 0.7,
    "embed": 0.5,
    "rewind": 0.7,
    "stream": 1.0,
    "astream": 0.5,
    "list": 1.0,
    "chat": 0.5,
    "infill": 0.6,
    "rewrite": 0.5,
    "repair": 0.4,
    "repair_check": 0.5,
    "sharpen": 0.5,
    "solve": 0.6,
    "refused": 1.0,
    "threads": 0.5,
}
_FORK_CHANGES = (
    *("temperature", "top_k", "top_p", "min_p", "logit_bias", "stop", "max_tokens", "adapter", "n", "seed"),
    *("repetition_penalty", "logprobs", "prompt_logprobs", "xtc_probability", "revise", "stop_on_repetition"),
    *("min_tokens", "bad_words", "ignore_eos", "include_stop", "stages"),
)
_WHAT_IFS = (
    *(
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "typical_p",
        "top_n_sigma",
        "logit_bias",
        "repetition_penalty",
    ),
    *("xtc_probability", "adapter", "seed", "no_repeat_ngram_size", "epsilon_cutoff", "allowed_token_ids"),
)


def draw(seed: int, without: Collection[str] = ()) -> Scenario:
    """Returns the scenario of a seed."""
    rng = np.random.default_rng(seed)
    variant = _variant(rng, without) | _layers(seed, without)
    if variant["recurrent"] and variant["draft"] == "drafter":
        variant["draft"] = "lookup" if "lookup" not in without else "off"
    shared = rng.integers(0, 256, 70).tolist()
    crowded = "tight" not in without and rng.random() < 0.3
    requests = [_request(rng, without, shared) for _ in range(int(rng.integers(1, 7)) + 2 * crowded)]
    if crowded:
        _crowd(rng, requests)
    if "forks" not in without:
        requests += [_fork(rng, without) for _ in range(int(rng.integers(0, 4)))]
    questions: list[Op] = []
    if "questions" not in without:
        drawn = [_question(rng, without, shared) for _ in range(int(rng.integers(0, 6)))]
        questions = [each for each in drawn if each["op"] not in without]
    settings = _settings(rng, without, crowded)
    if variant["recurrent"]:
        settings |= _slots(seed, without)
    return {
        "seed": seed,
        "model": variant,
        "settings": settings,
        "requests": requests,
        "questions": questions,
    }


def _variant(rng: Rng, without: Collection[str]) -> Op:
    window = pick(rng, 1, 5, 20, 33, 40, 64) if rng.random() < 0.5 and "window" not in without else None
    kinds = ["native"] * 6 + ["ahead", "ahead", "reference"]
    ops = pick(rng, *[kind for kind in kinds if kind not in without])
    drafts = ["off", "lookup", "model"]
    if ops == "native" and window is None:
        drafts += ["drafter"] * 2
    draft = pick(rng, *[kind for kind in drafts if kind not in without])
    return {"window": window, "ops": ops, "draft": draft}


def _layers(seed: int, without: Collection[str]) -> Op:
    """Returns what the layers of the model are, by luck of its own: a new kind changes no other draw."""
    rng = np.random.default_rng([seed, 1])
    parts = [part for part in PARTS if rng.random() < 0.15 and part not in without]
    return {
        "experts": seed % 4 == 1 and "experts" not in without,
        "recurrent": bool(seed % 4 == 3 or rng.random() < 0.1) and "recurrent" not in without,
        "parts": parts,
    }


def _slots(seed: int, without: Collection[str]) -> Op:
    """Returns how many states and rows of recurrent layers there are, and how often some are given back."""
    rng, slots = np.random.default_rng([seed, 2]), Op()
    if rng.random() < 0.6 and "tight" not in without:
        slots |= {"states": pick(rng, 4, 5, 6, 8, 12, 20), "rows": int(rng.integers(3 * PAGE, 8 * PAGE))}
    if rng.random() < 0.5 and "forgetful" not in without:
        slots["forgetful"] = pick(rng, 0.1, 0.5)
    return slots


def _crowd(rng: Rng, requests: list[Op]) -> None:
    """Makes requests long and lets them come at the same time, so that they take pages from each other."""
    for op in requests:
        op["step"] = int(rng.integers(0, 4))
        longer = int(rng.integers(40, 80))
        op["options"] |= {"max_tokens": longer, "logit_bias": {str(EOS): -5.0}}
        if rng.random() < 0.8:
            op["prompt"] = {"ids": rng.integers(0, 256, int(rng.integers(20, 110))).tolist()}


def _settings(rng: Rng, without: Collection[str], crowded: bool) -> Op:
    made: Op = {
        "most_running": int(rng.integers(1, 9)),
        "step_rows": int(rng.choice([16, 40, 512])),
        "rows_beside": int(rng.choice([1, 7, 128])),
        "scored_rows": int(rng.choice([1, 5, 64])),
        "too_many_to_guess": int(rng.choice([1, 3, 32])),
        "uneven": float(rng.choice([0, 0, 0.02, 0.2])),
    }
    if crowded:
        made |= {"pages": int(rng.choice([9, 10, 12])), "most_running": int(rng.integers(3, 9))}
    elif "tight" not in without and rng.random() < 0.5:
        made["pages"] = 9 + int(rng.choice([0, 0, 1, 4, 12]))
    return made


def _prompt(rng: Rng, shared: list[int]) -> Op:
    """Often with a beginning that others have too, often with repetitions in it."""
    kind = rng.random()
    if kind < 0.15:
        return {"messages": [{"role": "user", "content": letters(rng, 1, 12)}]}
    if kind < 0.35:
        return {"text": letters(rng, 1, 30)}
    own = rng.integers(0, 256, int(rng.integers(1, 40))).tolist()
    if rng.random() < 0.3:
        own = own[:5] * int(rng.integers(2, 8))
    return {"ids": shared[: rng.integers(0, len(shared) + 1)] + own if rng.random() < 0.6 else own}


def _request(rng: Rng, without: Collection[str], shared: list[int]) -> Op:
    made: Op = {"op": "request", "step": int(rng.choice([0, 0, rng.integers(0, 30)]))}
    made |= {"prompt": _prompt(rng, shared), "options": draw_options(rng, without)}
    options = made["options"]
    if rng.random() < 0.3:
        made["priority"] = int(rng.integers(0, 3))
    if rng.random() < 0.5 and "clients" not in without:
        made["owner"] = pick(rng, "a", "b", "c")
    if rng.random() < 0.1 and "listeners" not in without:
        made["listener"] = pick(rng, *["raises"] * 2, *(["exits"] if "exits" not in without else []))
        made["listener_at"] = int(rng.integers(0, 8))
    if (
        rng.random() < 0.1
        and "extras" not in without
        and "adapter" not in without
        and "diffusion" not in options
    ):
        made["extra"] = options["adapter"] = pick(rng, *EXTRAS)
    if rng.random() < 0.3 and "cancel" not in without:
        made["cancel"] = [int(rng.integers(1, 12)) for _ in range(int(rng.integers(1, 4)))]
        made["continue"] = bool(rng.random() < 0.8)
    elif rng.random() < 0.1 and "pause" not in without and not {"beam_width", "diffusion"} & options.keys():
        made["pause"] = [int(rng.integers(1, 10)) for _ in range(int(rng.integers(1, 3)))]
    return made


def _fork(rng: Rng, without: Collection[str]) -> Op:
    made: Op = {"op": "fork", "step": int(rng.integers(2, 40)), "of": int(rng.integers(0, 8))}
    made |= {
        "sample": int(rng.integers(0, 3)),
        "at": round(float(rng.uniform(0, 1)), 3),
        **_change(rng, without),
    }
    if rng.random() < 0.3 and "cancel" not in without:
        made["cancel"] = [int(rng.integers(1, 8)) for _ in range(int(rng.integers(1, 3)))]
        made["continue"] = True
    return made


def _change(rng: Rng, without: Collection[str]) -> Op:
    """What a fork changes: nothing, a token, a text, or options."""
    kind = int(rng.integers(4))
    if kind == 1:
        return {"token": pick(rng, "chosen", "chosen", "chosen", 97, 200)}
    if kind == 2:
        return {"text": letters(rng, 1, 6)}
    if kind == 3 and "changes" not in without:
        return {"changes": _some(rng, without, _FORK_CHANGES)}
    return {}


def _some(rng: Rng, without: Collection[str], names: tuple[str, ...]) -> Options:
    """Returns one or two of the options of these names."""
    kept = {"max_tokens", "seed"}
    while True:
        drawn = draw_options(rng, without, odd=0.0)
        found = [name for name in drawn if name in names and (name not in kept or rng.random() < 0.1)]
        if found:
            chosen = [str(name) for name in rng.permutation(found)[:2]]
            return {name: drawn[name] for name in chosen} | (
                {"stage_options": drawn.get("stage_options", {})} if "stages" in chosen else {}
            )


def _question(rng: Rng, without: Collection[str], shared: list[int]) -> Op:
    names, chances = list(QUESTIONS), np.array([*QUESTIONS.values()])
    kind = str(rng.choice(names, p=chances / chances.sum()))
    made: Op = {"op": kind, "of": int(rng.integers(0, 8)), "sample": int(rng.integers(0, 3))}
    made["at"] = round(float(rng.uniform(0, 1)), 3)
    left_to_right = {*without, "diffusion", "beam_width", "revise", "n", "timeout"}
    if kind == "fork":
        made |= _change(rng, without)
    elif kind == "what_if":
        made |= {"changes": _some(rng, without, _WHAT_IFS), "luck": pick(rng, "same", "same", "new")}
    elif kind in ("stream", "astream", "chat"):
        made |= {"prompt": _prompt(rng, shared), "options": draw_options(rng, without, timeout=1e6)}
    elif kind == "list":
        made["prompts"] = [_prompt(rng, shared) for _ in range(int(rng.integers(1, 5)))]
        made |= {"options": draw_options(rng, without, timeout=1e6), "same_luck": bool(rng.random() < 0.3)}
    elif kind == "threads":
        made["requests"] = [
            {"prompt": _prompt(rng, shared), "options": draw_options(rng, without, timeout=1e6)}
            for _ in range(int(rng.integers(2, 5)))
        ]
    elif kind == "refused":
        made["wrong"] = int(rng.integers(0, 1000))
    elif kind in ("infill", "rewrite", "repair", "repair_check", "sharpen", "solve"):
        short = {"max_tokens": int(rng.integers(2, 16)), "seed": int(rng.integers(1000))}
        names = {"stop_on_repetition", "logprobs", "temperature"} if rng.random() < 0.3 else set()
        drawn = draw_options(rng, {*left_to_right, *names}, odd=0.05)
        made["options"] = {
            **drawn,
            **short,
            "min_tokens": min(drawn.get("min_tokens", 0), short["max_tokens"]),
        }
        if "prompt_logprobs" in drawn and kind not in ("sharpen", "solve"):
            del made["options"]["prompt_logprobs"]
        made["with_options"] = bool(rng.random() < 0.8)
        made["given"] = _given(rng, kind, made["options"], without)
    return made


def _given(rng: Rng, kind: str, options: Options, without: Collection[str]) -> Op:
    """The arguments of an edit or a search, beside its options."""
    before, after = letters(rng, 2, 12), letters(rng, 1, 12)
    candidates = int(rng.integers(1, 5))
    masks = "masks" not in without
    if kind == "infill":
        method = pick(rng, "rerank", "rerank", "metropolis", *(["holes"] if masks else []))
        made: Op = {"before": before, "after": after, "tokens": int(rng.integers(1, 7)), "method": method}
        made |= {"window": pick(rng, None, 0, 4, 32), "candidates": candidates}
        if method != "holes" and masks and rng.random() < 0.3:
            made |= {"proposer": "diffusion", "diffusion": {"block": 4, "passes": 3}}
        return made
    if kind == "rewrite":
        text = letters(rng, 8, 30)
        spans = [[2, 4], [5, 7]] if rng.random() < 0.5 else [[1, 5]]
        tokens = pick(rng, None, 1, 3)
        method = pick(rng, "rerank", "metropolis")
        return {"text": text, "spans": spans, "tokens": tokens, "method": method, "candidates": candidates}
    if kind == "repair":
        made = {"text": letters(rng, 4, 25), "candidates": candidates, "tokens": int(rng.integers(1, 5))}
        made |= {"budget": int(rng.integers(0, 300)), "least_gain": 0.1, "spans": pick(rng, None, 1, 3)}
        if masks and rng.random() < 0.4:
            made["proposer"] = "diffusion"
            del made["tokens"]
        return made
    if kind == "repair_check":
        run = bool(rng.random() < 0.5)
        return {
            "run": run,
            "text": letters(rng, 3, 20),
            "letter": pick(rng, *"abcd"),
            "candidates": candidates,
        } | {"budget": int(rng.integers(1, 120))}
    if kind == "sharpen":
        block = pick(rng, None, None, int(rng.integers(1, 6)))
        return {
            "text": before,
            "alpha": pick(rng, 1.0, 2.0, 4.0),
            "steps": int(rng.integers(0, 6)),
            "block": block,
        }
    method = pick(rng, *METHODS)
    budget = pick(
        rng, None, None, {"tokens": int(rng.integers(5, 80))}, {"branches": int(rng.integers(1, 5))}
    )
    count = {} if method in ("single", "greedy") else {"n": int(rng.integers(1, 5))}
    return {"question": letters(rng, 2, 10), "method": method, "budget": budget, "chat": False, **count}


def check_words(without: Collection[str]) -> None:
    """Raises if a word for --without is neither a feature nor an option nor a law."""
    for word in without:
        if word not in {*FEATURES, *QUESTIONS, *GENERATORS} and not word.startswith("law:"):
            raise SystemExit(
                f"--without: {word!r} is unknown; {', '.join(FEATURES)}, an option or law:NAME is expected"
            )
