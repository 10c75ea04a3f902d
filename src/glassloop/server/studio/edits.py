"""`/api/edits`: a text is filled in, rewritten, repaired or sharpened; the answer has every proposal with its
bits and the decision. docs/editing.md describes what is computed, docs/server.md every shape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, Literal, NamedTuple, cast

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response
from typing_extensions import TypedDict

from glassloop.decode.sampling import Sampling
from glassloop.edit.infill import infill, rewrite
from glassloop.edit.power import sharpen
from glassloop.edit.record import Edit
from glassloop.edit.repair import repair
from glassloop.engine.deadline import Deadline
from glassloop.engine.language_model import LanguageModel
from glassloop.engine.request import draw_seed
from glassloop.engine.thread import Busy
from glassloop.errors import GlassloopError
from glassloop.record.run import Run
from glassloop.search.solve import named_verifier
from glassloop.search.verdict import TimedVerifier
from glassloop.server.http.bodies import BodyRoute
from glassloop.server.http.body_fields import Ids, many
from glassloop.server.http.errors import ERRORS, invalid
from glassloop.server.http.streaming import JSON, api_answer
from glassloop.server.openai.conversation import Messages, encode_messages
from glassloop.server.openai.search_body import SafeName
from glassloop.server.runs.state import RunState, TreeState
from glassloop.server.sampling_options import Body, SamplingOptions, make_sampling, options_of
from glassloop.server.service import Service

Method = Literal["rerank", "metropolis"]
InfillMethod = Literal["rerank", "metropolis", "holes"]
Proposer = Literal["left", "diffusion"]
Tokens = Annotated[int, Field(ge=1, le=256)]
Candidates = Annotated[int, Field(ge=1, le=64)]
Window = Annotated[int, Field(ge=0, le=1024)]
Span = many(int, 2, 2)


class EditBody(Body):
    """What all edits share."""

    sampling: SamplingOptions | None = None  # type: ignore[valid-type]


class InfillBody(EditBody):
    before: str
    after: str
    tokens: Tokens = 12
    candidates: Candidates = 16
    method: InfillMethod = "rerank"
    window: Window | None = 32
    proposer: Proposer = "left"


class RewriteBody(EditBody):
    text: str
    spans: many(Span, 16, 1)  # type: ignore[valid-type]
    tokens: Tokens | None = None
    candidates: Candidates = 16
    method: Method = "rerank"
    window: Window | None = 32


class RepairBody(EditBody):
    text: str = Field(min_length=1)
    prompt: str | None = None
    budget: Annotated[int, Field(ge=0, le=200_000)] = 20_000
    candidates: Candidates = 8
    tokens: Tokens | None = None
    window: Window | None = None
    least_gain: Annotated[float, Field(ge=0, le=1e6)] | None = None
    spans: Annotated[int, Field(ge=1, le=16)] | None = None
    check: SafeName | None = None
    proposer: Proposer = "left"


class SharpenBody(EditBody):
    prompt: str | None = None
    token_ids: Ids | None = None
    messages: Messages | None = None
    alpha: Annotated[float, Field(ge=0.01, le=100)] = 4.0
    steps: Annotated[int, Field(ge=0, le=256)] = 10
    block: Annotated[int | None, Field(ge=1, le=100_000)] = None


class ProposalShape(TypedDict):
    step: int
    number: int
    start: int
    end: int
    ids: list[int]
    text: str
    old_text: str
    own_bits: float
    following_bits: float
    followed: int
    old_own_bits: float | None
    old_following_bits: float | None
    masked_bits: float | None
    old_masked_bits: float | None
    accepted: bool
    coin: float | None
    threshold: float | None
    refusal: str | None
    score: float | None
    why: str
    seconds: float
    drawn: str | None
    run: str | None
    line: str


class EditFrameShape(TypedDict):
    """The text at one moment of an edit, in three parts: the span that was replaced last, and what is around
    it."""

    proposal: int | None  # the place in `proposals` of the one that was accepted then; None: before the edit
    before: str
    span: str
    after: str


@api_answer
class EditShape(TypedDict):
    glassloop_edit: int
    kind: str
    model: str
    model_hash: str
    ops: str
    seed: int
    given: dict[str, Any]
    before: str
    text: str
    token_ids: list[int]
    span: list[int]
    usage: dict[str, int]
    created: float
    draft: str | None
    run: str | None
    tree: str
    proposals: list[ProposalShape]
    frames: list[EditFrameShape]


def router(service: Service) -> APIRouter:
    routes = APIRouter(route_class=BodyRoute, prefix="/api/edits", tags=["edits"], responses=ERRORS)

    async def edited(
        request: Request, body: EditBody, default: Sampling | None, make: Callable[..., Edit], *args: Any
    ) -> Response:
        """Makes an edit, `make(llm, *args, …)`, and adds its runs to the server's, as one tree."""
        service.llm.check_computes("editing")
        sampling = await service.threads.prepare(request, body, _sampling, service, body, default)
        options = {name: getattr(body, name) for name in _OPTIONS[make.__name__]}

        def compute(deadline: Deadline) -> MadeEdit:
            return service.llm.apply(_edit, make, *args, deadline=deadline, sampling=sampling, **options)

        edit = await service.threads.read_model(request, compute, service.pools.editing)
        tree = TreeState()
        await service.runs.add_ended([RunState(run, tree, make.__name__) for run in edit.runs])
        return await service.pools.rendering.run(
            lambda: JSON(cast(EditShape, {**edit.record, "tree": tree.id, "frames": edit.frames}))
        )

    @routes.post("/infill", response_model=EditShape)
    async def fill(request: Request, body: InfillBody) -> Response:
        service.check_text(body.before, "before")
        service.check_text(body.after, "after")
        return await edited(request, body, _DRAWN, infill, body.before, body.after)

    @routes.post("/rewrite", response_model=EditShape)
    async def write(request: Request, body: RewriteBody) -> Response:
        service.check_text(body.text, "text")
        return await edited(request, body, _DRAWN, rewrite, body.text, body.spans)

    @routes.post("/repair", response_model=EditShape)
    async def mend(request: Request, body: RepairBody) -> Response:
        service.check_text(body.text, "text")
        service.check_text(body.prompt or "", "prompt")
        await service.threads.prepare(request, body, _check_verifier, body.check)
        return await edited(request, body, _DRAWN, repair, body.text)

    @routes.post("/sharpen", response_model=EditShape)
    async def power(request: Request, body: SharpenBody) -> Response:
        prompt = await service.threads.prepare(request, body, _prompt, service, body)
        return await edited(request, body, Sampling(temperature=1 / body.alpha), sharpen, prompt)

    return routes


