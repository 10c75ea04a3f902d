"""Runs as JSON: the answers of `/api/…`. docs/server.md shows each of these."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import accumulate
from math import isnan
from typing import Any

from pydantic import BaseModel

from glassloop.diffuse.frames import Frames
from glassloop.record.messages import NO_TEXT, title_of_ids, title_of_text
from glassloop.record.node import after, root_of
from glassloop.record.run import Drafts, Run, Timings
from glassloop.record.store.entry import BRIEF_TEXT, KeptRun
from glassloop.record.token import Token
from glassloop.record.worst import around, first_unlikely, luckiest, most_surprising, surprise_bits
from glassloop.server.openai.tokens import PromptToken, prompt_token
from glassloop.server.runs.state import ELSEWHERE, Event, RunState, status_of
from glassloop.server.runs.storage import INTERRUPTED
from glassloop.server.service import Service
from glassloop.util.shown import cut

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
    title: str
    prompt: str
    messages: list[dict[str, Any]] | None
    text: str
    seed: int
    salt: int
    sample: int
    parent: str | None
    fork_at: int | None
    reason: str | None
    sampling: dict[str, Any]
    logprob: float | None
    usage: dict[str, int | None]
    distinct_pairs: float | None
    timings: dict[str, float | None]
    drafts: dict[str, float | None]
    ops: str
    upstream: dict[str, Any] | None
    diffusion: dict[str, Any] | None
    passes: int


class BriefRun(BaseModel):
    id: str
    tree: str
    model: str
    name: str | None
    created: float
    status: str
    finish_reason: str | None
    title: str
    text: str
    tokens: int
    seed: int
    parent: str | None
    chat: bool


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
    rank: int | None
    rank_after: int | None
    entropy: float | None
    log_sum_exp: float | None
    luck: float | None
    margin: float | None
    runner_up: int | None
    source: str
    seconds: float
    took: float
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


class RunList(Runs):
    more: bool  # whether there are older ones


class BriefList(BaseModel):
    runs: list[BriefRun]
    more: bool


class WorstToken(BaseModel):
    index: int
    id: int
    piece: str
    before: str  # a few words of the text around it
    after: str
    bytes: str
    surprise_bits: float | None
    logprob: float | None
    raw_logprob: float | None
    rank: int | None
    rank_after: int | None
    luck: float | None
    source: str


class Worst(BaseModel):
    run: str
    surprising: list[WorstToken]
    lucky: list[WorstToken]
    first_unlikely: WorstToken | None  # the first one below 1 %


# ── nodes ──────────────────────────────────────────────────────────────────────────────────────────────────


def _path(root: str, tokens: Iterable[Token]) -> list[str]:
    """Returns a node, then one for each token after it."""
    return list(accumulate((token.id for token in tokens), after, initial=root))


def _root(state: RunState) -> str:
    if state.root is None:
        state.root = root_of(state.run.prompt_ids)
    return state.root


def _nodes(state: RunState, place: int) -> tuple[str, str]:
    """Returns the nodes before and after a token, and remembers them. For the event loop's thread alone."""
    known = state.nodes or [_root(state)]
    if len(known) < place + 2:
        known += _path(known[-1], state.run.tokens[len(known) - 1 :])[1:]
        state.nodes = known
    return known[place], known[place + 1]


# ── summaries ──────────────────────────────────────────────────────────────────────────────────────────────


# What a summary has as it is in a run, and what it has as it is in the facts of a stored run.
_OF_RUN = (
    *("id", "created", "finish_reason", "stop_reason", "messages", "text", "seed", "salt", "sample"),
    *("parent", "fork_at", "reason", "ops"),
)
_OF_FACTS = ("root", "salt", "sample", "fork_at", "reason", "sampling", "usage", "ops")


def summary(service: Service, state: RunState) -> dict[str, Any]:
    run = state.run
    if state.prompt is None:
        state.prompt = service.llm.decode(run.prompt_ids) if run.prompt is None else run.prompt
    return {name: getattr(run, name) for name in _OF_RUN} | {
        "tree": state.tree.id,
        "root": _root(state),
        "model": service.public_name(run.model),
        "name": state.name,
        "status": state.status,
        "error": None if run.error is None else str(run.error),
        "title": _title(service, state),
        "prompt": state.prompt,
        "sampling": run.sampling.to_dict(),
        "logprob": None if isnan(run.logprob) else max(run.logprob, LEAST),
        "usage": {**asdict(run.usage), "total_tokens": run.usage.total_tokens},
        "distinct_pairs": run.distinct(2),
        "timings": _timings(run.timings, len(run.tokens)),
        "drafts": _drafts(run.drafts),
        "upstream": None if run.upstream is None else asdict(run.upstream),
        "diffusion": run.diffusion,
        "passes": len(run.passes),
    }


