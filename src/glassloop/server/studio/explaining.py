"""Explanations over HTTP: the JSON shape, and the options in a query string.

What is said comes from `Engine.explain`, as in Python and in the terminal.
"""

from __future__ import annotations

import json
from dataclasses import fields
from math import exp, isnan
from typing import Any, cast

from typing_extensions import TypedDict

from glassloop.decode.explain import Explanation
from glassloop.decode.sampling import Sampling, merge_options
from glassloop.engine.deadline import Deadline
from glassloop.engine.replay import Luck, NoSuchToken, Part, token_at
from glassloop.errors import SamplingError
from glassloop.record.run import Run
from glassloop.server.http.errors import APIError
from glassloop.server.http.streaming import api_answer
from glassloop.server.sampling_options import make_sampling
from glassloop.server.service import Service

_KINDS = {field.name: field.metadata["kind"] for field in fields(Sampling)}


class Actual(TypedDict):
    id: int
    text: str
    source: str


class Others(TypedDict):
    count: int | None
    raw: float | None
    after: float | None


@api_answer
class ExplanationShape(TypedDict):
    index: int
    of: str
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
    taken: dict[str, Any]
    source: str
    beam: dict[str, int] | None
    sentence: str
    notes: list[str]
    upstream: str | None
    difference: dict[str, Any] | None


class Explainer:
    """Answers the explain route. Its methods may take a while; they are not for the event loop's thread."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def explain(
        self,
        run: Run,
        index: int,
        of: Part,
        luck: Luck,
        number: int | None,
        shown: int,
        overrides: dict[str, Any],
        deadline: Deadline,
    ) -> ExplanationShape:
        """Returns the explanation of a token. `number` is that of a pass, in a text that was written by
        diffusion, `shown` how many candidates are listed."""
        if number is not None and (run.diffusion is None or of == "prompt"):
            raise APIError(400, "pass is given; a place that was filled by passes is expected", param="pass")
        if overrides and run.upstream is None:  # held to the server's limits
            before = run.drawn_with(index if of == "answer" else 0).sampling.to_dict()
            options = merge_options(before, {"n": 1, "beam_width": 1, **overrides})
            make_sampling(options, self._service.settings)
        llm = self._service.llm
        question = overrides if number is None else {"number": number, **overrides}
        try:
            explanation = llm.explain(
                run, index, of=of, luck=luck, shown=shown, deadline=deadline, **question
            )
        except NoSuchToken as error:
            raise APIError(400, str(error), param="index") from None
        actual = self._actual(run, index, of)
        answer = {
            "index": index,
            "of": of,
            **explanation.to_dict(),
            "actual": actual,
            "same": None if actual is None else actual["id"] == explanation.winner.id,
            "others": self._others(explanation),
        }
        return cast(ExplanationShape, answer)

    def _actual(self, run: Run, index: int, of: Part) -> Actual | None:
        """Returns the token that the run has at this place, if there is one."""
        if of == "prompt":
            id, llm = run.prompt_ids[index], self._service.llm
            piece = llm.piece(id) if run.upstream is None else run.prompt_tokens[index - 1].piece
            return Actual(id=id, text=piece, source="prompt")
        token = token_at(run, index)
        if run.diffusion is not None and index > len(run.tokens):
            token = None  # it was filled in a block that the run does not have, or behind its end
        return None if token is None else Actual(id=token.id, text=token.piece, source=token.source)

    def _others(self, explanation: Explanation) -> Others:
        """Returns the number and the probability of all tokens that are not listed. Of another engine's only
        the probability is known, and only if it reported that of all that are listed."""
        candidates = explanation.candidates
        raw = sum(exp(racer.raw_logprob) for racer in candidates)
        if explanation.upstream is not None:
            return Others(count=None, raw=None if isnan(raw) else max(0.0, 1.0 - raw), after=None)
        after = sum(exp(racer.logprob) for racer in candidates if racer.logprob is not None)
        return Others(
            count=self._service.llm.config.vocab_size - len(candidates),
            raw=max(0.0, 1.0 - raw),
            after=max(0.0, 1.0 - after),
        )


def read_overrides(query: dict[str, str]) -> dict[str, Any]:
    """Returns the options in a query string: texts as they are, everything else read as JSON."""
    overrides: dict[str, Any] = {}
    for name, text in query.items():
        kind = _KINDS.get(name)
        overrides[name] = text
        if kind in (None, "text"):  # an unknown name is refused by `Sampling`
            continue
        try:
            overrides[name] = json.loads(text)
        except (ValueError, RecursionError):
            if kind != "texts":
                expected = f"{kind}, as JSON has it, is expected"
                raise SamplingError(f"{name} is {text[:80]!r}; {expected}", field=name) from None
    return overrides
