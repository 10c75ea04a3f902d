"""One search while it runs: the requests of each round, the budget, and the record of what was decided.

`next_round` lets the method decide about the last round and returns the engine requests of the next one. The
caller submits them and calls it again when all have ended; `solve.py` and the server do that. Between rounds
a search holds nothing in the engine: a path that pauses leaves its keys and values in the cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import asdict, dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

from glassloop.decode.stop import PAUSED, Pause
from glassloop.decode.task_kinds import SOLVE
from glassloop.diffuse.write import DiffusionRequest
from glassloop.engine.deadline import Deadline
from glassloop.engine.fork import forked_run
from glassloop.engine.owner import current_owner
from glassloop.engine.request import Request
from glassloop.errors import GlassloopError
from glassloop.record.run import Run
from glassloop.record.run_parts import Timings
from glassloop.record.run_record import text_held_back
from glassloop.record.token import Token
from glassloop.search.budget import Budget
from glassloop.search.confidence import WINDOW, lowest_group, token_confidences
from glassloop.search.judging import Judging, Place
from glassloop.search.search import Paths, Search
from glassloop.search.solution import BY_BUDGET, BY_CALLER, BY_METHOD, Path, Solution, Spent
from glassloop.search.steps import encode_forced, ends_step, step_ids
from glassloop.search.verdict import Extractor, Verdict, Verifier, answer_of
from glassloop.search.voting import votes_of

if TYPE_CHECKING:
    from glassloop.engine.language_model import LanguageModel

_MOST_TOKENS = 1 << 31
_LAST_DECISIONS = 0.02  # the share of a budget of seconds, and
_MOST_LAST_DECISIONS = 0.05  # the most seconds, that the method keeps for its answer
_EXTRACTING = 2.0  # seconds after the budget in which answers are still read
_SECONDS = "the budget of seconds is spent"
_TOKENS = "the budget of tokens is spent"
_BRANCHES = "the budget of branches is spent"


@dataclass
class Growth:
    """What the driver knows of a path beside its record."""

    forced: list[int]  # tokens that it continues with in its first round
    arrived: float = 0.0  # when its first request was made
    cached: int = 0
    timings: Timings | None = None  # those of the rounds before the one that runs
    by_budget: bool = False  # whether the budget, not the sampling options, limits the time of its request


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
        given = base.sampling
        if isinstance(question, DiffusionRequest):
            given = replace(given, diffusion=question.options)
        SOLVE.check(given)
        if method.needs_verifier and verifier is None:
            raise GlassloopError.about("verify", f"is missing; the method {_name(method)} needs a verifier")
        self.llm = llm
        self.owner = current_owner()  # of its requests, whichever thread makes them
        self.method = method
        self.budget = budget
        self.judge = judge
        self.round = 0
        self.paths = Paths(self)
        self.requests: list[Request] = []  # of the round that runs
        self._extractor = extractor
        self._base = base
        self._sampling = base.sampling
        self._compiled = question.compiled
        self._priority = question.priority
        self._named = dict(named or {})
        self._past = past or RecordedSearch()
        self._began: float | None = None
        self._cut: dict[str, Any] | None = None
        self._roots: list[Run] = []
        self._growth: dict[Path, Growth] = {}
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
        if self._began is None:
            self._began = perf_counter()
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
        self.requests = self._requests(leases)
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
        return 0.0 if self._began is None else perf_counter() - self._began

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
        told = f"after {at} tokens of path {parent.number}"
        self.paths.decide("fork", path, f"{told}, with {text!r}" if text else told)
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
        """Returns the verdict on a path as it is now. The verifier, or the judge, is asked once."""
        place = path.number, len(path.run.tokens), by
        if place not in self._judging.verdicts:
            seconds = 0.0 if self._unwanted else self._seconds_left
            verdict = self._judging.ask(place, path.run.text, seconds)
            self.paths.decide("verdict", path, _told(verdict))
        path.verdict = self._judging.verdicts[place]
        return path.verdict

    def _add(self, path: Path, forced: list[int]) -> Path:
        self.paths.add(path)
        self._growth[path] = Growth(forced)
        return path

    def preview(self, path: Path) -> Path:
        """Returns a path as it is in the middle of a round, to be shown: with its answer if its run has ended
        by now, else with the confidence of its last group of tokens. Nothing is decided by it."""
        run = path.run
        if not path.running:
            return path
        if path in self._previews:
            return self._previews[path]
        seen = copy(path)
        if run.finish_reason is None or _has_paused(run):
            seen.confidence = self._lowest_group(run.tokens[-self._window :])
            return seen
        with suppress(Exception):  # an extractor that fails is an error at the end of the round
            self._conclude(seen, run.finish_reason, run.stop_reason or "")
        self._previews[path] = seen
        return seen

    def _close(self, path: Path, by: str, why: str) -> None:
        self._conclude(path, by, why)
        self._keep(path.run)

    def _conclude(self, path: Path, by: str, why: str) -> None:
        """Notes how a path has ended, and reads its answer and its confidence."""
        path.ended_by, path.why = by, why
        path.confidence = self._lowest_group(path.run.tokens)
        if self._extractor is not None and by != "error":
            path.value = answer_of(self._extractor, path.run.text, self._extracting_until)

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
            self._add_timings(path)
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

    def _add_timings(self, path: Path) -> None:
        """Adds the times of the last round to those of the rounds before."""
        growth, run = self._growth[path], path.run
        if growth.timings is not None:
            before, last = growth.timings, run.timings
            decode = before.decode + last.prefill + last.decode
            run.timings = replace(before, decode=decode, preempted=last.preempted)
            run.cached_tokens = growth.cached
        growth.timings, growth.cached = copy(run.timings), run.cached_tokens

    # ── the budget ─────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _seconds_left(self) -> float | None:
        limit = self.budget.seconds
        if limit is None or self._past.cut is not None:
            return None
        return limit - min(_LAST_DECISIONS * limit, _MOST_LAST_DECISIONS) - self.seconds

    @property
    def _extracting_until(self) -> Deadline | None:
        """When extractors must have ended: paths that time has cut off have an answer, too."""
        limit = self.budget.seconds
        return None if limit is None else Deadline(max(0.0, limit + _EXTRACTING - self.seconds), "extract")

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
        """Returns the paths of the next round, and the number of tokens up to which each may grow. What the
        budget has left is shared equally. Where there is less than a token for each path, the last ones
        end."""
        open_paths = [path for path in self.paths.running if not path.held]
        share = _MOST_TOKENS
        if self.budget.tokens is not None:
            left = self.budget.tokens - self.tokens
            while open_paths and left < sum(1 + len(self._growth[path].forced) for path in open_paths):
                self.end(open_paths.pop(), BY_BUDGET, _TOKENS)
            forced = sum(len(self._growth[path].forced) for path in open_paths)
            share = (left - forced) // len(open_paths) if open_paths else 0
        if not open_paths:
            for path in self.paths.running:
                self.end(path, BY_METHOD, "no other path runs, and the method has not released it")
        most = min(share, self.method.stride or _MOST_TOKENS)
        leases = {path: len(path.run.tokens) + len(self._growth[path].forced) + most for path in open_paths}
        cut = self._past.cut
        if (
            cut is not None and cut["during"] and cut["round"] == self.round + 1
        ):  # the round that time has cut
            for path in open_paths:
                leases[path] = cut["tokens"].get(str(path.number), leases[path])
        return {path: tokens for path, tokens in leases.items() if tokens > len(path.run.tokens)}

    # ── requests ───────────────────────────────────────────────────────────────────────────────────────────

    def _requests(self, leases: dict[Path, int]) -> list[Request]:
        """Returns the requests for the paths of a round. Those that begin share one, so that the prompt is
        computed once."""
        made: list[Request] = []
        now = perf_counter()
        new = [path for path in leases if not path.run.tokens and not self._growth[path].forced]
        for tokens in dict.fromkeys(leases[path] for path in new):
            made.append(self._request([path for path in new if leases[path] == tokens], tokens, now))
        made += [self._request([path], leases[path], now) for path in leases if path not in new]
        return made

    def _request(self, paths: list[Path], tokens: int, now: float) -> Request:
        growth = self._growth[paths[0]]
        forced, growth.forced = growth.forced, []
        for path in paths:
            self._growth[path].arrived = self._growth[path].arrived or now
        sampling, left = self._sampling, self._seconds_left
        if left is not None:
            limit = max(now - growth.arrived + left, 1e-6)
            by_budget = sampling.timeout is None or limit < sampling.timeout
            for path in paths:
                self._growth[path].by_budget = by_budget
            if by_budget:
                sampling = replace(sampling, timeout=limit)
        ids = step_ids(self.llm.tokenizer, self.method.step) if self.method.step else frozenset()
        first = len(paths[0].run.tokens) + len(forced)
        return Request(
            self._base.prompt_ids,
            sampling,
            [path.run for path in paths],
            priority=self._priority,
            forced=forced,
            pause=Pause(tokens, ids, first) if ids or tokens < _MOST_TOKENS else None,
            drafts=self.llm.drafts,
            owner=self.owner,
            arrived=growth.arrived,
            built=self._compiled,
        )

    # ── the record ─────────────────────────────────────────────────────────────────────────────────────────

    def _record(self, chosen: Path | None, votes: dict[str, float], usage: Spent) -> dict[str, Any]:
        judged = [[*place, *asdict(verdict).values()] for place, verdict in self._judging.verdicts.items()]
        return {
            "version": 1,
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


def plain(value: Any) -> Any:
    """Returns a value as JSON has it; what JSON does not have is told by its name."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return getattr(value, "__name__", type(value).__name__)


def _has_paused(run: Run) -> bool:
    """Returns whether a run has ended only for this round."""
    return run.finish_reason == PAUSED.reason and run.stop_reason == PAUSED.detail


def _name(method: Search) -> str:
    return method.name or type(method).__name__


def _told(verdict: Verdict) -> str:
    told = f"{'passed' if verdict.passed else 'failed'}, score {verdict.score:g}"
    return f"{told}: {verdict.reason}" if verdict.reason else told
