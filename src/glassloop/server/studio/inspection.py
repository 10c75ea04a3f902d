"""`/api/runs/{id}/explain`, `/worst` and `/lens`: why a token was chosen, which tokens to look at first, and
the lenses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response
from typing_extensions import TypedDict

from glassloop.engine import lens as lenses
from glassloop.engine.deadline import Deadline
from glassloop.engine.replay import Luck, Part
from glassloop.record.run import Run
from glassloop.record.token import Token
from glassloop.record.worst import around, first_unlikely, luckiest, most_surprising, surprise_bits
from glassloop.server.http.errors import ERRORS, APIError
from glassloop.server.http.streaming import JSON, api_answer
from glassloop.server.service import Service
from glassloop.server.studio.explaining import Explainer, ExplanationShape, read_overrides
from glassloop.server.studio.runs import Id

_NOT_OPTIONS = ("luck", "of", "pass", "shown")
_MOST_SHOWN = 1000  # candidates of an explanation
_LONGEST_TEXT = 200  # characters whose neighbours are asked for
_MOST_WORST = 100  # tokens in each list of the worst ones


class WorstToken(TypedDict):
    index: int
    piece: str
    before: str  # a few words of the text around it
    after: str
    surprise_bits: float | None
    id: int
    bytes: str
    logprob: float | None
    raw_logprob: float | None
    rank: int | None
    rank_after: int | None
    luck: float | None
    source: str


@api_answer
class Worst(TypedDict):
    run: str
    surprising: list[WorstToken]
    lucky: list[WorstToken]
    first_unlikely: WorstToken | None  # the first one below 1 %


def router(service: Service) -> APIRouter:
    routes = APIRouter(prefix="/api", tags=["runs"], responses=ERRORS)
    explainer = Explainer(service)

    @routes.get("/runs/{id}/explain/{index}", response_model=ExplanationShape)
    async def explain(
        id: Id,
        index: Annotated[int, Path(ge=0, le=1 << 31)],
        request: Request,
        of: Annotated[Part, Query()] = "answer",
        luck: Annotated[Luck, Query()] = "same",
        number: Annotated[int | None, Query(alias="pass", ge=0, le=1 << 31)] = None,
        shown: Annotated[int, Query(ge=1, le=_MOST_SHOWN)] = 10,
    ) -> Response:
        """Why a token of the answer or of the prompt. Any field of Sampling in the query is a what-if. In a
        text that was written by diffusion, `pass` asks about another pass than the one that filled it.
        `shown` is how many candidates there are at least."""
        run = (await service.runs.get(id)).run
        query = {name: text for name, text in request.query_params.items() if name not in _NOT_OPTIONS}
        overrides = read_overrides(query)
        return await service.threads.read_model(
            request,
            lambda deadline: JSON(
                explainer.explain(run, index, of, luck, number, shown, overrides, deadline)
            ),
        )

    @routes.get("/runs/{id}/worst", response_model=Worst)
    async def worst(id: Id, count: Annotated[int, Query(ge=1, le=_MOST_WORST)] = 5) -> Response:
        """The tokens that surprised the model most, and those that won by the most luck."""
        run = (await service.runs.get(id)).run
        return await service.threads.render([run], lambda: JSON(_worst(run, count)))

    @routes.get("/runs/{id}/lens/{name}", response_model=dict[str, Any])
    async def lens(
        request: Request,
        id: Id,
        name: Annotated[str, Path(max_length=64)],
        token: Annotated[int, Query(ge=-(1 << 31), le=1 << 31)] = -1,
        layer: Annotated[int | None, Query(ge=1, le=1 << 31)] = None,
        count: Annotated[int, Query(ge=1, le=lenses.MOST)] = 10,
    ) -> Response:
        """`attention`, `layers`, `experts` or `neighbours` of a token, by its place in prompt and answer."""
        run, lens = (await service.runs.get(id)).run, service.llm.lens
        if name not in lenses.NAMES:
            lens_names = ", ".join(lenses.NAMES)
            raise APIError(
                404, f"there is no lens {name!r}; one of {lens_names} is expected", code="no_such_lens"
            )

        def look(deadline: Deadline) -> Response:
            if name == "attention":
                return JSON(lens.attention(run, token, deadline=deadline).to_dict(layer))
            if name == "layers":
                return JSON(lens.layers(run, token, count, deadline=deadline).to_dict())
            if name == "experts":
                return JSON(lens.experts(run, token, deadline=deadline).to_dict())
            return JSON(lens.neighbours_in(run, token, count, deadline=deadline).to_dict())

        return await service.threads.read_model(request, look)

    @routes.get("/lens/neighbours", response_model=dict[str, Any])
    async def neighbours(
        request: Request,
        of: Annotated[str, Query(min_length=1, max_length=_LONGEST_TEXT)],
        count: Annotated[int, Query(ge=1, le=lenses.MOST)] = 10,
    ) -> Response:
        """The tokens whose embeddings are nearest to that of a text: " king" and "king" are two tokens. Of a
        text of several tokens it is their mean."""
        lens = service.llm.lens
        return await service.threads.read_model(
            request, lambda deadline: JSON(lens.neighbours(of, count, deadline=deadline).to_dict())
        )

    return routes


def _worst(run: Run, count: int) -> Worst:
    """Returns the tokens that surprised the model most, those that won by the most luck, and the first
    unlikely one."""
    tokens = list(run.tokens)  # a running request appends to it
    unlikely = first_unlikely(tokens)
    return Worst(
        run=run.id,
        surprising=[_worst_token(tokens, place) for place in most_surprising(tokens, count)],
        lucky=[_worst_token(tokens, place) for place in luckiest(tokens, count)],
        first_unlikely=None if unlikely is None else _worst_token(tokens, unlikely),
    )


def _worst_token(tokens: Sequence[Token], place: int) -> WorstToken:
    token = tokens[place]
    record = token.to_dict()
    before, after = around(tokens, place)
    return WorstToken(
        index=place,
        piece=token.piece,
        before=before,
        after=after,
        surprise_bits=surprise_bits(token),
        id=token.id,
        bytes=record["bytes"],
        logprob=record["logprob"],
        raw_logprob=record["raw_logprob"],
        rank=record["rank"],
        rank_after=record["rank_after"],
        luck=record["luck"],
        source=token.source,
    )
