"""Overlapped steps of a device: step N+1 is launched before step N is committed.

Only for op sets that compute on a device (`RowOps.start`): the device need not wait for the host then.

    host    plan N+1 · launch N+1 · choose N · commit N │ plan N+2 · launch N+2 · choose N+1 · commit N+1 │ …
    device  ──────── step N ────────┼──────────── step N+1 ────────────┼──────────── step N+2 ───────────

When step N+1 is planned, the tokens that step N chooses are not known to the host. Each has a placeholder in
its row, a negative number (`KVTree.promise`), and the device puts what it predicts for step N in its place.
Once step N is committed, a row whose prediction was wrong, or whose run has ended, is dropped (`_settle`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from glassloop.decode.chosen import Chosen
from glassloop.decode.decoder import StartedChoices
from glassloop.engine.scheduler import Scheduler
from glassloop.engine.step_verbs import ChosenRows, LaunchedCall, StepVerbs
from glassloop.engine.tasks.task import PlannedCall, Task, places_of
from glassloop.engine.tree import KVTree

_MOST_KEPT = 512  # rows of logits that are kept while the next step runs


@dataclass
class Flight(LaunchedCall):
    """A step that a device computes while the host does something else."""

    promised: dict[int, int]  # placeholder → line of the choices of the step before, which predicts the token
    dropped: set[Task] = field(default_factory=set)  # tasks whose rows were computed with a wrong token
    choices: StartedChoices | None = None  # None: not begun yet
    tasks: Sequence[Task] = ()  # the tasks for which a token is chosen
    places: Sequence[int] = ()  # the row of each of these tasks
    lines: dict[Task, int] = field(default_factory=dict)  # the line of each of them in `choices`

    def lands(self, task: Task) -> bool:
        """Returns whether a task waits for its rows."""
        return not task.ended and task not in self.dropped

    def begin_choices(self) -> None:
        """Lets the device choose the tokens of the rows that tasks wait for."""
        tasks, decoders, places, positions = [], [], [], []
        for place, work in places_of(self.call.works):
            decoder = work.task.decoder if work.wanted else None
            if decoder is not None and self.lands(work.task):
                tasks.append(work.task)
                decoders.append(decoder)
                places.append(place)
                positions.append(work.first + len(work.ids) - work.wanted + 1)
        self.choices = StartedChoices(decoders, self.results, places, positions)
        self.tasks, self.places = tasks, places
        if self.choices.started is not None:
            self.lines = {task: line for line, task in enumerate(tasks)}


class Predicted:
    """How often the device's predictions of tokens have been right of late."""

    def __init__(self) -> None:
        self.share = 1.0
        self._missed = 0  # steps without predictions

    def saw(self, predictions: int, wrong: int) -> None:
        if predictions:
            self.share += 0.1 * (1.0 - wrong / predictions - self.share)

    def retry(self) -> bool:
        """Returns whether to predict once more although the predictions were wrong too often: True at every
        32nd call."""
        self._missed += 1
        return self._missed % 32 == 0


class Ahead:
    """The step that is under way, and how good the device's predictions are."""

    def __init__(self, verbs: StepVerbs, scheduler: Scheduler, tree: KVTree) -> None:
        self.flight: Flight | None = None  # the step that is under way between two steps of the loop
        self._verbs = verbs
        self._scheduler = scheduler
        self._tree = tree
        self._predicted = Predicted()

    @property
    def possible(self) -> bool:
        """Whether the next step can be taken by `step`."""
        return self.flight is not None or self._scheduler.plans_ahead

    def step(self) -> bool:
        """Commits the step that is under way, or else one that is planned here, while the device computes the
        next one. Returns False if nothing could be planned."""
        flight, self.flight = self.flight, None
        if flight is None:
            calls = self._scheduler.plan()
            if not calls:
                return False
            flight = self._launch(calls[0])
        call = self._plan_after(flight)
        following = None if call is None else self._launch(call, flight)
        chosen, predicted = self._choose(flight)
        self._verbs.commit(flight, chosen, flight.dropped)
        if following is not None:
            self._settle(following, predicted)
            if following.choices is None:
                following.begin_choices()
        self.flight = following
        return True

    def _plan_after(self, flight: Flight) -> PlannedCall | None:
        """Plans the step after one that is under way, if enough of its rows can be followed."""
        if len(flight.results) > _MOST_KEPT or not self._scheduler.plans_ahead:
            return None
        works = [work for work in flight.call.works if work.wanted and flight.lands(work.task)]
        going = [
            work.task
            for work in works
            if work.wanted == 1 and work.task in flight.lines and work.task.runs_ahead(len(works))
        ]
        # The other tasks skip this step: their tokens come in every second one only. So do those of tasks
        # whose tokens are predicted wrongly, as by rules that the device does not know.
        if 2 * len(going) * self._predicted.share < len(works) and not self._predicted.retry():
            return None
        return self._scheduler.plan_ahead(going, {work.task for work in works})

    def _launch(self, call: PlannedCall, before: Flight | None = None) -> Flight:
        """Begins to compute a step, after another one that is under way."""
        plan, promised = call.plan(), dict[int, int]()
        if before is not None:
            promised = {work.ids[0]: before.lines[work.task] for work in call.works if work.ids[0] < 0}
            tokens = [token if token >= 0 else -1 - promised[token] for token in plan.batch.tokens]
            assert before.choices is not None
            plan = replace(plan, batch=plan.batch._replace(tokens=tokens, after=before.choices.started))
        launched = self._verbs.launch(call, plan)
        assert launched is not None  # only a program may fail alone
        flight = Flight(call, launched.results, launched.seconds, promised)
        # Rules that depend on the last token, as those of penalties and grammars, wait until that is known.
        if before is None or all(
            work.task.decoder is None or work.task.decoder.fixed for work in call.works if work.wanted
        ):
            flight.begin_choices()
        return flight

    def _choose(self, flight: Flight) -> tuple[ChosenRows, Sequence[int]]:
        """Waits for the choices of a step. Returns them, and the tokens that the device had predicted, by
        line."""
        assert flight.choices is not None
        choices, predicted = flight.choices.finish([flight.lands(task) for task in flight.tasks])
        chosen: list[Chosen | Exception | None] = [None] * sum([work.wanted for work in flight.call.works])
        for place, choice in zip(flight.places, choices, strict=True):
            chosen[place] = choice
        return chosen, predicted

    def _settle(self, following: Flight, predicted: Sequence[int]) -> None:
        """Names the tokens of rows that were launched before these were known, and drops the rows that were
        computed with another token than the one that was chosen."""
        for work in following.call.works:
            promise = work.ids[0]
            if promise >= 0 or work.task.ended:
                continue
            token = work.task.branches[0].tokens[-1]
            if predicted and predicted[following.promised[promise]] == token:
                self._tree.fulfil(work.path, token)
            else:
                self._tree.cut(work.path, work.first)
                following.dropped.add(work.task)
        self._predicted.saw(len(following.promised), len(following.dropped))
