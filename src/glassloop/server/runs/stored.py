"""The list of runs: those in memory as they are, those in the store from their columns alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glassloop.server.runs import shapes
from glassloop.server.runs.state import Live, status_of
from glassloop.server.runs.storage import INTERRUPTED
from glassloop.server.service import Service
from glassloop.trace.entry import Kept
from glassloop.trace.run import Timings


def summaries(service: Service, found: Sequence[Live | Kept]) -> list[dict[str, Any]]:
    """As `shapes.summary` has them. What the columns of a row do not tell is no reason to show nothing: such
    a row is left out."""
    made = []
    for each in found:
        if isinstance(each, Live):
            made.append(shapes.summary(service, each))
            continue
        try:
            made.append(_summary(service, each))
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            continue
    return made


def _summary(service: Service, kept: Kept) -> dict[str, Any]:
    entry, facts = kept.entry, kept.facts
    finish_reason, stop_reason = entry.finish_reason, facts["stop_reason"]
    if finish_reason is None:
        finish_reason, stop_reason = INTERRUPTED
    timings = Timings(**facts["timings"])
    prompt = entry.prompt
    if prompt is None:
        prompt = shapes.decoded(service, facts["prompt_ids"])
    return {
        "id": entry.id,
        "tree": kept.tree,
        "root": facts["root"],
        "model": service.name,
        "name": kept.name,
        "created": entry.created,
        "status": status_of(finish_reason, facts["sampling"]["beam_width"]),
        "finish_reason": finish_reason,
        "stop_reason": stop_reason,
        "error": stop_reason if finish_reason == "error" else None,
        "prompt": prompt,
        "text": entry.text,
        "seed": entry.seed,
        "salt": facts["salt"],
        "sample": facts["sample"],
        "parent": entry.parent,
        "fork_at": facts["fork_at"],
        "reason": facts["reason"],
        "sampling": facts["sampling"],
        "logprob": shapes.LEAST if facts["logprob"] is None else facts["logprob"],
        "usage": facts["usage"],
        "timings": facts["timings"] | {"tokens_per_second": timings.tokens_per_second(entry.tokens)},
        "drafts": facts["drafts"],
        "ops": facts["ops"],
    }