def summaries(
    service: Service, found: Sequence[RunState | KeptRun], brief: bool = False
) -> list[dict[str, Any]]:
    """Returns the summaries of runs, or what a brief list shows: of those in the store from their columns
    alone. A row whose columns cannot be understood is left out."""
    made = []
    for each in found:
        if isinstance(each, RunState):
            made.append(_brief(service, each) if brief else summary(service, each))
            continue
        try:
            made.append(_stored_brief(service, each) if brief else _stored_summary(service, each))
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            continue
    return made


def _brief(service: Service, state: RunState) -> dict[str, Any]:
    run = state.run
    return {name: getattr(run, name) for name in ("id", "created", "finish_reason", "seed", "parent")} | {
        "tree": state.tree.id,
        "model": service.public_name(run.model),
        "name": state.name,
        "status": state.status,
        "title": _title(service, state),
        "text": cut(run.text, BRIEF_TEXT),
        "tokens": len(run.tokens),
        "chat": run.messages is not None,
    }


def _stored_brief(service: Service, kept: KeptRun) -> dict[str, Any]:
    entry = kept.entry
    finish_reason, _ = _ending(kept)
    same = ("id", "created", "seed", "parent", "tokens")
    return {name: getattr(entry, name) for name in same} | {
        "tree": kept.tree,
        "model": service.public_name(entry.model),
        "name": kept.name,
        "finish_reason": finish_reason,
        "status": _stored_status(kept, finish_reason),
        "title": _stored_title(service, kept),
        "text": cut(entry.text, BRIEF_TEXT),
        "chat": kept.is_chat,
    }


def _ending(kept: KeptRun) -> tuple[str | None, str | None]:
    """Returns why a stored run ended: finish_reason and stop_reason."""
    reason = kept.entry.finish_reason
    if reason is None and not kept.is_elsewhere:
        return INTERRUPTED
    return reason, kept.facts.get("stop_reason")


def _stored_status(kept: KeptRun, finish_reason: str | None) -> str:
    can_continue = kept.facts["sampling"]["beam_width"] == 1 and kept.facts.get("diffusion") is None
    return ELSEWHERE if kept.is_elsewhere else status_of(finish_reason, can_continue)


def _title(service: Service, state: RunState) -> str:
    if state.title is None:
        run = state.run
        state.title = run.known_title or title_of_ids(service.llm, run.prompt_ids) or run.title
    return state.title


def _stored_title(service: Service, kept: KeptRun) -> str:
    entry = kept.entry
    if entry.title is not None:
        return entry.title
    if entry.prompt is not None:
        return title_of_text(entry.prompt) or NO_TEXT
    ids = kept.facts["prompt_ids"]
    return title_of_ids(service.llm, ids) or f"({len(ids)} tokens)"


def _stored_summary(service: Service, kept: KeptRun) -> dict[str, Any]:
    entry, facts = kept.entry, kept.facts
    finish_reason, stop_reason = _ending(kept)
    return {name: facts[name] for name in _OF_FACTS} | {
        "id": entry.id,
        "tree": kept.tree,
        "model": service.public_name(entry.model),
        "name": kept.name,
        "created": entry.created,
        "status": _stored_status(kept, finish_reason),
        "finish_reason": finish_reason,
        "stop_reason": stop_reason,
        "error": stop_reason if finish_reason == "error" else None,
        "title": _stored_title(service, kept),
        "prompt": service.llm.decode(facts["prompt_ids"]) if entry.prompt is None else entry.prompt,
        "messages": facts.get("messages"),  # rows of older versions do not have it
        "text": entry.text,
        "seed": entry.seed,
        "parent": entry.parent,
        "logprob": _stored_logprob(facts),
        "upstream": facts.get("upstream"),  # rows of older versions have none of these
        "diffusion": facts.get("diffusion"),
        "passes": facts.get("passes", 0),
        "distinct_pairs": facts.get("distinct_pairs"),
        "timings": _timings(Timings(**facts["timings"]), entry.tokens),
        "drafts": _drafts(Drafts(**facts["drafts"])),
    }


def _stored_logprob(facts: dict[str, Any]) -> float | None:
    if facts["logprob"] is None:
        return None if facts.get("upstream") else LEAST
    return float(facts["logprob"])


def _timings(timings: Timings, tokens: int) -> dict[str, Any]:
    return {**asdict(timings), "tokens_per_second": timings.tokens_per_second(tokens)}


def _drafts(drafts: Drafts) -> dict[str, Any]:
    return {**asdict(drafts), "rejected": drafts.rejected, "acceptance": drafts.acceptance}


