"""What lists show of stored runs, read from columns of the store without reading the tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

from glassloop.record.node import root_of
from glassloop.record.run import Run

BRIEF_TEXT = 300  # characters of a text in a brief list


@dataclass(frozen=True)
class RunEntry:
    """What the list of runs shows of one run."""

    id: str
    created: float
    model: str
    prompt: str | None
    text: str
    tokens: int
    finish_reason: str | None
    seed: int
    parent: str | None
    size: int  # bytes
    title: str | None = None  # None if the prompt was given as tokens whose text is not known

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class KeptRun:
    """An entry with the rest of what a server shows of a run in its list."""

    entry: RunEntry
    tree: str
    name: str | None
    facts: dict[str, Any]
    added: float = 0.0  # by which lists are ordered
    is_chat: bool = False
    writer: str | None = None  # the server that computes it, or was ended while it did
    is_elsewhere: bool = False  # that server is another one, and is running


_TEXT, _OPTIONAL = (str,), (str, type(None))
# The types of the columns, in the order of an entry's fields; a seed is stored as text.
_TYPES: tuple[tuple[type, ...], ...] = (
    *(_TEXT, (int, float), _TEXT, _OPTIONAL, _TEXT, (int,), _OPTIONAL, _TEXT, _OPTIONAL, (int,)),
    _OPTIONAL,
)


def entry_of(row: Sequence[Any]) -> RunEntry | None:
    """Returns the entry of a row, or None if a value is not as we write it: SQLite columns hold any type."""
    if not all(isinstance(value, types) for value, types in zip(row, _TYPES, strict=True)):
        return None
    seed = row[7]
    if not (seed.isascii() and seed.isdigit() and len(seed) <= 20):
        return None
    id, created, model, prompt, text, tokens, finish_reason, _, parent, size, title = row
    return RunEntry(id, created, model, prompt, text, tokens, finish_reason, int(seed), parent, size, title)


def facts_of(run: Run) -> str:
    """Returns, as JSON, what a server's list shows of a run beyond the columns of an entry."""
    same, logprob = ("salt", "sample", "fork_at", "reason", "stop_reason", "ops"), run.logprob
    facts = {name: getattr(run, name) for name in same} | {
        "root": root_of(run.prompt_ids),
        "sampling": run.sampling.to_dict(),
        "logprob": logprob if isfinite(logprob) else None,
        "usage": run.usage.to_dict(),
        "timings": asdict(run.timings),
        "drafts": asdict(run.drafts),
        "distinct_pairs": run.distinct(2),
        # Only if the prompt was given as tokens; a server has the tokenizer to show them.
        "prompt_ids": run.prompt_ids if run.prompt is None else None,
        "messages": run.messages,
        **run.origin.to_facts(),
    }
    return json.dumps(facts, allow_nan=False, separators=(",", ":"))
