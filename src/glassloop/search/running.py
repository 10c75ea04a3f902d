"""One search while it runs, round by round.

`next_round` lets the method decide about the last round and returns the engine requests of the next one. The
caller submits them and calls it again when all have ended; `solve.py` and the server do that. `growth.py`
makes the requests, `budget.py` has the clock, and `record.py` the form of the record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from glassloop.decode.stop import PAUSED
from glassloop.decode.task_kinds import SOLVE
from glassloop.diffuse.write import DiffusionRequest
from glassloop.engine.fork import forked_run
from glassloop.engine.request import Request
from glassloop.errors import GlassloopError
from glassloop.record.run import Run
from glassloop.record.run_record import text_held_back
from glassloop.record.token import Token
from glassloop.search.budget import Budget, SearchClock
from glassloop.search.growth import MOST_TOKENS, PathGrowth, encode_forced, ends_step
from glassloop.search.judging import Judging, Place
from glassloop.search.path_confidence import WINDOW, lowest_group, token_confidences
from glassloop.search.record import VERSION, plain
from glassloop.search.search import Paths, Search
from glassloop.search.solution import BY_BUDGET, BY_CALLER, BY_METHOD, Path, Solution, Spent
from glassloop.search.verdict import Extractor, Verdict, Verifier, answer_of
from glassloop.search.voting import votes_of

if TYPE_CHECKING:
    from glassloop.engine.language_model import LanguageModel

_SECONDS = "the budget of seconds is spent"
_TOKENS = "the budget of tokens is spent"
_BRANCHES = "the budget of branches is spent"


@dataclass(frozen=True)
class RecordedSearch:
    """What a replay takes from the record of a search: where time cut it, and the verdicts."""

    cut: Mapping[str, Any] | None = None  # the round, the reason, and tokens by path
    verdicts: Mapping[Place, Verdict] | None = None


class Running:
    """A search in progress. Its methods are called by one thread at a time."""

    def __init__(
        self,
        llm: LanguageModel,
        question: Request,
        method: Search,
        budget: Budget,
        *,
        extractor: Extractor | None = None,
        verifier: Verifier | None = None,
        judge: Verifier | None = None,
        named: Mapping[str, Any] | None = None,
        past: RecordedSearch | None = None,
    ) -> None:
        """`question` is a prepared request, whose run has the prompt and the seed; none of it is computed.
        `named` are the parts of the record that only the caller knows."""
        base = question.runs[0]
        sampling = base.sampling
        if isinstance(question, DiffusionRequest):
            sampling = replace(sampling, diffusion=question.options)
        SOLVE.check(sampling)
        if method.needs_verifier and verifier is None:
            raise GlassloopError.about("verify", f"is missing; the method {_name(method)} needs a verifier")
        self.llm = llm
        self.method = method
        self.budget = budget
        self.judge = judge
        self.round = 0
        self.paths = Paths(self)
        self.requests: list[Request] = []  # of the round that runs
        self._extractor = extractor
        self._base = base
        self._sampling = base.sampling
        self._named = dict(named or {})
        self._past = past or RecordedSearch()
        self._clock = SearchClock(budget.seconds)
        self._cut: dict[str, Any] | None = None
        self._roots: list[Run] = []
        self._growth = PathGrowth(llm, question, method.step)
        self._judging = Judging(_name(method), verifier, judge, self._past.verdicts)
        self._grown: list[Path] = []  # in the round that runs or has just ended
        self._just_ended: set[Path] = set()
        self._previews: dict[Path, Path] = {}  # paths that have ended in the round that runs
        self._cancelled = ""
        self._unwanted = False

    # ── rounds ─────────────────────────────────────────────────────────────────────────────────────────────

    def next_round(self) -> list[Request]:
        """Lets the method decide about the last round, and returns the requests of the next one. None: the
        search is over, and `solution` has its answer."""
        if not self._clock.running:
            self._clock.start()
            if not self._cancelled:
                self.method.start(self.paths)
        else:
            self._settle()
            for path in self._grown:
                if self.paths.finished:
                    break
                if path.running:
                    self.method.grown(self.paths, path)
                elif path in self._just_ended:
                    self.method.ended(self.paths, path)
        self._enforce_seconds()
        leases = self._leases()
        cut = self._past.cut
        is_cut = cut is not None and cut["during"] and cut["round"] == self.round + 1
        self.round += bool(leases) or is_cut
        if is_cut and not leases and cut is not None:
            self._cut_off(cut["by"], cut["why"], during=True)
        self._grown, self._previews = list(leases), {}
        self.requests = self._growth.requests(leases, self._seconds_left)
        return self.requests

    def cancel(self, why: str, unwanted: bool = False) -> None:
        """Ends the search with the paths that it has: no further round starts. The caller cancels the
        requests of the current round. With `unwanted`, verifiers are no longer called."""
        self._cancelled = why
        self._unwanted = unwanted

    @property
    def cancelled(self) -> bool:
        return bool(self._cancelled)

    @property
    def seconds(self) -> float:
        """The time since the search began."""
        return self._clock.seconds

    @property
    def tokens(self) -> int:
        """The tokens of all paths by now."""
        return sum(path.spent for path in self.paths)

    def solution(self) -> Solution:
        """Returns the answer of a search that is over."""
        paths = list(self.paths)
        errors = [path.run.error for path in paths if path.run.error is not None]
        if errors and len(errors) == len(paths):
            raise errors[0]
        self.round += 1
        chosen = self.method.answer(self.paths) if paths else None
        votes = votes_of(paths)
        if chosen is not None:
            shown = "" if chosen.value is None else f"{chosen.value!r}"[:200]
            self.paths.decide("answer", chosen, shown)
        usage = Spent(self.tokens, self.seconds, len(paths), len(self._base.prompt_ids))
        record = self._record(chosen, votes, usage)
        if paths:
            first = paths[0].run
            first.search = record
            self._keep(first)
        return Solution(chosen, paths, votes, list(self.paths.decisions), usage, record)

    # ── paths ──────────────────────────────────────────────────────────────────────────────────────────────

    def allowed(self, count: int) -> int:
        """Returns how many of `count` new paths the budget has room for."""
        if type(count) is not int or count < 0:
            raise GlassloopError.about("count", f"is {count!r}; a whole number from 0 up is expected")
        most = self.budget.branches
        left = count if most is None else min(count, most - len(self.paths))
        if left < count:
            self.paths.note(f"{_BRANCHES}: {count - left} of {count} paths are not started")
        return left

    def new_path(self) -> Path:
        number, base = len(self._roots), self._base
        run = self.llm.requests.new_run(
            base.prompt_ids,
            self._sampling,
            base.seed,
            salt=number,
            prompt=base.prompt,
            sample=number,
            messages=base.messages,
        )
        if number == 0:  # a stream has named the question's run before any path has begun
            run.id = base.id
        run.samples = self._roots
        self._roots.append(run)
        path = self._add(Path(len(self.paths), run), [])
        self.paths.decide("start", path)
        return path

    def new_fork(self, parent: Path, at: int, text: str) -> Path:
        if not 0 <= at <= len(parent.run.tokens):
            most = len(parent.run.tokens)
            raise GlassloopError.about("at", f"is {at}; a number of tokens from 0 to {most} is expected")
        forced = encode_forced(self.llm.tokenizer, text) if text else []
        run = forked_run(self.llm.requests, parent.run, at, is_edit=bool(forced))
        path = Path(len(self.paths), run, parent, steps=[step for step in parent.steps if step <= at])
        self._add(path, forced)
        where = f"after {at} tokens of path {parent.number}"
        self.paths.decide("fork", path, f"{where}, with {text!r}" if text else where)
        if len(run.prompt_ids) + at + len(forced) >= self.llm.config.context:
            self.end(path, "length", "the context is full")
        return path

    def end(self, path: Path, by: str, why: str) -> None:
        """Ends a path that runs, between two rounds."""
        run = path.run
        if run.finish_reason is None:  # it was not computed, and has what its parent had
            run.tail = text_held_back(run.tokens)
        if run.finish_reason in (None, "cancelled", "timeout"):
            run.finish_reason, run.stop_reason = "cancelled", why
        self._close(path, by, why)
        self.paths.decide("stop", path, why)

    def judged(self, path: Path, by: str) -> Verdict:
        """Returns the verdict on the present text of a path. The verifier, or the judge, is asked once."""
        place = path.number, len(path.run.tokens), by
        if place not in self._judging.verdicts:
            seconds = 0.0 if self._unwanted else self._seconds_left
            verdict = self._judging.ask(place, path.run.text, seconds)
            self.paths.decide("verdict", path, _verdict_text(verdict))
        path.verdict = self._judging.verdicts[place]
        return path.verdict

    def _add(self, path: Path, forced: list[int]) -> Path:
        self.paths.add(path)
        self._growth.add(path, forced)
        return path

    def preview(self, path: Path) -> Path:
        """Returns a copy of a path in the middle of a round, to be shown: with its answer if its run has
        ended by now, else with the confidence of its last group of tokens. Nothing is decided by it."""
        run = path.run
        if not path.running:
            return path
        if path in self._previews:
            return self._previews[path]
        shown_path = copy(path)
        if run.finish_reason is None or _has_paused(run):
            shown_path.confidence = self._lowest_group(run.tokens[-self._window :])
            return shown_path
        with suppress(Exception):  # an extractor that fails is an error at the end of the round
            self._conclude(shown_path, run.finish_reason, run.stop_reason or "")
        self._previews[path] = shown_path
        return shown_path

    def _close(self, path: Path, by: str, why: str) -> None:
        self._conclude(path, by, why)
        self._keep(path.run)

    def _conclude(self, path: Path, by: str, why: str) -> None:
        """Notes how a path has ended, and reads its answer and its confidence."""
        path.ended_by, path.why = by, why
        path.confidence = self._lowest_group(path.run.tokens)
        if self._extractor is not None and by != "error":
            path.value = answer_of(self._extractor, path.run.text, self._clock.extracting_until)

    @property
    def _window(self) -> int:
        """Tokens of a group, of whose confidence that of a path is made."""
        return getattr(self.method, "window", WINDOW)

    def _lowest_group(self, tokens: Sequence[Token]) -> float | None:
        return lowest_group(token_confidences(tokens), self._window)

    def _keep(self, run: Run) -> None:
        if self.llm.keep is not None:
            self.llm.keep(run)

    # ── after a round ──────────────────────────────────────────────────────────────────────────────────────

    def _settle(self) -> None:
        """Notes how each path of the last round has ended or paused."""
        self._just_ended = set()
        timed_out = cancelled = False
        for path in self._grown:
            run = path.run
            self._growth.add_timings(path)
            out_of_time = run.finish_reason == "timeout" and self._growth[path].by_budget
            if _has_paused(run):
                if ends_step(path.run, self.method.step):
                    path.steps.append(len(path.run.tokens))
            elif out_of_time:
                timed_out = True
            elif run.finish_reason in (None, "cancelled"):  # None: the request was not submitted
                cancelled = True
            else:
                self._close(path, str(run.finish_reason), run.stop_reason or "")
                self._just_ended.add(path)
                self.paths.decide("end", path, f"{run.finish_reason}: {run.stop_reason}")
        cut = self._past.cut
        if cut is not None and cut["during"] and cut["round"] == self.round:
            self._cut_off(cut["by"], cut["why"], during=True)
        elif self._cancelled or cancelled:
            self._cut_off(BY_CALLER, self._cancelled or "the engine has ended it", during=True)
        elif timed_out:
            self._cut_off(BY_BUDGET, _SECONDS, during=True)

    # ── the budget ─────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _seconds_left(self) -> float | None:
        """What the budget leaves; None: no limit, or the record of a replay says where time ends it."""
        return None if self._past.cut is not None else self._clock.left

    @property
    def _step_seconds(self) -> float:
        """How long the last token of the slowest path took: another one would take as long."""
        pairs = [path.run.tokens[-2:] for path in self.paths.running if path.spent > 1]
        return max((last.seconds - before.seconds for before, last in pairs), default=0.0)

    def _enforce_seconds(self) -> None:
        left, cut = self._seconds_left, self._past.cut
        if self._cancelled:
            self._cut_off(BY_CALLER, self._cancelled)
        elif left is not None and left <= self._step_seconds:
            self._cut_off(BY_BUDGET, _SECONDS)
        elif cut is not None and not cut["during"] and cut["round"] == self.round:
            self._cut_off(cut["by"], cut["why"])

    def _cut_off(self, by: str, why: str, during: bool = False) -> None:
        """Ends all paths that run where they are: `during` a round, or after the method has decided about it.
        The record has where, so that a replay can do the same."""
        open_paths = self.paths.running
        if self._cut is None:
            tokens = {str(path.number): len(path.run.tokens) for path in open_paths}
            self._cut = {"round": self.round, "during": during, "by": by, "why": why, "tokens": tokens}
            self.paths.decide("cut", None, why)
        self.paths.finished = True
        for path in open_paths:
            self.end(path, by, why)

    def _leases(self) -> dict[Path, int]:
        """Returns the paths of the next round, and the number of tokens that each may reach. What the
        budget has left is shared equally. Where there is less than a token for each path, the last ones
        end."""
        open_paths = [path for path in self.paths.running if not path.held]
        share = MOST_TOKENS
        if self.budget.tokens is not None:
            left = self.budget.tokens - self.tokens
            while open_paths and left < sum(1 + len(self._growth[path].forced) for path in open_paths):
                self.end(open_paths.pop(), BY_BUDGET, _TOKENS)
            forced = sum(len(self._growth[path].forced) for path in open_paths)
            share = (left - forced) // len(open_paths) if open_paths else 0
        if not open_paths:
            for path in self.paths.running:
                self.end(path, BY_METHOD, "no other path runs, and the method has not released it")
        most = min(share, self.method.stride or MOST_TOKENS)
        leases = {path: len(path.run.tokens) + len(self._growth[path].forced) + most for path in open_paths}
        cut = self._past.cut
        if cut is not None and cut["during"] and cut["round"] == self.round + 1:  # time has cut this round
            for path in open_paths:
                leases[path] = cut["tokens"].get(str(path.number), leases[path])
        return {path: tokens for path, tokens in leases.items() if tokens > len(path.run.tokens)}

    # ── the record ─────────────────────────────────────────────────────────────────────────────────────────

    def _record(self, chosen: Path | None, votes: dict[str, float], usage: Spent) -> dict[str, Any]:
        judged = [[*place, *asdict(verdict).values()] for place, verdict in self._judging.verdicts.items()]
        return {
            "version": VERSION,
            "method": _name(self.method),
            "options": plain(self.method.options),
            "seed": self._base.seed,
            "budget": self.budget.to_dict(),
            **self._named,
            "rounds": self.round,
            "answer": None if chosen is None else chosen.number,
            "value": None if chosen is None else chosen.value,
            "votes": votes,
            "usage": asdict(usage),
            "paths": [path.to_dict() for path in self.paths],
            "decisions": [decision.to_dict() for decision in self.paths.decisions],
            "verdicts": judged,
            "cut": self._cut,
        }


def _has_paused(run: Run) -> bool:
    """Returns whether a run has ended only for this round."""
    return run.finish_reason == PAUSED.reason and run.stop_reason == PAUSED.detail


def _name(method: Search) -> str:
    return method.name or type(method).__name__


def _verdict_text(verdict: Verdict) -> str:
    text = f"{'passed' if verdict.passed else 'failed'}, score {verdict.score:g}"
    return f"{text}: {verdict.reason}" if verdict.reason else text