# ── whole runs and events ──────────────────────────────────────────────────────────────────────────────────


def whole_run(service: Service, state: RunState, alternatives: int, first: int = 0) -> dict[str, Any]:
    """Returns a run as JSON, with its tokens from `first` on. Its lists are iterators: a run's alternatives,
    all at once, are large."""
    run, tokens = state.run, list(state.run.tokens)
    nodes = _path(_root(state), tokens)
    end = None
    if run.end is not None:
        end = _token(run, run.end, len(tokens), after(nodes[-1], run.end.id), nodes[-1], alternatives)
    return {
        **summary(service, state),
        "prompt_tokens": _prompt_tokens(service, run),
        "tokens": (
            _token(run, token, index, nodes[index + 1], nodes[index], alternatives)
            for index, token in enumerate(tokens[first:], first)
        ),
        "tail": run.tail,
        "end": end,
        "beams": _beams(service, state),
    }


def _prompt_tokens(service: Service, run: Run) -> Iterable[dict[str, Any]]:
    """Returns the tokens of a prompt. Of another engine only those that it told are known, or else the prompt
    as one piece."""
    if run.upstream is None:
        return (prompt_token(service, id) for id in run.prompt_ids)
    rest = "".join([token.piece for token in run.prompt_tokens])
    first = (run.prompt or "").removesuffix(rest)
    known = [(run.prompt_ids[0], first, first.encode())]
    known += [(token.id, token.piece, token.bytes) for token in run.prompt_tokens]
    return [{"id": id, "piece": piece, "bytes": data.hex(), "special": False} for id, piece, data in known]


def _token(
    run: Run, token: Token, index: int, node: str, parent: str, alternatives: int = 64
) -> dict[str, Any]:
    made = token.to_dict()
    made["alternatives"] = made["alternatives"][:alternatives]
    made["took"] = _took(run, token, index)
    return {"index": index, "node": node, "parent": parent, "piece": token.piece, **made}


def _took(run: Run, token: Token, index: int) -> float:
    """Returns the seconds since the token before, or since the request arrived if the token is its first."""
    before = 0.0 if index in (0, run.fork_at) else run.tokens[index - 1].seconds
    return token.seconds - before if before <= token.seconds else token.seconds  # a later request's first


_OF_WORST = ("id", "bytes", "logprob", "raw_logprob", "rank", "rank_after", "luck", "source")


def worst_tokens(run: Run, count: int) -> dict[str, Any]:
    """Returns the tokens that surprised the model most, those that won by the most luck, and the first
    unlikely one, as JSON."""
    tokens = list(run.tokens)  # a running request appends to it

    def listed(places: list[int]) -> list[dict[str, Any]]:
        made = []
        for place in places:
            token = tokens[place]
            plain = token.to_dict()
            same = {name: plain[name] for name in _OF_WORST}
            before, after = around(tokens, place)
            told = {"index": place, "piece": token.piece, "before": before, "after": after}
            made.append({**told, "surprise_bits": surprise_bits(token), **same})
        return made

    lists = {"surprising": most_surprising(tokens, count), "lucky": luckiest(tokens, count)}
    first = first_unlikely(tokens)
    return {
        "run": run.id,
        **{name: listed(places) for name, places in lists.items()},
        "first_unlikely": None if first is None else listed([first])[0],
    }


def _beams(service: Service, state: RunState) -> Iterator[dict[str, Any]]:
    nodes: dict[int | None, str] = {None: _root(state)}
    for beam in state.run.beams:
        nodes[beam.number] = after(nodes[beam.parent], beam.id)
        yield {
            **asdict(beam),
            "logprob": max(beam.logprob, LEAST),
            "piece": service.llm.piece(beam.id),
            "node": nodes[beam.number],
            "parent_node": nodes[beam.parent],
        }


def frames_of(service: Service, run: Run) -> Frames:
    """Returns what makes the frames of a run that was written by diffusion."""
    return Frames(run, service.llm.piece, service.llm.tokenizer.eos_ids)


def event_shape(service: Service, number: int, event: Event) -> dict[str, Any]:
    state = event.state
    made: dict[str, Any] = {"seq": number, "run": state.run.id}
    if event.kind == "taken_back":
        made_by = state.successor
        return {**made, "to": event.place, "continued_by": None if made_by is None else made_by.run.id}
    if event.kind == "pass":
        state.frames = state.frames or frames_of(service, state.run)
        return {**made, "frame": state.frames.at(event.place).to_dict()}
    if event.token is None:
        return {**made, "summary": summary(service, state)}
    parent, node = _nodes(state, event.place)
    return {**made, **_token(state.run, event.token, event.place, node, parent)}
