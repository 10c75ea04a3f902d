"""`Search`, the interface of a method, and `Paths`, what a method works with.

A search goes in rounds. In each round every running path grows: by at most `stride` tokens, or up to the end
of a step, or to its end. Then the method sees each path, in the order of their numbers, and decides what
to start, to fork and to stop. No decision depends on which path was faster, so the same search takes the
same decisions on any machine and in any batch. Methods never run on the engine's thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Protocol

from glassloop.decode.sampling import Sampling
from glassloop.search.solution import BY_METHOD, Decision, Path
from glassloop.search.verdict import Verdict, Verifier
from glassloop.search.voting import voters


class Search:
    """A method that runs several paths and decides. A subclass needs `start`; the rest has defaults.

    An object has the state of one search: `fresh` returns one for the next question.
    """

    name: ClassVar[str] = ""  # in records; the name of the class if empty
    needs_verifier: ClassVar[bool] = False
    votes: ClassVar[bool] = True  # whether paths with equal answers support each other; for displays
    stride: int | None = None  # the most tokens that a path grows in a round; None: no limit
    step: str | None = None  # a text after which a path pauses too: the end of a step of its reasoning

    def sampling(self, given: Sampling) -> Sampling:
        """Returns the options of the paths, made from those that the caller gives."""
        return given

    def start(self, paths: Paths) -> None:
        """Starts the first paths."""
        raise NotImplementedError

    def grown(self, paths: Paths, path: Path) -> None:
        """Decides about a path that has grown and has not ended."""

    def ended(self, paths: Paths, path: Path) -> None:
        """Decides after the end of a path."""

    def answer(self, paths: Paths) -> Path | None:
        """Returns the path that is the answer. None of the paths runs any more."""
        return next(iter(voters(paths)), None)

    def fresh(self) -> Search:
        """Returns a copy for another search, with the same options and no state."""
        from copy import deepcopy

        return deepcopy(self)

    @property
    def options(self) -> dict[str, Any]:
        """The options of the method, as a record has them."""
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}


class PathDriver(Protocol):
    """What `Paths` needs of the search that runs them: on the engine, or on recorded samples."""

    round: int

    @property
    def judge(self) -> Verifier | None:
        """The judge of steps, if there is one."""

    def allowed(self, count: int) -> int:
        """Returns how many of `count` new paths may be started."""

    def new_path(self) -> Path:
        """Starts a path from the question."""

    def new_fork(self, parent: Path, at: int, text: str) -> Path:
        """Starts a path from the first `at` tokens of another, continued with `text` if it is not empty."""

    def end(self, path: Path, by: str, why: str) -> None:
        """Ends a path that runs."""

    def judged(self, path: Path, by: str) -> Verdict:
        """Returns the verdict of the verifier ("verify") or of the judge ("judge") on a path."""


class Paths:
    """The paths of one search: starting, forking, stopping and judging them. Every decision is recorded."""

    def __init__(self, driver: PathDriver) -> None:
        self._driver = driver
        self._all: list[Path] = []
        self.decisions: list[Decision] = []
        self.finished = False

    def __iter__(self) -> Iterator[Path]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def __getitem__(self, number: int) -> Path:
        return self._all[number]

    @property
    def running(self) -> list[Path]:
        return [path for path in self._all if path.running]

    @property
    def ended(self) -> list[Path]:
        return [path for path in self._all if not path.running]

    @property
    def has_judge(self) -> bool:
        """Whether the caller has given a judge of steps."""
        return self._driver.judge is not None

    def start(self, count: int = 1) -> list[Path]:
        """Starts paths from the question, each with its own luck. Returns fewer if the budget has room for
        fewer."""
        return [self._driver.new_path() for _ in range(self._driver.allowed(count))]

    def fork(self, path: Path, at: int | None = None, count: int = 1, *, text: str = "") -> list[Path]:
        """Starts paths that begin with the first `at` tokens of another one, by default with all. With `text`
        they continue with it and the same luck, without it each with new luck."""
        place = len(path.run.tokens) if at is None else at
        return [self._driver.new_fork(path, place, text) for _ in range(self._driver.allowed(count))]

    def stop(self, path: Path, why: str) -> None:
        """Ends a path that runs. A path that has ended does not change."""
        if path.running:
            self._driver.end(path, BY_METHOD, why)

    def hold(self, path: Path) -> None:
        """Lets a path wait: it does not grow until it is released."""
        path.held = True

    def release(self, path: Path) -> None:
        path.held = False

    def finish(self, why: str) -> None:
        """Ends the search: stops all paths. The method sees no further path. The record has the reason
        with each of them, or by itself if none runs."""
        self.finished = True
        running = list(self.running)
        for path in running:
            self.stop(path, why)
        if not running:
            self.note(why)

    def verify(self, path: Path) -> Verdict:
        """Returns what the verifier says of the text of a path that has ended."""
        return self._driver.judged(path, "verify")

    def judge(self, path: Path) -> Verdict:
        """Returns what the judge of steps says of what a path has written so far."""
        return self._driver.judged(path, "judge")

    def note(self, why: str, path: Path | None = None) -> None:
        """Adds a line to the record of decisions."""
        self.decide("note", path, why)

    def decide(self, action: str, path: Path | None, why: str = "") -> None:
        number, tokens = (None, None) if path is None else (path.number, len(path.run.tokens))
        self.decisions.append(Decision(self._driver.round, action, number, tokens, why))

    def add(self, path: Path) -> None:
        self._all.append(path)
