"""A family of runs: the one that was first, its samples, and all that was forked from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from glassloop.errors import TraceError
from glassloop.trace.run import Run

_DEEPEST = 100  # levels of forks that are nested in JSON; deeper ones stand flat in the last level


@dataclass(frozen=True)
class Family:
    roots: tuple[Run, ...]  # the samples of the first request

    @classmethod
    def of(cls, run: Run) -> Family:
        first = run
        while first.above is not None:
            first = first.above
        # A sample that is a fork of another stands below that one already.
        samples = tuple(run for run in first.samples if run.above is None)
        return cls(samples if first in samples else (first,))

    def __iter__(self) -> Iterator[Run]:
        """Each run before those that were forked from it."""
        return _with_below(self.roots)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def from_run(self, run: Run) -> list[Run]:
        """All of it, this one first."""
        return [run, *(other for other in self if other is not run)]

    def to_dict(self) -> list[dict[str, Any]]:
        """As JSON has it: a list of runs with what is below each."""
        return [_plain(run, 1) for run in self.roots]

    def drawn(self) -> Iterator[tuple[str, Run]]:
        """A drawing, one line for each run: what stands before it, and the run."""
        waiting = [("● ", "", run) for run in reversed(self.roots)]
        while waiting:
            branch, indent, run = waiting.pop()
            yield branch, run
            for child in reversed(run.children):
                last = child is run.children[-1]
                branch = f"{indent}{'└' if last else '├'}─ at {child.fork_at} {child.reason}: "
                waiting.append((branch, indent + ("   " if last else "│  "), child))

    def __str__(self) -> str:
        return "\n".join(branch + told(run) for branch, run in self.drawn())


def link(runs: Sequence[Run], samples: Sequence[Sequence[str]]) -> None:
    """Has runs find their samples (given by id), parents and forks among each other. Two runs with one id, or
    runs that descend from themselves, are no family: an error, and nothing is linked."""
    by_id = {run.id: run for run in runs}
    if len(by_id) != len(runs):
        raise TraceError("two runs have the same id")
    below: dict[str | None, list[str]] = {}
    for run in runs:
        below.setdefault(run.parent if run.parent in by_id else None, []).append(run.id)
    # Whatever cannot be reached from a run without a parent is below itself.
    waiting, reached = list(below.get(None, ())), 0
    while waiting:
        waiting += below.get(waiting.pop(), ())
        reached += 1
    if reached != len(runs):
        raise TraceError("parent leads from a run back to itself")
    for run, ids in zip(runs, samples, strict=True):
        run.samples = [by_id[each] for each in ids if each in by_id]
        run.above = by_id.get(run.parent or "")
        if run.above is not None:
            run.above.children.append(run)


def _with_below(roots: Sequence[Run]) -> Iterator[Run]:
    waiting = list(reversed(roots))
    while waiting:
        run = waiting.pop()
        yield run
        waiting.extend(reversed(run.children))


def told(run: Run) -> str:
    """A run in a few words."""
    own = "".join([token.text for token in run.tokens[run.fork_at or 0 :]]) + run.tail
    shown = own if len(own) <= 40 else own[:39] + "…"
    return f"{run.id[:8]}  {len(run.tokens)} tokens, {run.finish_reason or 'running'}  {shown!r}"


def _plain(run: Run, level: int) -> dict[str, Any]:
    if level < _DEEPEST:
        children = [_plain(child, level + 1) for child in run.children]
    else:
        children = [_alone(each) for each in _with_below(run.children)]
    return {**_alone(run), "children": children}


def _alone(run: Run) -> dict[str, Any]:
    return {
        "id": run.id,
        "parent": run.parent,
        "fork_at": run.fork_at,
        "reason": run.reason,
        "seed": run.seed,
        "salt": run.salt,
        "tokens": len(run.tokens),
        "text": run.text,
        "finish_reason": run.finish_reason,
        "children": [],
    }
