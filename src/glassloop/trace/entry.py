"""What lists of stored runs show of each: read from columns, without the tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

from glassloop.trace.node import root_of
from glassloop.trace.run import Run


@dataclass(frozen=True)
class Entry:
    """What the list of runs tells of one."""

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

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Kept:
    """An entry with the rest of what a server shows of a run in its list."""

    entry: Entry
    tree: str
    name: str | None
    facts: dict[str, Any]


_TEXT, _PERHAPS = (str,), (str, type(None))
_KINDS: tuple[tuple[type, ...], ...] = (
    *(_TEXT, (int, float), _TEXT, _PERHAPS, _TEXT, (int,), _PERHAPS, _TEXT, _PERHAPS, (int,)),
)


def entry_of(row: Sequence[Any]) -> Entry | None:
    """The entry of a row of columns; None if it is none of ours: SQLite holds any type in any column."""
    if not all(isinstance(value, kinds) for value, kinds in zip(row, _KINDS, strict=True)):
        return None
    seed = row[7]
    if not (seed.isascii() and seed.isdigit() and len(seed) <= 20):
        return None
    id, created, model, prompt, text, tokens, finish_reason, _, parent, size = row
    return Entry(id, created, model, prompt, text, tokens, finish_reason, int(seed), parent, size)


def facts_of(run: Run) -> str:
    """What a list shows of a run beyond the plain columns, as JSON."""
    logprob = run.logprob
    return json.dumps(
        {
            "root": root_of(run.prompt_ids),
            "salt": run.salt,
            "sample": run.sample,
            "fork_at": run.fork_at,
            "reason": run.reason,
            "stop_reason": run.stop_reason,
            "sampling": run.sampling.to_dict(),
            "logprob": logprob if isfinite(logprob) else None,
            "usage": asdict(run.usage) | {"total_tokens": run.usage.total_tokens},
            "timings": asdict(run.timings),
            "drafts": asdict(run.drafts),
            "ops": run.ops,
            # Of a prompt that was no text: whoever shows it has the tokenizer.
            "prompt_ids": run.prompt_ids if run.prompt is None else None,
        },
        ensure_ascii=True,
        allow_nan=False,
        separators=(",", ":"),
    )
