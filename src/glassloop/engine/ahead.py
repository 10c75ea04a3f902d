"""Steps that are computed ahead: each is launched before the one before it is committed.

Only for op sets that compute on a device (`RowOps.start`): the device need not wait for the host then. It
predicts the tokens of the step that is under way; a row whose prediction was wrong, or whose run has ended
meanwhile, is thrown away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from glassloop.decode.chosen import Chosen
from glassloop.decode.decoder import StartedChoices
from glassloop.engine.scheduler import Scheduler
from glassloop.engine.tasks.task import PlannedCall, Task, Work, places_of
from glassloop.engine.tree import KVTree

if TYPE_CHECKING:
    from glassloop.engine.loop import Loop

_MOST_KEPT = 512  # rows of logits that are kept while the next step runs


@dataclass
class Flight:
    """A step that a device computes while the host does something else.

    A token that is not known yet has a negative id in the rows of the step after it: a promise.
    """

    call: PlannedCall
    results: Any
    promised: dict[int, int]  # promise → line of the choices of the step before, which predicts the token
    seconds: float
    dropped: set[Task] = field(default_factory=set)  # tasks whose rows were computed with a wrong token
    choices: StartedChoices | None = None  # None: not begun yet
    tasks: Sequence[Task] = ()  # the tasks for which a token is chosen
    places: Sequence[int] = ()  # the row of each of these tasks
    lines: dict[Task, int] = field(default_factory=dict)  # the line of each of them in `choices`

    def lands(self, task: Task) -> bool:
        """Returns whether a task waits for its rows."""
        return not task.ended and task not in self.dropped


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
    """The step that is under way, and what is known of the device's predictions.

    It has no reference to its loop, which is an argument instead: a cycle would keep the memory of a loop
    that is dropped until the next garbage collection.
    """

    def __init__(self, scheduler: Scheduler, tree: KVTree) -> None:
        self.flight: Flight | None = None  # the step that is under way between two steps of the loop
        self._scheduler = scheduler
        self._tree = tree
        self._predicted = Predicted()

    @property
    def possible(self) -> bool:
        """Whether the next step can be taken by `step`."""
        return self.flight is not None or self._scheduler.plans_ahead

    def step(self, loop: Loop) -> bool:
        """Commits the step that is under way, or else one that is planned here, while the device computes the
        next one. Returns False if nothing could be planned."""
        flight, self.flight = self.flight, None
        if flight is None:
            plan = self._scheduler.plan()
            if not plan:
                return False
            flight = self._launch(loop, plan[0].works)
        following = self._launch_after(loop, flight)
        predicted = self._land(loop, flight)
        if following is not None:
            self._settle(following, predicted)
            if following.choices is None:
                _begin_choices(following)
            self.flight = following
        return True

    def _launch(self, loop: Loop, works: list[Work], before: Flight | None = None) -> Flight:
        """Begins to compute a step, after another one that is under way."""
        call = PlannedCall(None, works)
        batch, lines = call.batch(), dict[int, int]()
        if before is not None:
            lines = {work.ids[0]: before.lines[work.task] for work in works if work.ids[0] < 0}
            tokens = [token if token >= 0 else -1 - lines[token] for token in batch.tokens]
            assert before.choices is not None
            batch = batch._replace(tokens=tokens, after=before.choices.started)
        results, seconds = loop.forward(call, batch)
        flight = Flight(call, results, lines, seconds)
        # Rules that depend on the last token, as those of penalties and grammars, wait until that is known.
        if before is None or all(
            work.task.decoder is None or work.task.decoder.fixed for work in works if work.wanted
        ):
            _begin_choices(flight)
        return flight

    def _launch_after(self, loop: Loop, flight: Flight) -> Flight | None:
        """Begins to compute the step after one that is under way, if enough of its rows can be followed."""
        works = flight.call.works
        if len(flight.results) > _MOST_KEPT or not self._scheduler.plans_ahead:
            return None
        rows = [work for work in works if work.wanted and flight.lands(work.task)]
        going = [
            work.task
            for work in rows
            if work.wanted == 1 and work.task in flight.lines and work.task.runs_ahead(len(rows))
        ]
        # The other tasks skip this step: their tokens come in every second one only. So do those of tasks
        # whose tokens are predicted wrongly, as by rules that the device does not know.
        if 2 * len(going) * self._predicted.share < len(rows) and not self._predicted.retry():
            return None
        planned = self._scheduler.plan_ahead(going, {work.task for work in rows})
        return self._launch(loop, planned, flight) if planned else None

    def _land(self, loop: Loop, flight: Flight) -> Sequence[int]:
        """Waits for a step and commits it. Returns the tokens that the device had predicted, by line."""
        call, wanted = flight.call, [flight.lands(task) for task in flight.tasks]
        assert flight.choices is not None
        found, predicted = flight.choices.finish(wanted)
        chosen: list[Chosen | Exception | None] = [None] * sum([work.wanted for work in call.works])
        for place, made in zip(flight.places, found, strict=True):
            chosen[place] = made
        loop.measure(call, loop.transformer.ops.seconds(flight.results) or flight.seconds)
        loop.commit(call, flight.results, chosen, flight.dropped)
        return predicted

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


def _begin_choices(flight: Flight) -> None:
    """Lets the device choose the tokens of the rows that tasks wait for."""
    chosen = [
        (work.task, decoder, place, work.first + len(work.ids) - work.wanted + 1)
        for place, work in places_of(flight.call.works)
        if work.wanted and (decoder := work.task.decoder) is not None and flight.lands(work.task)
    ]
    tasks, decoders, places, positions = zip(*chosen, strict=True) if chosen else ((), (), (), ())
    flight.choices = StartedChoices(decoders, flight.results, places, positions)
    flight.tasks, flight.places = tasks, places
    if flight.choices.started is not None:
        flight.lines = {task: line for line, task in enumerate(tasks)}
