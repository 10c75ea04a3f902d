"""The tree of runs: the first run with its samples, and all runs that were forked from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from glassloop.errors import TraceError
from glassloop.record.run_record import RunRecord
from glassloop.util.shown import cut

R = TypeVar("R", bound=RunRecord)
_DEEPEST = 100  # levels of forks that are nested in JSON; deeper ones are listed flat in the last level
_FIELDS = ("id", "parent", "fork_at", "reason", "seed", "salt", "text", "finish_reason")


@dataclass(frozen=True)
class RunTree(Generic[R]):
    """All runs that descend from the same request, each before those that were forked from it."""

    roots: tuple[R, ...]  # the samples of the first request

    @classmethod
    def of(cls, run: R) -> RunTree[R]:
        """Returns the tree that a run belongs to, as far as its runs are linked."""
        first = _first(run)
        # A sample that is a fork of another is below that one already.
        samples = tuple(dict.fromkeys(map(_first, first.samples)))
        return cls(samples if first in samples else (first,))

    def __iter__(self) -> Iterator[R]:
        return _with_descendants(self.roots)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def from_run(self, run: R) -> list[R]:
        """Returns all runs, this one first."""
        return [run, *(other for other in self if other is not run)]

    def to_dict(self) -> list[dict[str, Any]]:
        """Returns the tree as JSON has it: a list of runs, each with its `children`."""
        return [_plain(run, 1) for run in self.roots]

    def drawn(self) -> Iterator[tuple[str, R]]:
        """Yields one line of a drawing for each run: the text before the run, and the run."""
        waiting = [("● ", "", run) for run in reversed(self.roots)]
        while waiting:
            branch, indent, run = waiting.pop()
            yield branch, run
            for child in reversed(run.children):
                last = child is run.children[-1]
                branch = f"{indent}{'└' if last else '├'}─ at {child.fork_at} {child.reason}: "
                waiting.append((branch, indent + ("   " if last else "│  "), child))

    def __str__(self) -> str:
        return "\n".join(branch + run_line(run) for branch, run in self.drawn())


def _first(run: R) -> R:
    """Returns the run without a parent that a run descends from."""
    while run.above is not None:
        run = run.above
    return run


def link(runs: Sequence[R], samples: Sequence[Sequence[str]]) -> None:
    """Links runs to their samples (given by id), parents and forks among each other. Raises, and links
    nothing, if two runs have the same id or a run descends from itself."""
    by_id = {run.id: run for run in runs}
    if len(by_id) != len(runs):
        raise TraceError("two runs have the same id")
    below: dict[str | None, list[str]] = {}
    for run in runs:
        below.setdefault(run.parent if run.parent in by_id else None, []).append(run.id)
    # A run that cannot be reached from a run without a parent descends from itself.
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


def run_line(run: RunRecord) -> str:
    """Returns a run in one line: its id, its length, how it ended, and its own text."""
    text = "".join([token.text for token in run.tokens[run.fork_at or 0 :]]) + run.tail
    return f"{run.id[:8]}  {len(run.tokens)} tokens, {run.finish_reason or 'running'}  {cut(text, 40)!r}"


def _with_descendants(roots: Sequence[R]) -> Iterator[R]:
    waiting = list(reversed(roots))
    while waiting:
        run = waiting.pop()
        yield run
        waiting.extend(reversed(run.children))


def _plain(run: RunRecord, level: int) -> dict[str, Any]:
    if level < _DEEPEST:
        children = [_plain(child, level + 1) for child in run.children]
    else:
        children = [{**_alone(each), "children": []} for each in _with_descendants(run.children)]
    return {**_alone(run), "children": children}


def _alone(run: RunRecord) -> dict[str, Any]:
    return {name: getattr(run, name) for name in _FIELDS} | {"tokens": len(run.tokens)}