_DRAWN = Sampling(temperature=0.8)
# The fields of a body that are passed on by their names.
_OPTIONS: dict[str, tuple[str, ...]] = {
    "infill": ("tokens", "candidates", "method", "window", "proposer"),
    "rewrite": ("tokens", "candidates", "method", "window"),
    "repair": (
        *("prompt", "budget", "candidates", "tokens", "window", "least_gain", "spans", "proposer"),
        "check",
    ),
    "sharpen": ("alpha", "steps", "block"),
}


class MadeEdit(NamedTuple):
    """What an answer shows of an edit, and the runs that the server keeps."""

    record: dict[str, Any]  # `Edit.to_dict()`
    frames: list[EditFrameShape]
    runs: list[Run]  # the text before, after each accepted proposal, and at the end


def _edit(llm: LanguageModel, make: Callable[..., Edit], *args: Any, **options: Any) -> MadeEdit:
    """Makes an edit with an engine in this process, here or on a replica."""
    if "check" in options:
        verifier = named_verifier(options["check"])
        options["check"] = (
            verifier.within(options["deadline"]) if isinstance(verifier, TimedVerifier) else verifier
        )
    edit = make(llm, *args, **options)
    runs = dict.fromkeys([edit.draft, *(each.run for each in edit.accepted), edit.run])
    return MadeEdit(
        edit.to_dict(), _frames(edit, llm.tokenizer.decode), [run for run in runs if run is not None]
    )


def _check_verifier(name: str | None) -> None:
    try:
        named_verifier(name)
    except Busy:
        raise
    except GlassloopError as error:
        raise invalid("check", f"check: {error}") from None


def _frames(edit: Edit, decode: Callable[[list[int]], str]) -> list[EditFrameShape]:
    """Returns the text before the edit and after each accepted proposal."""
    first = EditFrameShape(proposal=None, before=edit.before, span="", after="")
    frames = [first]
    ids = [] if edit.draft is None else edit.draft.token_ids
    text = decode(ids)
    head = edit.before.removesuffix(text)  # what was given as the prompt
    for place, each in enumerate(edit.proposals):
        if each.accepted:
            parts = ids[: each.start], each.ids, ids[each.end :]
            ids = [token for part in parts for token in part]
            before, span, after = (decode(part) for part in parts)
            frames.append(EditFrameShape(proposal=place, before=head + before, span=span, after=after))
    latest = frames[-1]
    if len(frames) > 1 and latest["before"] + latest["span"] + latest["after"] == edit.text:
        return frames
    # A hole has no tokens before it is filled, and some texts cannot be decoded in parts.
    last = [place for place, each in enumerate(edit.proposals) if each.accepted]
    if not last:
        return [first]
    start, end = edit.span
    before, span, after = edit.text[:start], edit.text[start:end], edit.text[end:]
    return [first, EditFrameShape(proposal=last[-1], before=before, span=span, after=after)]


def _sampling(service: Service, body: EditBody, default: Sampling | None) -> Sampling:
    options: dict[str, Any] = {} if body.sampling is None else options_of(body.sampling)
    sampling = make_sampling(options, service.settings, defaults=default)
    if "timeout" not in options:  # that of the server holds for the edit as a whole
        sampling = replace(sampling, timeout=None)
    service.llm.compile(sampling)  # raises what is wrong with the options
    # A replica that has died must not have drawn another seed than the one that makes the edit again.
    return sampling if sampling.seed is not None else replace(sampling, seed=draw_seed())


def _prompt(service: Service, body: SharpenBody) -> Any:
    forms = [name for name in ("prompt", "token_ids", "messages") if getattr(body, name) is not None]
    if len(forms) != 1:
        raise invalid("prompt", "one of prompt, token_ids and messages is expected")
    if body.messages is not None:
        return encode_messages(service, body.messages)
    if body.prompt is not None:
        service.check_text(body.prompt)
        return body.prompt
    service.check_length(len(body.token_ids or []), "token_ids")
    return body.token_ids
