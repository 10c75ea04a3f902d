"""A family of runs: the one that was first, its samples, and all that was forked from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from glassloop.trace.run import Run


@dataclass(frozen=True)
class Family:
    roots: tuple[Run, ...]  # the samples of the first request

    @classmethod
    def of(cls, run: Run) -> Family:
        first = run
        while first.above is not None:
            first = first.above
        return cls(tuple(first.samples) or (first,))

    def __iter__(self) -> Iterator[Run]:
        """Each run before those that were forked from it."""
        waiting = list(reversed(self.roots))
        while waiting:
            run = waiting.pop()
            yield run
            waiting.extend(reversed(run.children))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def from_run(self, run: Run) -> list[Run]:
        """All of it, this one first."""
        return [run, *(other for other in self if other is not run)]

    def to_dict(self) -> list[dict[str, Any]]:
        """As JSON has it: a list of runs with what is below each."""
        return [_plain(run) for run in self.roots]

    def drawn(self) -> Iterator[tuple[str, Run]]:
        """A drawing, one line for each run: what stands before it, and the run."""
        for run in self.roots:
            yield "● ", run
            yield from _drawn(run, "")

    def __str__(self) -> str:
        return "\n".join(branch + told(run) for branch, run in self.drawn())


def _drawn(run: Run, indent: str) -> Iterator[tuple[str, Run]]:
    for child in run.children:
        last = child is run.children[-1]
        yield f"{indent}{'└' if last else '├'}─ at {child.fork_at} {child.reason}: ", child
        yield from _drawn(child, indent + ("   " if last else "│  "))


def told(run: Run) -> str:
    """A run in a few words."""
    own = "".join([token.text for token in run.tokens[run.fork_at or 0 :]]) + run.tail
    shown = own if len(own) <= 40 else own[:39] + "…"
    return f"{run.id[:8]}  {len(run.tokens)} tokens, {run.finish_reason or 'running'}  {shown!r}"


def _plain(run: Run) -> dict[str, Any]:
    return {
        "id": run.id,
        "fork_at": run.fork_at,
        "reason": run.reason,
        "seed": run.seed,
        "salt": run.salt,
        "tokens": len(run.tokens),
        "text": run.text,
        "finish_reason": run.finish_reason,
        "children": [_plain(child) for child in run.children],
    }
