"""Edits and searches beside other requests: each is what it is alone, can be made again from its record, and
every run that it returns can be replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING, Any

from crossings.draw import Op
from crossings.play import snapshot
from crossings.stages import EXITS, RAISES
from crossings.world import World

from glassloop.decode.sampling import Sampling
from glassloop.decode.task_kinds import KINDS, TaskKind
from glassloop.edit.record import Edit, compare
from glassloop.edit.replay import replay
from glassloop.record.run import Run
from glassloop.search.solution import Solution

if TYPE_CHECKING:
    from crossings.questions import Questions

EDITS = ("infill", "rewrite", "repair", "repair_check", "sharpen", "solve")
_MOST_RUNS = 5  # of one edit that are replayed


def ask_edit(given: Questions, op: Op, what: str) -> None:
    what = f"{what} ({op['given'].get('method', op['given'].get('proposer', ''))})"
    run = given.run_of(op, plain=True)
    check = _verifier(op)
    with _beside(given.world):
        found = given.attempt(lambda: _made(given.world, op, run, check), what)
    copy = None if run is None else snapshot(run)
    expected = given.attempt(lambda: _made(given.alone(), op, copy, check), what)
    judge = given.judge
    if isinstance(found, tuple) or isinstance(expected, tuple):
        stages = set() if run is None else set(run.sampling.stages or ())
        # With seeds of their own, the two draw other texts: a bad stage may raise at one of them only.
        if not (_drawn_anew(op) and stages & {RAISES, EXITS}):
            judge.must(found == expected, "alone", lambda: f"{what}: {found!r}, alone {expected!r}")
        return
    judge.counts[f"made by {op['op']}"] += 1
    if isinstance(found, Solution):
        _solved(given, found, expected, what)
        return
    if given.exact and not _drawn_anew(op):
        same = compare(expected, found)
        judge.must(same.identical, "alone", lambda: f"{what}: {same.first}")
    again = replay(found, given.world, check if op["op"] == "repair_check" else None)
    judge.must(again.identical or not given.exact, "replay", lambda: f"{what}: {again.first}")
    for number, each in enumerate(_runs(found)):
        judge.run(given.world, each, f"{what}, its run {number}", 0.6, light=True)


def _kind(op: Op) -> TaskKind:
    kind, values = op["op"], op["given"]
    if values.get("proposer") == "diffusion" or values.get("method") == "holes":
        return KINDS[f"{kind} by masks"]
    return KINDS["repair, check=" if kind == "repair_check" else kind]


def _made(world: World, op: Op, run: Run | None, check: Callable[[str], bool]) -> Edit | Solution:
    kind, values = op["op"], dict(op["given"])
    options = {name: op["options"][name] for name in ("seed", "max_tokens")}
    options = op["options"] if op["with_options"] else options
    # What the kind of task refuses would keep all of it from running.
    sampling = _kind(op).acting(Sampling.from_dict(options))
    if kind == "solve":
        question, method = values.pop("question"), values.pop("method")
        return world.solve(question, method, verify=check, **values, **options)
    if kind == "infill":
        return world.infill(values.pop("before"), values.pop("after"), sampling=sampling, **values)
    if kind == "rewrite":
        return world.rewrite(values.pop("text"), values.pop("spans"), sampling, **values)
    if kind == "sharpen":
        return world.sharpen(values.pop("text"), values.pop("alpha"), sampling=sampling, **values)
    text: Any = values.pop("text")
    if kind == "repair":
        return world.repair(text, sampling=sampling, **values)
    if values.pop("run") and run is not None:
        text = run
        sampling = None if _drawn_anew(op) else sampling  # type: ignore[assignment]
    values.pop("letter")
    return world.repair(text, check=check, sampling=sampling, **values)


def _drawn_anew(op: Op) -> bool:
    """Returns whether an edit draws its own seed: one of a run, without options."""
    return bool(op["given"].get("run")) and not op["with_options"]


def _verifier(op: Op) -> Callable[[str], bool]:
    letter = op["given"].get("letter", "a")
    return lambda text: text.count(letter) >= 3


@contextmanager
def _beside(world: World) -> Iterator[None]:
    """Keeps the engine at work for somebody else meanwhile."""
    ended = Event()
    request = world.prepare("somebody else", Sampling(seed=1, max_tokens=40, n=2, ignore_eos=True))
    request.listener = lambda run, token: ended.set() if token is None and request.ended else None
    world.submit(request, may_refuse=False)
    try:
        yield
    finally:
        ended.wait()


def _runs(edit: Edit) -> list[Run]:
    found = [edit.run, edit.draft, *[run for each in edit.proposals for run in (each.run, each.drawn)]]
    runs = {id(run): run for run in found if run is not None and run.finish_reason is not None}
    return list(runs.values())[:_MOST_RUNS]


def _solved(given: Questions, found: Solution, expected: Solution, what: str) -> None:
    judge = given.judge

    def told(solution: Solution) -> Any:
        paths = [(path.run.tokens, path.value, path.ended_by, path.vote) for path in solution.paths]
        return solution.value, solution.text, paths, solution.votes

    judge.must(not given.exact or told(found) == told(expected), "alone", lambda: f"{what}: another solution")
    again = found.replay()
    judge.must(again.identical or not given.exact, "replay", lambda: f"{what}: {again.difference}")
    for number, path in enumerate(found.paths[:_MOST_RUNS]):
        judge.run(given.world, path.run, f"{what}, path {number}", 0.6, light=True)
