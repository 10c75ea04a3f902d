"""Whatever a caller passes to a public method of `LLM` or `Run`: the call returns, or raises a
`GlassloopError` that names the argument. No other error comes out, and the engine goes on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import dataclass
from functools import cache
from inspect import signature
from typing import Any

import numpy as np
import pytest
from diffuse.small import masked_llm
from engine.random_runs import SmallLLM

from glassloop import LLM, GlassloopError, Run, Sampling
from glassloop.engine.lens import Lenses
from glassloop.text.chat import ChatTemplate
from glassloop.util.shown import shown

HOSTILE: dict[str, Any] = {
    "None": None,
    "-1": -1,
    "1.5": 1.5,
    "nan": float("nan"),
    "text": "1",
    "empty text": "",
    "bytes": b"1",
    "empty list": [],
    "list": [None],
    "nested": [[]],
    "empty dict": {},
    "dict": {1: 2},
    "object": object(),
    "True": True,
    "huge": 10**400,
    "lone surrogate": "\ud800",
}
TEXT = "the quick brown fox"
IDS = {"token_ids": [1, 2, 3]}
TALK = {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 3}
DRAWN = Sampling(seed=1, max_tokens=4)
GIVEN = {"prompt": TEXT, "sampling": DRAWN}
EDITED = {"tokens": 2, "candidates": 2, "sampling": Sampling(seed=1)}
OPTIONS = ("max_tokens", "n", "seed", "stop", "temperature", "adapter", "logit_bias")
WHAT_IFS = ("of", "luck", "shown", "temperature", "max_tokens")
CHANGES = ("token", "text", "sampling", "temperature", "max_tokens")
IN_EDITS = ("window", "deadline")
IN_SOLVE = ("samples", "extract", "verify", "judge", "sampling", "budget", "priority", "watch", "temperature")
SWITCHES = {"progress", "same_luck", "strict", "tree"}  # any value of these is true or false


@dataclass
class Method:
    """A public method, arguments with which it succeeds, and how its result is used up."""

    call: Callable[..., Any]
    given: dict[str, Any]
    also: tuple[str, ...] = ()  # keyword arguments that its signature does not list
    consume: Callable[[Any], Any] = lambda made: made

    @property
    def arguments(self) -> Iterable[str]:
        known = signature(self.call).parameters.values()
        named = [each.name for each in known if each.kind is not each.VAR_KEYWORD]
        return [name for name in dict.fromkeys([*named, *self.given, *self.also]) if name not in SWITCHES]


@cache
def model() -> SmallLLM:
    return masked_llm()


@cache
def chatting() -> SmallLLM:
    """A model with a template that writes the contents of messages one after the other."""
    made = SmallLLM()
    made.requests.tokenizer = copy(made.tokenizer)
    written = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    made.tokenizer.chat_template = ChatTemplate(written)
    return made


@cache
def plain_run() -> Run:
    return model().generate(TEXT, DRAWN)


@cache
def filled_run() -> Run:
    return model().diffuse(TEXT, DRAWN, diffusion=4)


def followed(request: Any) -> list[Any]:
    return list(model().follow(request))


async def listed(tokens: Any) -> list[Any]:
    return [token async for token in tokens]


def given_run(**others: Any) -> dict[str, Any]:
    return {"run": plain_run(), **others}


METHODS: dict[str, Callable[[], Method]] = {
    "generate": lambda: Method(model().generate, {"prompt": TEXT, "max_tokens": 3}, (*OPTIONS, "sampling")),
    "generate each": lambda: Method(
        model().generate, {"prompt": [TEXT, [1, 2]], "max_tokens": 3}, ("sampling",)
    ),
    "generate_iter": lambda: Method(
        model().generate_iter, {"prompts": [TEXT], "max_tokens": 3}, ("sampling",), list
    ),
    "stream": lambda: Method(model().stream, GIVEN, consume=list),
    "astream": lambda: Method(model().astream, GIVEN, consume=lambda made: asyncio.run(listed(made))),
    "agenerate": lambda: Method(model().agenerate, GIVEN, consume=asyncio.run),
    "chat": lambda: Method(chatting().chat, TALK),
    "solve": lambda: Method(
        model().solve, {"question": TEXT, "n": 2, "max_tokens": 4, "chat": False}, IN_SOLVE
    ),
    "contrast": lambda: Method(
        model().contrast, {"other": model(), "prompts": [TEXT], "max_tokens": 3}, (*OPTIONS, "sampling")
    ),
    "diffuse": lambda: Method(model().diffuse, {**GIVEN, "diffusion": 4}),
    "fork": lambda: Method(model().fork, given_run(at=2), CHANGES),
    "explain": lambda: Method(model().explain, given_run(at=2), WHAT_IFS),
    "explain a filled place": lambda: Method(
        model().explain, {"run": filled_run(), "at": 2}, (*WHAT_IFS, "number")
    ),
    "replay": lambda: Method(model().replay, given_run()),
    "infill": lambda: Method(
        model().infill,
        {"before": "the ", "after": " fox", **EDITED},
        (*IN_EDITS, "method", "proposer", "diffusion"),
    ),
    "rewrite": lambda: Method(
        model().rewrite, {"text": TEXT, "spans": [(4, 9)], **EDITED}, (*IN_EDITS, "method")
    ),
    "repair": lambda: Method(
        model().repair,
        {"text": TEXT, "budget": 200, **EDITED},
        (*IN_EDITS, "prompt", "least_gain", "spans", "proposer"),
    ),
    "repair with a verifier": lambda: Method(
        model().repair, {"text": plain_run(), "check": bool, "budget": 40, "candidates": 2}, ("sampling",)
    ),
    "sharpen": lambda: Method(model().sharpen, {**GIVEN, "steps": 2}, ("block", "deadline")),
    "prepare": lambda: Method(model().prepare, GIVEN, ("priority", "listener"), followed),
    "prepare_chat": lambda: Method(
        chatting().prepare_chat, {"messages": TALK["messages"], "sampling": DRAWN}
    ),
    "prepare_fork": lambda: Method(model().prepare_fork, given_run(at=1), CHANGES, followed),
    "prepare_rest": lambda: Method(model().prepare_rest, {"run": plain_run().rewind(2)}),
    "logits": lambda: Method(model().logits, IDS),
    "embed": lambda: Method(model().embed, IDS),
    "decode": lambda: Method(model().decode, IDS),
    "piece": lambda: Method(model().piece, {"token": 65}),
    "load_adapter": lambda: Method(model().load_adapter, {"name": "a", "path": "/nowhere"}),
    "unload_adapter": lambda: Method(model().unload_adapter, {"name": "a"}),
    "load_holes": lambda: Method(model().load_holes, {"adapter": "/nowhere"}),
    "lens.attention": lambda: Method(Lenses(model()).attention, {"text": TEXT}),
    "lens.layers": lambda: Method(Lenses(model()).layers, {"text": TEXT}),
    "lens.neighbours": lambda: Method(Lenses(model()).neighbours, {"of": 65}),
    "lens.neighbours_in": lambda: Method(Lenses(model()).neighbours_in, {"text": TEXT}),
    "Run.explain": lambda: Method(plain_run().explain, {"at": 1}, WHAT_IFS),
    "Run.fork": lambda: Method(plain_run().fork, {"at": 1}, CHANGES),
    "Run.rewind": lambda: Method(plain_run().rewind, {"at": 1}),
    "Run.replay": lambda: Method(plain_run().replay, {}),
    "Run.distinct": lambda: Method(plain_run().distinct, {"size": 2}),
    "Run.attach": lambda: Method(plain_run().rewind(1).attach, {"llm": model()}),
    "Run.receipt": lambda: Method(plain_run().receipt, {}, ("key",)),
    "Run.save": lambda: Method(plain_run().save, {"path": "new.glass"}),
    "Run.save_html": lambda: Method(plain_run().save_html, {"path": "new.html"}),
    "Run.load": lambda: Method(Run.load, {"path": "run.glass"}),
}
# Methods that take requests, runs or options that other methods have made and checked, or nothing at all.
INNER = {
    *("adapter_number", "afollow", "after_step", "apply", "cancel", "check_computes", "check_may_wait"),
    *("close", "compile", "complete", "follow", "forget", "handovers", "has_room"),
    *("logits_row", "replay_edit", "replay_search", "statistics", "submit"),
    *(
        "Run.add_pass",
        "Run.beginning",
        "Run.check_computable",
        "Run.count_fork",
        "Run.descend",
        "Run.drawn_with",
        "Run.live",
    ),
    *("Run.options_at", "Run.revise", "Run.same_record", "Run.to_dict", "Run.to_records", "Run.tree"),
}


def test_every_public_method_is_in_the_table():
    for kind, prefix in ((LLM, ""), (Run, "Run.")):
        names = [name for name in dir(kind) if not name.startswith("_") and callable(getattr(kind, name))]
        assert {f"{prefix}{name}" for name in names} <= {*METHODS, *INNER}


@pytest.mark.parametrize("name", METHODS)
def test_a_wrong_argument_is_named(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # some of the values are good names of files
    plain_run().save("run.glass")
    method = METHODS[name]()
    method.consume(method.call(**method.given)) if "load_" not in name else None
    wrong = []
    for argument in method.arguments:
        for what, value in HOSTILE.items():
            try:
                method.consume(method.call(**method.given | {argument: value}))
            except GlassloopError as error:
                about_a_file = "cannot be read" in str(error)  # its name is in the message instead
                if error.field is None and not about_a_file:
                    wrong.append(f"{argument}={what}: no field: {type(error).__name__}: {error}")
            except Exception as error:
                wrong.append(f"{argument}={what}: {type(error).__name__}: {shown(str(error))}")
    assert not wrong, "\n".join(wrong)
    assert model().generate(TEXT, DRAWN).tokens == plain_run().tokens  # the engine goes on


def test_a_place_may_be_a_whole_number_of_numpy(tmp_path):
    run = plain_run()
    assert json.dumps(run.explain(np.int64(2)).to_dict()) == json.dumps(run.explain(2).to_dict())
    assert run.rewind(np.int32(2)).token_ids == run.token_ids[:2]
    fork = run.fork(np.int64(2), temperature=0)
    fork.save(tmp_path / "fork.glass")
    assert Run.load(tmp_path / "fork.glass").fork_at == 2
