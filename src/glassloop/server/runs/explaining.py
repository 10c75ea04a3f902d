"""Why a token of a run is what it is, or what would have come instead: the engine is asked for the logits
once more, and the same chain runs on them.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import fields
from math import exp
from threading import Lock
from typing import Any

from pydantic import BaseModel

from glassloop.decode.explain import Racer, explain
from glassloop.decode.luck import fork_salt
from glassloop.decode.sampling import Sampling
from glassloop.engine.deadline import Deadline
from glassloop.engine.logits import logits_after
from glassloop.engine.replay import check_run
from glassloop.errors import SamplingError
from glassloop.ops.quant import Float32
from glassloop.server.errors import APIError
from glassloop.server.options import make_sampling
from glassloop.server.runs.state import RunState
from glassloop.server.service import Service

_KEPT = 32  # rows of logits: a slider asks about the same place again and again
_KINDS = {field.name: field.metadata["kind"] for field in fields(Sampling)}


class Actual(BaseModel):
    id: int
    text: str
    source: str


class Others(BaseModel):
    count: int
    raw: float
    after: float


class ExplanationShape(BaseModel):
    index: int
    position: int
    seed: int
    salt: int
    sampling: dict[str, Any]
    actual: Actual | None
    same: bool | None
    stages: list[dict[str, Any]]
    candidates: list[dict[str, Any]]
    others: Others
    winner: dict[str, Any]
    runner_up: dict[str, Any] | None
    margin: float | None
    sentence: str


class Explainer:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._rows: OrderedDict[tuple[int, ...], Float32] = OrderedDict()
        self._lock = Lock()

    def explain(
        self, state: RunState, index: int, overrides: dict[str, Any], new_luck: bool, deadline: Deadline
    ) -> dict[str, Any]:
        """Takes a while; not for the event loop's thread."""
        run, llm = state.run, self._service.llm
        check_run(llm, run)
        count = len(run.tokens)
        if not 0 <= index <= count:
            raise APIError(
                400,
                f"the index is {index}; a number from 0 to {count}, of this run's tokens, is expected",
                param="index",
            )
        maker = run.drawn_with(index)  # a fork did not choose what it kept
        options = maker.sampling
        if overrides:
            options = make_sampling({**maker.sampling.to_dict(), "n": 1, **overrides}, self._service.settings)
        ids = run.prompt_ids + [token.id for token in run.tokens[:index]]
        position, salt = len(ids), maker.salt
        if new_luck:
            salt = fork_salt(run.salt, position, run.forks.get(position, 0) + 1)
        token = run.tokens[index] if index < count else run.end
        refused = None if token is None or overrides or new_luck else token.refused
        told = explain(
            self._logits(ids, deadline),
            ids,
            options,
            maker.seed,
            prompt_length=len(run.prompt_ids),
            salt=salt,
            tokenizer=llm.tokenizer,
            eos_ids=tuple(llm.tokenizer.eos_ids),
            ops=llm.transformer.ops.rows,
            refused=None if refused is None else refused.id,
        )
        actual = None if token is None else {"id": token.id, "text": token.piece, "source": token.source}
        return {
            "index": index,
            **told.to_dict(),
            "actual": actual,
            "same": None if token is None else token.id == told.winner.id,
            "others": self._others(told.candidates),
        }

    def _logits(self, ids: list[int], deadline: Deadline) -> Float32:
        key = tuple(ids)
        with self._lock:
            row = self._rows.get(key)
            if row is not None:
                self._rows.move_to_end(key)
                return row
        row = next(logits_after(self._service.llm.engine, ids, len(ids) - 1, deadline))
        with self._lock:
            self._rows[key] = row
            while len(self._rows) > _KEPT:
                self._rows.popitem(last=False)
        return row

    def _others(self, shown: tuple[Racer, ...]) -> dict[str, Any]:
        raw = sum(exp(racer.raw_logprob) for racer in shown)
        after = sum(exp(racer.logprob) for racer in shown if racer.logprob is not None)
        return {
            "count": self._service.llm.config.vocab_size - len(shown),
            "raw": max(0.0, 1.0 - raw),
            "after": max(0.0, 1.0 - after),
        }


def read_overrides(query: dict[str, str]) -> dict[str, Any]:
    """Options out of a query string: texts are texts, everything else is JSON."""
    made: dict[str, Any] = {}
    for name, text in query.items():
        kind = _KINDS.get(name)
        if kind is None:
            made[name] = text  # `Sampling` says what is wrong with it
        elif kind == "text":
            made[name] = text
        else:
            try:
                made[name] = json.loads(text)
            except (ValueError, RecursionError):
                if kind != "texts":
                    raise SamplingError(
                        f"{name} is {text[:80]!r}; {kind}, as JSON has it, is expected", field=name
                    ) from None
                made[name] = text
    return made
