"""Computes methods from recorded samples, without the model: voting for every n, best of n, online stopping.

The decisions are those of the methods themselves: `Playback` lets the method object of a search work on
recorded tokens instead of on the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from glassloop.decode.chosen import ALTERNATIVE
from glassloop.evaluate.evaluation_task import EvaluationTask, TaskItem
from glassloop.evaluate.method_spec import MethodSpec
from glassloop.evaluate.record import RecordError, seconds_of
from glassloop.evaluate.samples import GREEDY, SAMPLES, unpack
from glassloop.search.methods import make_method
from glassloop.search.path_confidence import WINDOW, lowest_group, token_confidences
from glassloop.search.search import Paths, Search
from glassloop.search.solution import BY_METHOD, Path
from glassloop.search.verdict import Verdict


@dataclass(frozen=True)
class Recorded:
    """One recorded answer, judged."""

    text: str
    tokens: int
    finish: str
    logprob: float  # the mean, the token that ended it included
    confidence: np.ndarray[Any, Any]
    value: str | None
    correct: bool


@dataclass(frozen=True)
class ItemOutcome:
    """What a method made of an item."""

    correct: bool
    tokens: int
    value: str | None = None
    paths: int = 1


@dataclass(frozen=True)
class Samples:
    """The recorded answers of a task, by the id of the item."""

    task: EvaluationTask
    greedy: Mapping[str, Recorded]
    samples: Mapping[str, Sequence[Recorded]]
    seconds: Mapping[str, float]  # of drawing, by kind

    @classmethod
    def of(cls, task: EvaluationTask, header: Mapping[str, Any], rows: Sequence[dict[str, Any]]) -> Samples:
        """Returns the samples of a record, with the answers extracted and judged."""
        if header.get("digest") != task.digest:
            raise RecordError(f"the record is of another task or data file than {task.name}")
        task.check()
        items = {item.id: item for item in task.items}
        greedy: dict[str, Recorded] = {}
        samples: dict[str, list[Recorded]] = {}
        for row in rows:
            item = items[row["item"]]
            judged = [_judged(task, item, run) for run in row["runs"]]
            if row["kind"] == GREEDY:
                greedy[item.id] = judged[0]
            else:
                samples[item.id] = judged
        kinds = {kind: seconds_of([row for row in rows if row["kind"] == kind]) for kind in (GREEDY, SAMPLES)}
        return cls(task, greedy, samples, kinds)

    @property
    def ids(self) -> list[str]:
        """The items that every kind in the record has, in the order of the task."""
        kinds = [set(kind) for kind in (self.greedy, self.samples) if kind]
        both = set.intersection(*kinds) if kinds else set()
        return [item.id for item in self.task.items if item.id in both]

    def outcomes(self, method: MethodSpec) -> dict[str, ItemOutcome]:
        """Returns what a method makes of each item."""
        if method.name == GREEDY:
            _check_recorded(self.greedy, "a greedy answer")
            return {
                key: ItemOutcome(self.greedy[key].correct, self.greedy[key].tokens, self.greedy[key].value)
                for key in self.ids
            }
        _check_recorded(self.samples, "samples")
        count = min(len(runs) for runs in self.samples.values())
        n = method.n or (1 if method.name == "sample" else count)
        if n > count:
            raise RecordError(f"{method.text} needs {n} samples, and the record has {count} of each item")
        decide = _DIRECT.get(method.name)
        if decide is not None:
            return {key: decide(self.samples[key][:n]) for key in self.ids}
        options = {**dict(method.options), "n": n}
        return {key: _played(make_method(method.name, options), self.samples[key][:n]) for key in self.ids}


def _judged(task: EvaluationTask, item: TaskItem, run: Mapping[str, Any]) -> Recorded:
    text = run["text"]
    value = task.value(item, text)
    confidence = unpack(run["confidence"])
    correct = task.correct(item, text, value)
    return Recorded(text, run["tokens"], run["finish"], run["logprob"], confidence, value, correct)


def _check_recorded(kind: Mapping[str, Any], what: str) -> None:
    if not kind:
        raise RecordError(f"the record has no item with {what}")


# ── methods that need no rounds ────────────────────────────────────────────────────────────────────────────


def _sample(runs: Sequence[Recorded]) -> ItemOutcome:
    """Returns the outcome of the last sample alone: `sample:3` is the third."""
    return ItemOutcome(runs[-1].correct, runs[-1].tokens, runs[-1].value)


def _any(runs: Sequence[Recorded]) -> ItemOutcome:
    """Returns whether any sample is right: what a perfect judge would reach."""
    return ItemOutcome(any(run.correct for run in runs), sum(run.tokens for run in runs), None, len(runs))


def _best_in_turn(runs: Sequence[Recorded]) -> ItemOutcome:
    """Returns the first sample that the task's own judge accepts, one drawn after the other."""
    spent = 0
    for number, run in enumerate(runs, start=1):
        spent += run.tokens
        if run.correct:
            return ItemOutcome(True, spent, run.value, number)
    return ItemOutcome(False, spent, runs[0].value, len(runs))


