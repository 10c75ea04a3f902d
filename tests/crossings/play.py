"""Plays a scenario: its requests, step by step on the engine's thread, then its questions. Every run is
compared with the same request alone, and every law is checked.

When something happens is counted in steps of the engine, so a scenario is played the same way again. (Only
the question `threads` and the requests beside edits depend on how threads are scheduled.)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field

from crossings.draw import Op, Scenario
from crossings.laws import Broken, Judge
from crossings.world import EXTRAS, World, alone, limits

from glassloop.decode.sampling import Sampling
from glassloop.decode.stop import Pause
from glassloop.engine.owner import owned_by
from glassloop.engine.request import Listener, Request, ignore
from glassloop.record.run import Run, TakenBack
from glassloop.record.token import Token

MOST_STEPS = 20_000


@dataclass(eq=False)
class Asked:
    """A request of a scenario, and all that was done with it."""

    op: Op
    number: int
    request: Request | None = None  # None: it was refused
    refusal: tuple[str, str] | None = None
    parent: Run | None = None  # of a fork, as it was then
    at: int = 0
    changes: Op = field(default_factory=dict)
    rests: dict[int, Request] = field(default_factory=dict)  # by sample: the last request that continued it
    begun: int = 0  # the step
    parts: int = 0  # how many times it was cut short
    told: dict[int, list[Token]] = field(default_factory=dict)  # by sample
    ends: dict[int, int] = field(default_factory=dict)
    failed: bool = False  # its listener has raised

    @property
    def what(self) -> str:
        return f"{self.op['op']} {self.number}"

    @property
    def runs(self) -> list[Run]:
        if self.request is None:
            return []
        return [
            self.rests[at].runs[0] if at in self.rests else run for at, run in enumerate(self.request.runs)
        ]

    @property
    def ended(self) -> bool:
        requests = [self.request, *self.rests.values()]
        return all(each.ended for each in requests if each is not None)

    @property
    def cut(self) -> bool:
        """Whether what it has is not all that it would have."""
        sampling = None if self.request is None else self.request.sampling
        timeout = sampling is not None and sampling.timeout is not None and sampling.timeout < 1
        # A beam search that was cancelled gives the best texts so far, and some of them may have ended.
        searched = sampling is not None and sampling.beam_width > 1 and self.parts > 0
        ended = searched or any(run.finish_reason == "cancelled" for run in self.runs)
        return self.failed or timeout or ended

    def listen(self, run: Run, token: Token | None) -> None:
        events = self.told.setdefault(run.sample, [])
        if token is None:
            self.ends[run.sample] = self.ends.get(run.sample, 0) + 1
        elif isinstance(token, TakenBack):
            del events[len(events) - token.taken :]
        else:
            events.append(token)
        if "listener" in self.op and len(events) > self.op.get("listener_at", 0):
            self.failed = True
            raise SystemExit("left") if self.op["listener"] == "exits" else ValueError("listener")


def play(scenario: Scenario) -> Judge:
    """Plays a scenario; raises `Broken` with the first law that does not hold."""
    judge = Judge([name.removeprefix("law:") for name in scenario.get("without", ())])
    with limits(scenario["settings"]):
        world = World(scenario["model"], scenario["settings"])
        try:
            asked = _serve(world, scenario, judge)
            for each in asked:
                _compare(world, scenario, each, judge)
            from crossings.questions import ask_all

            ask_all(world, scenario, asked, judge)
        finally:
            world.close()
    judge.counts["evicted pages"] += world.engine.loop.tree.evicted
    judge.counts[f"draft {scenario['model']['draft']}"] += 1
    judge.counts[f"ops {scenario['model']['ops']}"] += 1
    judge.counts["experts"] += bool(scenario["model"].get("experts"))
    judge.counts.update(scenario["model"].get("parts", ()))
    if (slots := world.engine.loop.tree.slots) is not None:
        judge.counts["recurrent"] += 1
        judge.counts["states given back"] += slots.states_given_back
    judge.counts["windows"] += scenario["model"]["window"] is not None
    return judge


# ── requests ───────────────────────────────────────────────────────────────────────────────────────────────


def prepare(world: World, op: Op, listener: Listener = ignore) -> Request:
    """Returns the request of an operation, of the client that it names."""
    with owned_by(op.get("owner", "")):
        return _prepare(world, op, listener)


def _prepare(world: World, op: Op, listener: Listener) -> Request:
    sampling, prompt = Sampling.from_dict(op["options"]), op["prompt"]
    if "messages" in prompt:
        made = world.prepare_chat(prompt["messages"], sampling)
        made.priority, made.listener = op.get("priority", 0), listener
        return made
    given = prompt.get("text", prompt.get("ids"))
    return world.prepare(given, sampling, priority=op.get("priority", 0), listener=listener)


def fork_arguments(parent: Run, op: Op) -> tuple[int, Op]:
    """Returns the place and the keyword arguments of a fork."""
    at = round(op["at"] * len(parent.tokens))
    made = dict(op.get("changes", {}))
    if "text" in op:
        made["text"] = op["text"]
    if "token" in op:
        chosen = parent.tokens[at].id if at < len(parent.tokens) else 97
        made["token"] = chosen if op["token"] == "chosen" else op["token"]
    return at, made


def snapshot(run: Run) -> Run:
    """Returns a run as it is now, which a fork of it elsewhere does not change. Luck depends on the forks of
    its ancestors too."""
    made = copy(run)
    made.tokens, made.forks, made.children = list(run.tokens), dict(run.forks), list(run.children)
    made.prompt_tokens = list(run.prompt_tokens)
    made.above = None if run.above is None else snapshot(run.above)
    return made


def _serve(world: World, scenario: Scenario, judge: Judge) -> list[Asked]:
    asked: list[Asked] = []
    failed: list[BaseException] = []

    def drive() -> None:
        try:
            _Driver(world, scenario, judge, asked).drive()
        except BaseException as error:  # SystemExit too: it must not end the engine's thread here
            failed.append(error)

    world.engine.call(drive)
    if failed:
        raise failed[0]
    return asked


class _Driver:
    """Steps the engine on its own thread, and does what is due before each step."""

    def __init__(self, world: World, scenario: Scenario, judge: Judge, asked: list[Asked]) -> None:
        self._world, self._loop = world, world.engine.loop
        self._judge, self._asked = judge, asked
        self._waiting = sorted(scenario["requests"], key=lambda op: op["step"])
        self._seed = scenario["seed"]

    def drive(self) -> None:
        step, loop = 0, self._loop
        while True:
            while self._waiting and (self._waiting[0]["step"] <= step or not loop.busy):
                self._begin(self._waiting.pop(0), step)
            for each in self._asked:
                self._interrupt(each, step)
            if not loop.busy and not self._waiting:
                break
            if loop.busy:
                self._step()
            if (step * 7 + self._seed) % 5 == 0:
                self._judge.integrity(self._world)
            step += 1
            self._judge.must(step < MOST_STEPS, "progress", lambda: f"{MOST_STEPS} steps and no end")
        self._judge.nothing_held(self._world)

    def _step(self) -> None:
        try:
            self._loop.step()
        except BaseException as error:
            raise Broken("isolation", f"a step raised {type(error).__name__}: {error}") from error

    def _begin(self, op: Op, step: int) -> None:
        made = Asked(op, len(self._asked), begun=step)
        try:
            with self._adapter_of(op):
                if op["op"] == "fork":
                    if not self._fork(made):
                        return
                else:
                    made.request = prepare(self._world, op, made.listen)
                assert made.request is not None
                if op.get("pause"):
                    made.request.pause = Pause(op["pause"][0])
                self._loop.add(made.request)
        except Exception as error:
            made.refusal = self._judge.refusal(error, made.what)
        self._asked.append(made)

    def _fork(self, made: Asked) -> bool:
        """Prepares a fork of a request that was made before, which may be running. Returns whether it can."""
        op = made.op
        parents = [each.runs for each in self._asked if each.runs]
        if not parents:
            return False
        runs = parents[op["of"] % len(parents)]
        parent = runs[op["sample"] % len(runs)]
        if set(parent.adapters) & set(EXTRAS):
            return False
        made.parent = snapshot(parent)
        made.at, made.changes = fork_arguments(parent, op)
        self._judge.counts["forks of running runs"] += parent.finish_reason is None
        self._judge.counts["forks"] += 1
        made.request = self._world.prepare_fork(parent, made.at, listener=made.listen, **made.changes)
        return True

    @contextmanager
    def _adapter_of(self, op: Op) -> Iterator[None]:
        """Loads the adapter that only this request has, and unloads it when the request is queued."""
        name = op.get("extra")
        if name is None:
            yield
            return
        self._judge.counts["adapters loaded under way"] += 1
        self._world.add_adapter(name)
        try:
            yield
        finally:
            self._loop.remove_adapter(name)

    def _interrupt(self, asked: Asked, step: int) -> None:
        """Cancels a request if it is due, and continues what has been cancelled or has paused."""
        op, cancels = asked.op, asked.op.get("cancel", ())
        if asked.request is None:
            return
        if asked.parts < len(cancels) and step - asked.begun >= cancels[asked.parts] and not asked.ended:
            for request in [asked.request, *asked.rests.values()]:
                if not request.ended:
                    self._loop.cancel(request)
            self._judge.counts["cancelled"] += 1
            asked.parts, asked.begun = asked.parts + 1, step
            if op.get("continue"):
                self._continue(asked, None)
        elif "pause" in op and asked.ended and any(run.stop_reason == "paused" for run in asked.runs):
            asked.parts, asked.begun = asked.parts + 1, step
            more = op["pause"][asked.parts : asked.parts + 1]
            longest = max(len(run.tokens) for run in asked.runs)
            self._judge.counts["paused"] += 1
            self._continue(asked, Pause(longest + more[0]) if more else None)

    def _continue(self, asked: Asked, pause: Pause | None) -> None:
        for at, run in enumerate(asked.runs):
            sampling = run.sampling
            if run.finish_reason != "cancelled" or run.diffusion is not None or sampling.beam_width > 1:
                continue
            if asked.failed:
                continue
            with self._adapter_of(asked.op):
                rest = self._world.prepare_rest(run)
                run.finish_reason, run.stop_reason, run.tail = None, None, ""
                rest.listener, rest.pause, asked.rests[at] = asked.listen, pause, rest
                self._loop.add(rest)
            self._judge.counts["continued"] += 1


# ── the same, alone ────────────────────────────────────────────────────────────────────────────────────────


def finish(world: World, request: Request) -> list[Run]:
    """Computes a request on an engine whose thread has nothing to do."""
    loop = world.engine.loop
    request.drafts = False
    loop.add(request)
    try:
        while loop.busy:
            loop.step()
    except BaseException as error:
        raise Broken("isolation", f"alone, a step raised {type(error).__name__}: {error}") from error
    return request.runs


def expected_runs(scenario: Scenario, asked: Asked, judge: Judge) -> list[Run] | tuple[str, str]:
    """Returns what a request gives alone on a fresh engine, or why it is refused."""
    other = alone(scenario["model"])
    try:
        if asked.parent is not None:
            made = other.prepare_fork(asked.parent, asked.at, **asked.changes)
        else:
            made = prepare(other, asked.op)
    except Exception as error:
        return judge.refusal(error, f"{asked.what}, alone")
    if made.sampling.timeout is not None:
        made.sampling = copy(made.sampling)
        object.__setattr__(made.sampling, "timeout", None)
    return finish(other, made)


def _compare(world: World, scenario: Scenario, asked: Asked, judge: Judge) -> None:
    expected = expected_runs(scenario, asked, judge)
    if "diffusion" in asked.op.get("options", {}) and scenario["model"].get("recurrent"):
        told = f"{asked.what}: masks are filled by a model with recurrent layers"
        judge.must(asked.refusal is not None, "refusal", lambda: told)
    if asked.refusal is not None or not isinstance(expected, list):
        reasons = asked.refusal, expected
        judge.must(
            asked.refusal == expected,
            "alone",
            lambda: f"{asked.what}: refused {reasons[0]}, alone {reasons[1]}",
        )
        return
    runs = asked.runs
    _count(judge, asked, runs)
    judge.must(
        len(runs) == len(expected) or asked.cut,
        "alone",
        lambda: f"{asked.what}: {len(runs)} runs, not {len(expected)}",
    )
    exact = scenario["model"]["ops"] != "reference"
    for at, (run, other) in enumerate(zip(runs, expected, strict=False)):
        what = f"{asked.what}, sample {at}"
        judge.must(run.finish_reason is not None, "progress", lambda what=what: f"{what} has not ended")
        if run.stop_reason == "kv memory" and other.stop_reason != "kv memory":
            _must_not_fit(scenario, asked, judge, what)
        elif asked.cut:
            if run.sampling.beam_width == 1 and exact:
                judge.begins(run, other, what)
        elif exact:
            judge.same(run, other, what)
        else:
            judge.must(run.token_ids == other.token_ids, "alone", lambda what=what: f"{what}: other tokens")
    if not asked.failed:
        _listened(asked, judge)


def _must_not_fit(scenario: Scenario, asked: Asked, judge: Judge, what: str) -> None:
    """A request for which there is no room finds none when it is alone in as little."""
    judge.counts["no room"] += 1
    settings = scenario["settings"]
    other = World({**scenario["model"], "draft": "off"}, settings)
    for name in EXTRAS:
        other.add_adapter(name)
    if asked.parent is not None:
        made = other.prepare_fork(asked.parent, asked.at, **asked.changes)
    else:
        made = prepare(other, asked.op)
    found = finish(other, made)
    full = any(run.stop_reason == "kv memory" for run in found)
    judge.must(full, "room", lambda: f"{what} ended for lack of memory, and fits alone")


def _listened(asked: Asked, judge: Judge) -> None:
    """A listener is told of each token once, and of one end."""
    for run in asked.runs:
        told, kept = asked.told.get(run.sample, []), run.tokens[asked.at :]
        what = f"{asked.what}, sample {run.sample}"
        judge.must(
            told == kept,
            "told",
            lambda what=what, told=told, kept=kept: f"{what}: told {len(told)} of {len(kept)}",
        )
        ends, parts = asked.ends.get(run.sample, 0), 1 + asked.parts
        judge.must(
            1 <= ends <= parts,
            "told",
            lambda what=what, ends=ends, parts=parts: f"{what}: told of {ends} ends in {parts} parts",
        )


def _count(judge: Judge, asked: Asked, runs: list[Run]) -> None:
    happened, op = judge.counts, asked.op
    happened["runs"] += len(runs)
    happened["listeners that raised"] += asked.failed
    for run in runs:
        options = run.sampling
        happened["accepted drafts"] += run.drafts.accepted > 0
        happened["refused drafts"] += any(token.refused is not None for token in run.tokens)
        happened["preempted"] += run.timings.preempted > 0
        happened["preempted samples"] += run.timings.preempted > 0 and len(runs) > 1
        happened["preempted beams"] += run.timings.preempted > 0 and options.beam_width > 1
        happened["preempted diffusion"] += run.timings.preempted > 0 and run.diffusion is not None
        happened["cached prefixes"] += run.cached_tokens > 0
        happened["revised"] += run.revised > 0
        happened["revised and continued"] += run.revised > 0 and asked.parts > 0
        happened["forks that are continued"] += asked.parent is not None and asked.parts > 0
        happened["beams"] += options.beam_width > 1
        happened["diffused"] += run.diffusion is not None
        happened["samples"] += len(runs) > 1
        happened["stop strings"] += run.stop_reason in options.stop
        happened["end tokens"] += run.end is not None
        happened["repetitions"] += run.finish_reason == "repetition"
        happened["grammars"] += options.constraint is not None and bool(run.tokens)
        happened["scored prompts"] += bool(run.prompt_tokens)
        happened["own stages"] += options.stages is not None and bool(run.tokens)
        happened["errors of stages"] += run.error is not None and options.stages is not None
        happened["adapters"] += options.adapter is not None and bool(run.tokens)
        happened["continued to the end"] += asked.parts > 0 and run.finish_reason != "cancelled"
        happened["chats"] += "messages" in op.get("prompt", {})
