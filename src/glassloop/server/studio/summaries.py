"""Runs without their tokens, as answers of `/api/…` show them: of a run in memory from its state, of one in
the store from its columns alone. docs/server.md shows each of these."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from math import isnan
from typing import Any, TypeVar

from typing_extensions import TypedDict

from glassloop.record.messages import NO_TEXT, title_of_ids, title_of_text
from glassloop.record.node import root_of
from glassloop.record.run import Drafts, Timings
from glassloop.record.store.entry import BRIEF_TEXT, KeptRun
from glassloop.server.http.streaming import api_answer
from glassloop.server.runs.state import ELSEWHERE, RunState, status_of
from glassloop.server.runs.storage import INTERRUPTED
from glassloop.server.service import Service
from glassloop.util.shown import cut

T = TypeVar("T")
LEAST = -1e30  # instead of minus infinity, which is no number in JSON


@api_answer
class Summary(TypedDict):
    id: str
    created: float
    finish_reason: str | None
    stop_reason: str | None
    messages: list[dict[str, Any]] | None
    text: str
    seed: int
    salt: int
    sample: int
    parent: str | None
    fork_at: int | None
    reason: str | None
    ops: str
    tree: str
    root: str
    model: str
    name: str | None
    status: str
    error: str | None
    title: str
    prompt: str
    sampling: dict[str, Any]
    logprob: float | None
    usage: dict[str, int | None]
    distinct_pairs: float | None
    timings: dict[str, float | None]
    drafts: dict[str, float | None]
    upstream: dict[str, Any] | None
    diffusion: dict[str, Any] | None
    passes: int


class BriefRun(TypedDict):
    id: str
    created: float
    finish_reason: str | None
    seed: int
    parent: str | None
    tree: str
    model: str
    name: str | None
    status: str
    title: str
    text: str
    tokens: int
    chat: bool


@api_answer
class Runs(TypedDict):
    runs: list[Summary]


@api_answer
class RunList(Runs):
    more: bool  # whether there are older ones


@api_answer
class BriefList(TypedDict):
    runs: list[BriefRun]
    more: bool


def run_list(
    service: Service, runs: Sequence[RunState | KeptRun], more: bool, brief: bool
) -> RunList | BriefList:
    """Returns a page of the list of runs."""
    if brief:
        return BriefList(runs=list(_each(service, runs, _brief, _stored_brief)), more=more)
    return RunList(runs=list(_each(service, runs, summary, _stored_summary)), more=more)


def _each(
    service: Service,
    runs: Sequence[RunState | KeptRun],
    shape: Callable[[Service, RunState], T],
    shape_stored: Callable[[Service, KeptRun], T],
) -> Iterator[T]:
    """Yields the shapes of runs. A row of the store whose columns cannot be understood is left out."""
    for run in runs:
        if isinstance(run, RunState):
            yield shape(service, run)
            continue
        try:
            stored = shape_stored(service, run)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            continue
        yield stored


# ── runs in memory ─────────────────────────────────────────────────────────────────────────────────────────


def summary(service: Service, state: RunState) -> Summary:
    run = state.run
    if state.prompt is None:
        state.prompt = service.llm.decode(run.prompt_ids) if run.prompt is None else run.prompt
    return Summary(
        id=run.id,
        created=run.created,
        finish_reason=run.finish_reason,
        stop_reason=run.stop_reason,
        messages=run.messages,
        text=run.text,
        seed=run.seed,
        salt=run.salt,
        sample=run.sample,
        parent=run.parent,
        fork_at=run.fork_at,
        reason=run.reason,
        ops=run.ops,
        tree=state.tree.id,
        root=root(state),
        model=service.public_name(run.model),
        name=state.name,
        status=state.status,
        error=None if run.error is None else str(run.error),
        title=_title(service, state),
        prompt=state.prompt,
        sampling=run.sampling.to_dict(),
        logprob=None if isnan(run.logprob) else max(run.logprob, LEAST),
        usage={**asdict(run.usage), "total_tokens": run.usage.total_tokens},
        distinct_pairs=run.distinct(2),
        timings=_timings(run.timings, len(run.tokens)),
        drafts=_drafts(run.drafts),
        upstream=None if run.upstream is None else asdict(run.upstream),
        diffusion=run.diffusion,
        passes=len(run.passes),
    )


def _brief(service: Service, state: RunState) -> BriefRun:
    run = state.run
    return BriefRun(
        id=run.id,
        created=run.created,
        finish_reason=run.finish_reason,
        seed=run.seed,
        parent=run.parent,
        tree=state.tree.id,
        model=service.public_name(run.model),
        name=state.name,
        status=state.status,
        title=_title(service, state),
        text=cut(run.text, BRIEF_TEXT),
        tokens=len(run.tokens),
        chat=run.messages is not None,
    )


def root(state: RunState) -> str:
    """Returns the node of a run's prompt, and remembers it."""
    if state.root is None:
        state.root = root_of(state.run.prompt_ids)
    return state.root


