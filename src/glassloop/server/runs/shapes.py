"""Runs as JSON: what `/api/…` answers with. docs/server.md shows each of these."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import accumulate
from typing import Any

from pydantic import BaseModel

from glassloop.server.openai.tokens import PromptToken, prompt_token
from glassloop.server.runs.state import Event, Live
from glassloop.server.service import Service
from glassloop.trace.node import after, root_of
from glassloop.trace.token import Token

LEAST = -1e30  # instead of minus infinity, which is no number in JSON


class Summary(BaseModel):
    id: str
    tree: str
    root: str
    model: str
    name: str | None
    created: float
    status: str
    finish_reason: str | None
    stop_reason: str | None
    error: str | None
    prompt: str
    text: str
    seed: int
    salt: int
    sample: int
    parent: str | None
    fork_at: int | None
    reason: str | None
    sampling: dict[str, Any]
    logprob: float
    usage: dict[str, int]
    timings: dict[str, float | None]
    drafts: dict[str, float]
    ops: str


class AlternativeShape(BaseModel):
    id: int
    text: str
    logprob: float | None
    raw_logprob: float | None


class RefusalShape(BaseModel):
    id: int
    text: str
    by: str
    dropped: int


class TokenShape(BaseModel):
    index: int
    node: str
    parent: str
    id: int
    piece: str
    bytes: str
    text: str
    logprob: float | None
    raw_logprob: float | None
    rank: int
    rank_after: int
    entropy: float
    log_sum_exp: float
    luck: float
    margin: float | None
    runner_up: int | None
    source: str
    seconds: float
    refused: RefusalShape | None
    alternatives: list[AlternativeShape]


class BeamShape(BaseModel):
    number: int
    parent: int | None
    id: int
    piece: str
    logprob: float
    fate: str
    node: str
    parent_node: str


class WholeRun(Summary):
    prompt_tokens: list[PromptToken]
    tokens: list[TokenShape]
    tail: str
    end: TokenShape | None
    beams: list[BeamShape]


class Runs(BaseModel):
    runs: list[Summary]


# ── nodes ──────────────────────────────────────────────────────────────────────────────────────────────────


def path_of(root: str, tokens: Iterable[Token]) -> list[str]:
    """A node, then one for each token after it."""
    return list(accumulate((token.id for token in tokens), after, initial=root))


def root(live: Live) -> str:
    if live.root is None:
        live.root = root_of(live.run.prompt_ids)
    return live.root


def _nodes(live: Live, place: int) -> tuple[str, str]:
    """The nodes before and after a token. For the event loop's thread alone: it keeps those it has made."""
    known = live.nodes or [root(live)]
    if len(known) < place + 2:
        known += path_of(known[-1], live.run.tokens[len(known) - 1 :])[1:]
        live.nodes = known
    return known[place], known[place + 1]


# ── shapes ─────────────────────────────────────────────────────────────────────────────────────────────────


def decoded(service: Service, prompt_ids: list[int]) -> str:
    """The text of a prompt. A run of another model may have tokens that this one does not know."""
    tokenizer = service.llm.tokenizer
    if max(prompt_ids) < tokenizer.vocab_size:
        return tokenizer.decode(prompt_ids)
    return "".join(map(service.llm.piece, prompt_ids))


def summary(service: Service, live: Live) -> dict[str, Any]:
    run = live.run
    used = run.usage
    if live.prompt is None:
        live.prompt = decoded(service, run.prompt_ids) if run.prompt is None else run.prompt
    return {
        "id": run.id,
        "tree": live.tree.id,
        "root": root(live),
        "model": service.name,
        "name": live.name,
        "created": live.created,
        "status": live.status,
        "finish_reason": run.finish_reason,
        "stop_reason": run.stop_reason,
        "error": None if run.error is None else str(run.error),
        "prompt": live.prompt,
        "text": run.text,
        "seed": run.seed,
        "salt": run.salt,
        "sample": run.sample,
        "parent": run.parent,
        "fork_at": run.fork_at,
        "reason": run.reason,
        "sampling": run.sampling.to_dict(),
        "logprob": max(run.logprob, LEAST),
        "usage": {**asdict(used), "total_tokens": used.total_tokens},
        "timings": {
            **asdict(run.timings),
            "tokens_per_second": run.timings.tokens_per_second(len(run.tokens)),
        },
        "drafts": asdict(run.drafts),
        "ops": run.ops,
    }


def token_shape(token: Token, index: int, node: str, parent: str, alternatives: int = 64) -> dict[str, Any]:
    made = token.to_dict()
    made["alternatives"] = made["alternatives"][:alternatives]
    return {"index": index, "node": node, "parent": parent, "piece": token.piece, **made}


def whole_run(service: Service, live: Live, alternatives: int) -> dict[str, Any]:
    """Returns a run as JSON has it. Its lists are iterators: a run's alternatives, all at once, are large."""
    run, tokens = live.run, list(live.run.tokens)
    nodes = path_of(root(live), tokens)
    end = None
    if run.end is not None:
        end = token_shape(run.end, len(tokens), after(nodes[-1], run.end.id), nodes[-1], alternatives)
    return {
        **summary(service, live),
        "prompt_tokens": (prompt_token(service, id) for id in run.prompt_ids),
        "tokens": (
            token_shape(token, index, nodes[index + 1], nodes[index], alternatives)
            for index, token in enumerate(tokens)
        ),
        "tail": run.tail,
        "end": end,
        "beams": _beams(service, live),
    }


def _beams(service: Service, live: Live) -> Iterator[dict[str, Any]]:
    nodes: dict[int | None, str] = {None: root(live)}
    for beam in live.run.beams:
        nodes[beam.number] = after(nodes[beam.parent], beam.id)
        yield {
            **asdict(beam),
            "logprob": max(beam.logprob, LEAST),
            "piece": service.llm.piece(beam.id),
            "node": nodes[beam.number],
            "parent_node": nodes[beam.parent],
        }


def event_shape(service: Service, seq: int, event: Event) -> dict[str, Any]:
    live = event.live
    told: dict[str, Any] = {"seq": seq, "run": live.run.id}
    if event.token is None:
        return {**told, "summary": summary(service, live)}
    before, node = _nodes(live, event.place)
    return {**told, **token_shape(event.token, event.place, node, before)}