_DIRECT: dict[str, Callable[[Sequence[Recorded]], ItemOutcome]] = {
    "sample": _sample,
    "any": _any,
    "best_in_turn": _best_in_turn,
}


# ── methods that work in rounds ────────────────────────────────────────────────────────────────────────────


class _Choice:
    """The part of a token's record that confidence is computed from."""

    __slots__ = ("packed_alternatives",)

    def __init__(self, packed: bytes) -> None:
        self.packed_alternatives = packed


class _Token:
    __slots__ = ("chosen", "raw_logprob")

    def __init__(self, chosen: _Choice, raw_logprob: float) -> None:
        self.chosen, self.raw_logprob = chosen, raw_logprob


class _Run:
    """A recorded run that grows again: `tokens` are those written so far."""

    fork_at = None

    def __init__(self, recorded: Recorded) -> None:
        self.recorded = recorded
        table = np.zeros(recorded.tokens, ALTERNATIVE)
        # One alternative whose mean is the recorded confidence.
        table["raw_logprob"] = -recorded.confidence[: recorded.tokens]
        data, size = table.tobytes(), ALTERNATIVE.itemsize
        # Of log-probabilities the mean is recorded; each token has it, and so has the one that ended the run.
        mean = recorded.logprob
        self._all = [_Token(_Choice(data[at : at + size]), mean) for at in range(0, len(data), size)]
        self.tokens: list[_Token] = []
        self.end = _Token(_Choice(b""), mean) if recorded.finish == "stop" else None
        self.text = recorded.text

    def grow(self, until: int) -> bool:
        """Writes tokens up to a number of them, and returns whether the run has ended."""
        self.tokens = self._all[:until]
        total = len(self._all)
        # The token that ends a text is not one of its tokens, so it needs one more.
        return total <= until if self.recorded.finish == "length" else total < until


def _spent(run: _Run) -> int:
    """Returns how many tokens a run has cost, as `Path.spent` counts them."""
    return max(len(run.tokens), int(run.end is not None and not run.recorded.tokens))


class Playback:
    """A search that takes its paths from recorded samples, in the place of the engine."""

    judge = None

    def __init__(self, runs: Sequence[Recorded]) -> None:
        self._runs = [_Run(run) for run in runs]
        self.paths = Paths(self)
        self.round = 0
        self._window = WINDOW

    def play(self, method: Search) -> ItemOutcome:
        """Runs a method to its end, round by round, as `Running.next_round` does."""
        stride = method.stride or 1 << 31
        self._window = getattr(method, "window", WINDOW)
        method.start(self.paths)
        while growing := self.paths.running:
            self.round += 1
            ended = set()
            for path in growing:
                run = self._runs[path.number]
                if run.grow(len(run.tokens) + stride):
                    path.value = run.recorded.value
                    self.end(path, run.recorded.finish, "")
                    ended.add(path.number)
            for path in growing:
                if self.paths.finished:
                    break
                if path.running:
                    method.grown(self.paths, path)
                elif path.number in ended:
                    method.ended(self.paths, path)
        winner = method.answer(self.paths)
        spent = sum(_spent(self._runs[path.number]) for path in self.paths)
        if winner is None:
            return ItemOutcome(False, spent, None, len(self.paths))
        chosen = self._runs[winner.number].recorded
        complete = winner.ended_by != BY_METHOD
        return ItemOutcome(complete and chosen.correct, spent, winner.value, len(self.paths))

    # What `Paths` asks of a search.

    def allowed(self, count: int) -> int:
        return min(count, len(self._runs) - len(self.paths))

    def new_path(self) -> Path:
        number = len(self.paths)
        path = Path(number, self._runs[number])  # type: ignore[arg-type]
        self.paths.add(path)
        return path

    def new_fork(self, parent: Path, at: int, text: str) -> Path:
        raise RecordError("recorded samples cannot be forked")

    def end(self, path: Path, by: str, why: str) -> None:
        path.ended_by, path.why = by, why
        path.confidence = lowest_group(token_confidences(path.run.tokens), self._window)

    def judged(self, path: Path, by: str) -> Verdict:
        passed = self._runs[path.number].recorded.correct
        path.verdict = Verdict(passed, float(passed))
        return path.verdict


def _played(method: Search, runs: Sequence[Recorded]) -> ItemOutcome:
    return Playback(runs).play(method)
