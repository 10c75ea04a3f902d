"""The questions of a scenario, asked when its requests have ended: explanations, forks, files, lenses,
streams and lists. Edits and searches are in edits.py. Each is compared with the same question on a fresh
engine.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
from crossings.draw import Op, Scenario
from crossings.edits import EDITS, ask_edit
from crossings.laws import Judge, log_softmax, record
from crossings.play import Asked, finish, fork_arguments, prepare, snapshot
from crossings.refused import REFUSED
from crossings.stages import StageFailed
from crossings.world import EXTRAS, World, alone

from glassloop.decode.sampling import Sampling
from glassloop.decode.task_kinds import WHAT_IF
from glassloop.engine.follow import complete
from glassloop.engine.request import Request
from glassloop.errors import GlassloopError
from glassloop.record.format.glass_file import from_bytes, to_bytes
from glassloop.record.run import Run, TakenBack
from glassloop.record.store.store import Store
from glassloop.record.token import Token


class Questions:
    """What the questions of one scenario have in common: its engine, its runs and its judge."""

    def __init__(self, world: World, scenario: Scenario, asked: Sequence[Asked], judge: Judge) -> None:
        self.world, self.judge, self.model = world, judge, scenario["model"]
        self.others: list[World] = []
        self.exact = self.model["ops"] != "reference"
        self.runs = [run for each in asked for run in each.runs if run.error is None and run.tokens]
        self.whole = {id(run) for each in asked if not each.cut for run in each.runs}

    def alone(self) -> World:
        """Returns a fresh engine. It is closed when all questions are answered."""
        self.others.append(alone(self.model))
        return self.others[-1]

    def run_of(self, op: Op, plain: bool = False) -> Run | None:
        """Returns the run that a question is about; with `plain`, one that was sampled from left to right."""
        found = [
            run
            for run in self.runs
            if not plain or (run.diffusion is None and run.sampling.beam_width == 1 and id(run) in self.whole)
        ]
        return found[op["of"] % len(found)] if found else None

    def attempt(self, call: Callable[[], Any], what: str) -> Any:
        """Returns what a call returns, or its refusal as data."""
        try:
            return call()
        except Exception as error:
            return self.judge.refusal(error, what)

    def same_runs(self, found: Any, expected: Any, what: str) -> None:
        """Compares two results: runs, or refusals."""
        if isinstance(found, tuple) or isinstance(expected, tuple):
            self.judge.must(found == expected, "alone", lambda: f"{what}: {found!r}, alone {expected!r}")
            return
        self.judge.must(
            len(found) == len(expected), "alone", lambda: f"{what}: {len(found)} runs, not {len(expected)}"
        )
        for run, other in zip(found, expected, strict=True):
            if run.stop_reason == "kv memory" != other.stop_reason:
                continue
            if self.exact:
                self.judge.same(run, other, what)
            self.judge.run(self.world, run, what, 0.4, light=True)


def ask_all(world: World, scenario: Scenario, asked: Sequence[Asked], judge: Judge) -> None:
    """Checks the laws of all runs of a scenario, and asks its questions."""
    for name in EXTRAS:
        if name not in world.adapters:
            world.add_adapter(name)
    questions = Questions(world, scenario, asked, judge)
    try:
        _ask_each(questions, scenario, judge)
    finally:
        for other in questions.others:
            other.close()
    world.engine.call(lambda: judge.nothing_held(world))


def _ask_each(questions: Questions, scenario: Scenario, judge: Judge) -> None:
    world = questions.world
    for number, run in enumerate(questions.runs):
        what = f"run {number} ({run.reason or 'request'})"
        judge.run(world, run, what, ((scenario["seed"] + number) * 0.381966) % 1, light=number > 6)
    for number, op in enumerate(scenario["questions"]):
        judge.counts[f"asked {op['op']}"] += 1
        what = f"{op['op']} {number}"
        if op["op"] in EDITS:
            ask_edit(questions, op, what)
        else:
            ASK[op["op"]](questions, op, what)


# ── forks and what-ifs ─────────────────────────────────────────────────────────────────────────────────────


def _fork(given: Questions, op: Op, what: str) -> None:
    run, world, judge = given.run_of(op), given.world, given.judge
    if run is None:
        return
    at, changes = fork_arguments(run, op)
    before, parent = record(run), snapshot(run)
    what_if = _what_if(given, run, at, changes)
    made = given.attempt(lambda: _completed(world, run, at, changes), what)
    other = given.alone()
    expected = given.attempt(lambda: finish(other, other.prepare_fork(parent, at, **changes)), what)
    given.same_runs(made, expected, f"{what} at {at} with {changes}")
    judge.must(record(run) == before, "parent", lambda: f"{what} changed its parent")
    if isinstance(made, tuple) or made[0].error is not None:
        return
    first = _token(made[0], at)
    if what_if is not None and first is not None and not made[0].sampling.revise:
        told = f"{what} at {at} of {len(run.tokens)} with {changes}: {first} came, explain said {what_if}"
        judge.must(first == what_if, "what_if", lambda: told)
        judge.counts["forks that a what-if foretold"] += 1
    if (
        op.get("token") == "chosen"
        and id(run) in given.whole
        and (run.fork_at or 0) <= at < len(run.tokens)  # before, an ancestor has chosen
        and not run.sampling.revise
        and all(token.source != "forced" for token in run.tokens[at:])
    ):
        same = (made[0].token_ids, made[0].text, made[0].finish_reason, made[0].stop_reason)
        was = (run.token_ids, run.text, run.finish_reason, run.stop_reason)
        judge.must(
            same == was or run.sampling.beam_width > 1,
            "chosen",
            lambda: f"{what} at {at}: {same} is not {was}",
        )
        judge.counts["forks with the chosen token"] += 1


def _completed(world: World, run: Run, at: int, changes: Op) -> list[Run]:
    request = world.prepare_fork(run, at, **changes)
    complete(world.engine, [request], progress=False)
    return request.runs


def _what_if(given: Questions, run: Run, at: int, changes: Op) -> int | None:
    """Returns the token that `explain` foretells for a fork at this place, or None if it cannot."""
    if {"token", "text"} & changes.keys() or run.diffusion is not None or run.sampling.beam_width > 1:
        return None
    changed = {name: value for name, value in changes.items() if name != "n"}
    now = replace(run.sampling, seed=run.seed)
    try:
        luck: Any = "same" if now.changed(changed) != now else "new"
        asked = {name: value for name, value in changed.items() if name not in WHAT_IF.refused}
        return given.world.explain(run, at, luck=luck, **asked).winner.id
    except (GlassloopError, StageFailed):  # the fork is refused too, no token is left, or a stage raises
        return None


def _token(run: Run, at: int) -> int | None:
    if at < len(run.tokens):
        return run.tokens[at].id
    return None if run.end is None else run.end.id


def _ask_what_if(given: Questions, op: Op, what: str) -> None:
    run = given.run_of(op)
    if run is None or run.diffusion is not None:
        return
    at = round(op["at"] * len(run.tokens))
    changes = {**op["changes"], "luck": op["luck"]}
    found = given.attempt(lambda: given.world.explain(run, at, **changes), what)
    expected = given.attempt(lambda: given.alone().explain(snapshot(run), at, **changes), what)
    if given.exact or isinstance(found, tuple):
        given.judge.must(found == expected, "alone", lambda: f"{what} at {at} with {changes}: {found!r:.200}")


def _rewind(given: Questions, op: Op, what: str) -> None:
    run, world, judge = given.run_of(op, plain=True), given.world, given.judge
    if run is None or run.past or run.sampling.revise or run.sampling.timeout is not None:
        return
    before = record(run)
    made = run.rewind(round(op["at"] * max(0, len(run.tokens) - 1)))
    judge.run(world, made, what, op["at"], light=True)
    rest = world.prepare_rest(made)
    made.finish_reason, made.stop_reason, made.tail = None, None, ""
    complete(world.engine, [rest], progress=False)
    judge.must(record(run) == before, "parent", lambda: f"{what} changed its parent")
    if made.stop_reason != "kv memory" and given.exact:
        judge.same_tokens(made, run, "rewind", what)


# ── records ────────────────────────────────────────────────────────────────────────────────────────────────


def _replay(given: Questions, op: Op, what: str) -> None:
    run = given.run_of(op)
    if run is not None:
        other = given.alone()
        given.judge.replayed(other, run, what)
        for at in range(len(run.tokens) + (run.end is not None)):
            given.judge.explained(other, run, at, what)
        for at in range(len(run.prompt_tokens)):
            given.judge.prompt(other, run, at, what)


def _same_copy(given: Questions, run: Run, copy: Run, what: str) -> None:
    mine, other = record(run), record(copy)
    ours = {name: value for name, value in mine.items() if name not in ("error", "taken back", "samples")}
    odd = [name for name, value in ours.items() if value != other[name]]
    given.judge.must(not odd, "copy", lambda: f"{what}: {odd} differ")
    copy.attach(given.world)
    if run.origin.in_order and run.finish_reason is not None:
        differences = run.receipt().differences(copy)
        given.judge.must(not differences, "receipt", lambda: f"{what}: {differences}")
    if run.tokens and run.error is None:
        given.judge.replayed(given.world, copy, what)


def _save(given: Questions, op: Op, what: str) -> None:
    run = given.run_of(op)
    if run is not None:
        runs = [run, *[each for each in run.samples if each is not run]]
        for one, copy in zip(runs, from_bytes(to_bytes(runs)), strict=True):
            _same_copy(given, one, copy, what)


def _store(given: Questions, op: Op, what: str) -> None:
    run = given.run_of(op)
    if run is not None:
        with tempfile.TemporaryDirectory() as folder:
            store = Store(Path(folder) / "runs.db")
            store.put(run)
            store.flush()
            _same_copy(given, run, store.get(run.id), what)
            store.close()


# ── looking inside ─────────────────────────────────────────────────────────────────────────────────────────


def _lens(given: Questions, op: Op, what: str) -> None:
    run, judge = given.run_of(op), given.judge
    if run is None or run.diffusion is not None:
        return
    at = min(int(op["at"] * len(run.tokens)), len(run.tokens) - 1)
    place, other = len(run.prompt_ids) + at - 1, given.alone()
    found, expected = (each.lens.layers(run, place) for each in (given.world, other))
    seen, awaited = (each.lens.attention(run, place) for each in (given.world, other))
    if given.exact:
        judge.must(found == expected, "alone", lambda: f"{what}: other layers")
        judge.must(np.array_equal(seen.weights, awaited.weights), "alone", lambda: f"{what}: other attention")
    said, token = found.layers[-1], run.tokens[at]
    near = abs(said.logprob - token.raw_logprob) < 1e-3
    judge.must(near, "lens", lambda: f"{what}: {said.logprob} at {at}, recorded {token.raw_logprob}")


def _logits(given: Questions, op: Op, what: str) -> None:
    run, judge = given.run_of(op, plain=True), given.judge
    if run is None or run.past:
        return
    ids = [*run.prompt_ids, *run.token_ids][:-1]
    first, adapter = len(run.prompt_ids) - 1, run.sampling.adapter
    found = given.world.logits(ids, first, adapter)
    expected = given.alone().logits(ids, first, adapter)
    judge.must(not given.exact or np.array_equal(found, expected), "alone", lambda: f"{what}: other logits")
    for at, (row, token) in enumerate(zip(found, run.tokens, strict=True)):
        near = abs(log_softmax(row, token.id) - token.raw_logprob) < 1e-3
        judge.must(near, "logits", lambda at=at: f"{what}: not those of the record at {at}")


def _embed(given: Questions, op: Op, what: str) -> None:
    run = given.run_of(op)
    if run is not None:
        ids = run.prompt_ids + run.token_ids
        found, expected = given.world.embed(ids), given.alone().embed(ids)
        same = np.array_equal(found, expected) if given.exact else np.allclose(found, expected, atol=1e-4)
        given.judge.must(same, "alone", lambda: f"{what}: another embedding")


# ── other ways to ask ──────────────────────────────────────────────────────────────────────────────────────


def _alone_runs(given: Questions, op: Op, what: str) -> Any:
    other = given.alone()
    return given.attempt(lambda: finish(other, prepare(other, op)), what)


def _streamed(given: Questions, op: Op, what: str, tokens: Callable[[Request], list[Token]]) -> None:
    """Compares the tokens of a stream with those of the runs alone."""
    expected = _alone_runs(given, op, what)
    request = given.attempt(lambda: prepare(given.world, op), what)
    if isinstance(request, tuple) or isinstance(expected, tuple):
        given.judge.must(request == expected, "alone", lambda: f"{what}: {request!r}, alone {expected!r}")
        return
    raised: Exception | None = None
    events: list[Token] = []
    try:
        events = tokens(request)
    except Exception as error:
        raised = error
    errors = [run.error for run in expected if run.error is not None]
    if raised is not None or errors:
        told = f"{what}: {raised!r}, alone {errors!r}"
        same = raised is not None and str(raised) in [str(error) for error in errors]
        given.judge.must(same, "stream", lambda: told)
        return
    given.same_runs(request.runs, expected, what)
    found: dict[int, list[Token]] = {}
    for token in events:
        mine = found.setdefault(token.sample, [])
        if isinstance(token, TakenBack):
            del mine[token.to :]
        else:
            mine.append(token)
    for run in request.runs:
        streamed = found.get(run.sample, [])
        told = f"{what}: sample {run.sample} has {len(streamed)} streamed tokens, the run {len(run.tokens)}"
        given.judge.must(streamed == run.tokens, "stream", lambda told=told: told)


def _stream(given: Questions, op: Op, what: str) -> None:
    _streamed(given, op, what, lambda request: list(given.world.follow(request)))


def _astream(given: Questions, op: Op, what: str) -> None:
    async def gather(request: Request) -> list[Token]:
        return [token async for token in given.world.afollow(request)]

    _streamed(given, op, what, lambda request: asyncio.run(gather(request)))


def _chat(given: Questions, op: Op, what: str) -> None:
    talk = [{"role": "user", "content": "ab"}]

    def ask(world: World) -> list[Run]:
        return world.chat(talk, Sampling.from_dict(op["options"]), loud=True).samples

    given.same_runs(
        given.attempt(lambda: ask(given.world), what), given.attempt(lambda: ask(given.alone()), what), what
    )


def _list(given: Questions, op: Op, what: str) -> None:
    prompts = [prompt.get("text") or prompt.get("ids") or "ab" for prompt in op["prompts"]]

    def ask() -> list[Run]:
        return given.world.generate(prompts, Sampling.from_dict(op["options"]), same_luck=op["same_luck"])

    runs = given.attempt(ask, what)
    if isinstance(runs, tuple):
        expected = _alone_runs(given, {**op, "prompt": op["prompts"][0]}, what)
        given.judge.must(runs == expected, "alone", lambda: f"{what}: {runs!r}, alone {expected!r}")
        return
    for prompt, run in zip(prompts, runs, strict=True):
        other = given.alone()
        sampling = run.sampling if run.diffusion is None else replace(run.sampling, diffusion=_filling(run))
        given.same_runs(run.samples, finish(other, other.prepare(prompt, sampling)), what)


def _filling(run: Run) -> Any:
    from dataclasses import fields

    from glassloop.decode.diffusion import Diffusion

    known = {field.name for field in fields(Diffusion)}
    assert run.diffusion is not None
    return Diffusion(**{name: value for name, value in run.diffusion.items() if name in known})


def _threads(given: Questions, op: Op, what: str) -> None:
    """Several threads ask at a time."""
    found: dict[int, Any] = {}

    def ask(number: int, each: Op) -> None:
        def run() -> list[Run]:
            request = prepare(given.world, each)
            complete(given.world.engine, [request], progress=False)
            return request.runs

        found[number] = given.attempt(run, what)

    threads = [Thread(target=ask, args=(number, each)) for number, each in enumerate(op["requests"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, each in enumerate(op["requests"]):
        given.same_runs(found[number], _alone_runs(given, each, what), f"{what}, request {number}")


def _refused(given: Questions, op: Op, what: str) -> None:
    """A call with a wrong argument is refused, and the error names the argument."""
    run = given.run_of(op, plain=True)
    name, call = REFUSED[op["wrong"] % len(REFUSED)]
    if run is None:
        return
    try:
        call(given.world, run)
    except Exception as error:
        field = getattr(error, "field", None)
        told = f"{name}: {type(error).__name__} about {field}: {error}"
        given.judge.must(field is not None, "refusal", lambda: told)
        return
    given.judge.must(False, "refusal", lambda: f"{name} is accepted")


ASK: dict[str, Callable[[Questions, Op, str], None]] = {
    "fork": _fork,
    "what_if": _ask_what_if,
    "rewind": _rewind,
    "replay": _replay,
    "save": _save,
    "store": _store,
    "lens": _lens,
    "logits": _logits,
    "embed": _embed,
    "stream": _stream,
    "astream": _astream,
    "chat": _chat,
    "list": _list,
    "threads": _threads,
    "refused": _refused,
}
