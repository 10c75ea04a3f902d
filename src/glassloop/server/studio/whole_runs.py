"""Runs with their tokens, and the events of runs, as answers of `/api/…` show them. docs/server.md shows each
of these."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any, cast

from typing_extensions import TypedDict

from glassloop.diffuse.frames import Frames
from glassloop.record.node import after
from glassloop.record.run import Run
from glassloop.record.token import Token
from glassloop.server.http.streaming import api_answer
from glassloop.server.openai.tokens import PromptToken, prompt_token
from glassloop.server.runs.state import Event, RunState
from glassloop.server.service import Service
from glassloop.server.studio.summaries import LEAST, Summary, root, summary


class AlternativeShape(TypedDict):
    id: int
    text: str
    logprob: float | None
    raw_logprob: float | None


class RefusalShape(TypedDict):
    id: int
    text: str
    by: str
    dropped: int


class TokenShape(TypedDict):
    index: int
    node: str
    parent: str
    piece: str
    id: int
    text: str
    bytes: str
    logprob: float | None
    raw_logprob: float | None
    rank: int | None
    rank_after: int | None
    entropy: float | None
    log_sum_exp: float | None
    luck: float | None
    margin: float | None
    runner_up: int | None
    source: str
    seconds: float
    refused: RefusalShape | None
    alternatives: list[AlternativeShape]
    took: float


class BeamShape(TypedDict):
    number: int
    parent: int | None
    id: int
    logprob: float
    fate: str
    piece: str
    node: str
    parent_node: str


@api_answer
class WholeRun(Summary):
    """The lists are made while they are encoded: a run's alternatives, all at once, are large."""

    prompt_tokens: Iterable[PromptToken]
    tokens: Iterable[TokenShape]
    tail: str
    end: TokenShape | None
    beams: Iterable[BeamShape]


def whole_run(service: Service, state: RunState, alternatives: int, first: int = 0) -> WholeRun:
    """Returns a run with its tokens from `first` on."""
    run, tokens = state.run, list(state.run.tokens)
    nodes = _path(root(state), tokens)
    end = None
    if run.end is not None:
        end = _token(run, run.end, len(tokens), after(nodes[-1], run.end.id), nodes[-1], alternatives)
    return WholeRun(
        **summary(service, state),
        prompt_tokens=_prompt_tokens(service, run),
        tokens=(
            _token(run, token, index, nodes[index + 1], nodes[index], alternatives)
            for index, token in enumerate(tokens[first:], first)
        ),
        tail=run.tail,
        end=end,
        beams=_beams(service, state),
    )


def _prompt_tokens(service: Service, run: Run) -> Iterable[PromptToken]:
    """Returns the tokens of a prompt. Of another engine's only those that it reported are known, or else the
    prompt as one piece."""
    if run.upstream is None:
        return (prompt_token(service, id) for id in run.prompt_ids)
    rest = "".join([token.piece for token in run.prompt_tokens])
    first = (run.prompt or "").removesuffix(rest)
    tokens = [(run.prompt_ids[0], first, first.encode())]
    tokens += [(token.id, token.piece, token.bytes) for token in run.prompt_tokens]
    return [PromptToken(id=id, piece=piece, bytes=data.hex(), special=False) for id, piece, data in tokens]


def _token(run: Run, token: Token, index: int, node: str, parent: str, alternatives: int = 64) -> TokenShape:
    record = token.to_dict()
    record["alternatives"] = record["alternatives"][:alternatives]
    record["took"] = _took(run, token, index)
    return cast(TokenShape, {"index": index, "node": node, "parent": parent, "piece": token.piece, **record})


def _took(run: Run, token: Token, index: int) -> float:
    """Returns the seconds since the token before, or since the request arrived if the token is its first."""
    before = 0.0 if index in (0, run.fork_at) else run.tokens[index - 1].seconds
    return token.seconds - before if before <= token.seconds else token.seconds  # a later request's first


def _beams(service: Service, state: RunState) -> Iterator[BeamShape]:
    nodes: dict[int | None, str] = {None: root(state)}
    for beam in state.run.beams:
        nodes[beam.number] = after(nodes[beam.parent], beam.id)
        yield BeamShape(
            number=beam.number,
            parent=beam.parent,
            id=beam.id,
            logprob=max(beam.logprob, LEAST),
            fate=beam.fate,
            piece=service.llm.piece(beam.id),
            node=nodes[beam.number],
            parent_node=nodes[beam.parent],
        )


def _path(start: str, tokens: Iterable[Token]) -> list[str]:
    """Returns a node, then one for each token after it."""
    return list(accumulate((token.id for token in tokens), after, initial=start))


# ── events ─────────────────────────────────────────────────────────────────────────────────────────────────


def event_shape(service: Service, number: int, event: Event) -> dict[str, Any]:
    """Returns what an event says. It is made for every token of a stream, so it is a plain dictionary."""
    state = event.state
    place: dict[str, Any] = {"seq": number, "run": state.run.id}
    if event.kind == "taken_back":
        successor = state.successor
        return {**place, "to": event.place, "continued_by": None if successor is None else successor.run.id}
    if event.kind == "pass":
        state.frames = state.frames or frames_of(service, state.run)
        return {**place, "frame": state.frames.at(event.place).to_dict()}
    if event.token is None:
        return {**place, "summary": summary(service, state)}
    parent, node = _nodes(state, event.place)
    return {**place, **_token(state.run, event.token, event.place, node, parent)}


def frames_of(service: Service, run: Run) -> Frames:
    """Returns what makes the frames of a run that was written by diffusion."""
    return Frames(run, service.llm.piece, service.llm.tokenizer.eos_ids)


def _nodes(state: RunState, place: int) -> tuple[str, str]:
    """Returns the nodes before and after a token, and remembers them. For the event loop's thread alone."""
    nodes = state.nodes or [root(state)]
    if len(nodes) < place + 2:
        nodes += _path(nodes[-1], state.run.tokens[len(nodes) - 1 :])[1:]
        state.nodes = nodes
    return nodes[place], nodes[place + 1]