def _title(service: Service, state: RunState) -> str:
    if state.title is None:
        run = state.run
        state.title = run.known_title or title_of_ids(service.llm, run.prompt_ids) or run.title
    return state.title


def _timings(timings: Timings, tokens: int) -> dict[str, Any]:
    return {**asdict(timings), "tokens_per_second": timings.tokens_per_second(tokens)}


def _drafts(drafts: Drafts) -> dict[str, Any]:
    return {**asdict(drafts), "rejected": drafts.rejected, "acceptance": drafts.acceptance}


# ── runs in the store ──────────────────────────────────────────────────────────────────────────────────────


def _stored_summary(service: Service, kept: KeptRun) -> Summary:
    entry, facts = kept.entry, kept.facts
    finish_reason, stop_reason = _ending(kept)
    return Summary(
        id=entry.id,
        created=entry.created,
        finish_reason=finish_reason,
        stop_reason=stop_reason,
        messages=facts.get("messages"),  # rows of older versions do not have it
        text=entry.text,
        seed=entry.seed,
        salt=facts["salt"],
        sample=facts["sample"],
        parent=entry.parent,
        fork_at=facts["fork_at"],
        reason=facts["reason"],
        ops=facts["ops"],
        tree=kept.tree,
        root=facts["root"],
        model=service.public_name(entry.model),
        name=kept.name,
        status=_stored_status(kept, finish_reason),
        error=stop_reason if finish_reason == "error" else None,
        title=_stored_title(service, kept),
        prompt=service.llm.decode(facts["prompt_ids"]) if entry.prompt is None else entry.prompt,
        sampling=facts["sampling"],
        logprob=_stored_logprob(facts),
        usage=facts["usage"],
        distinct_pairs=facts.get("distinct_pairs"),  # rows of older versions have none of these
        timings=_timings(Timings(**facts["timings"]), entry.tokens),
        drafts=_drafts(Drafts(**facts["drafts"])),
        upstream=facts.get("upstream"),
        diffusion=facts.get("diffusion"),
        passes=facts.get("passes", 0),
    )


def _stored_brief(service: Service, kept: KeptRun) -> BriefRun:
    entry = kept.entry
    finish_reason, _ = _ending(kept)
    return BriefRun(
        id=entry.id,
        created=entry.created,
        finish_reason=finish_reason,
        seed=entry.seed,
        parent=entry.parent,
        tree=kept.tree,
        model=service.public_name(entry.model),
        name=kept.name,
        status=_stored_status(kept, finish_reason),
        title=_stored_title(service, kept),
        text=cut(entry.text, BRIEF_TEXT),
        tokens=entry.tokens,
        chat=kept.is_chat,
    )


def _ending(kept: KeptRun) -> tuple[str | None, str | None]:
    """Returns why a stored run ended: finish_reason and stop_reason."""
    reason = kept.entry.finish_reason
    if reason is None and not kept.is_elsewhere:
        return INTERRUPTED
    return reason, kept.facts.get("stop_reason")


def _stored_status(kept: KeptRun, finish_reason: str | None) -> str:
    can_continue = kept.facts["sampling"]["beam_width"] == 1 and kept.facts.get("diffusion") is None
    return ELSEWHERE if kept.is_elsewhere else status_of(finish_reason, can_continue)


def _stored_title(service: Service, kept: KeptRun) -> str:
    entry = kept.entry
    if entry.title is not None:
        return entry.title
    if entry.prompt is not None:
        return title_of_text(entry.prompt) or NO_TEXT
    ids = kept.facts["prompt_ids"]
    return title_of_ids(service.llm, ids) or f"({len(ids)} tokens)"


def _stored_logprob(facts: dict[str, Any]) -> float | None:
    if facts["logprob"] is None:
        return None if facts.get("upstream") else LEAST
    return float(facts["logprob"])
