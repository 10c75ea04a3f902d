"""How the paths of a search grow: the engine requests of one round, and where a step of a path ends.

Between rounds a search holds nothing in the engine: a path that pauses leaves its keys and values in the
cache, and its next request continues it.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from glassloop.decode.stop import Pause
from glassloop.engine.owner import current_owner
from glassloop.engine.request import Request
from glassloop.record.run import Run
from glassloop.record.run_parts import Timings
from glassloop.search.solution import Path
from glassloop.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from glassloop.engine.language_model import LanguageModel

MOST_TOKENS = 1 << 31


@dataclass
class Growth:
    """The state of a path beside its record."""

    forced: list[int]  # tokens that it continues with in its first round
    arrived: float = 0.0  # when its first request was made
    cached: int = 0
    timings: Timings | None = None  # those of the rounds before the one that runs
    by_budget: bool = False  # whether the budget, not the sampling options, limits the time of its request


class PathGrowth:
    """Makes the requests of each round, all with the options of the question, and adds up the times."""

    def __init__(self, llm: LanguageModel, question: Request, step: str | None) -> None:
        self._llm = llm
        self._owner = current_owner()  # of its requests, whichever thread makes them
        self._question = question
        self._compiled = question.compiled
        self._step = step  # the text that ends a step
        self._of: dict[Path, Growth] = {}

    def __getitem__(self, path: Path) -> Growth:
        return self._of[path]

    def add(self, path: Path, forced: list[int]) -> None:
        self._of[path] = Growth(forced)

    def add_timings(self, path: Path) -> None:
        """Adds the times of the last round to those of the rounds before."""
        growth, run = self._of[path], path.run
        if growth.timings is not None:
            before, last = growth.timings, run.timings
            decode = before.decode + last.prefill + last.decode
            run.timings = replace(before, decode=decode, preempted=last.preempted)
            run.cached_tokens = growth.cached
        growth.timings, growth.cached = copy(run.timings), run.cached_tokens

    def requests(self, leases: dict[Path, int], seconds_left: float | None) -> list[Request]:
        """Returns the requests for the paths of a round, each up to its number of tokens. Those that begin
        share one, so that the prompt is computed once."""
        now = perf_counter()
        new = [path for path in leases if not path.run.tokens and not self._of[path].forced]
        lengths = dict.fromkeys(leases[path] for path in new)
        groups = [[path for path in new if leases[path] == length] for length in lengths]
        groups += [[path] for path in leases if path not in new]
        return [self._request(group, leases[group[0]], now, seconds_left) for group in groups]

    def _request(self, paths: list[Path], tokens: int, now: float, seconds_left: float | None) -> Request:
        growth, question = self._of[paths[0]], self._question
        forced, growth.forced = growth.forced, []
        for path in paths:
            self._of[path].arrived = self._of[path].arrived or now
        sampling = question.runs[0].sampling
        if seconds_left is not None:
            limit = max(now - growth.arrived + seconds_left, 1e-6)
            by_budget = sampling.timeout is None or limit < sampling.timeout
            for path in paths:
                self._of[path].by_budget = by_budget
            if by_budget:
                sampling = replace(sampling, timeout=limit)
        ids = step_ids(self._llm.tokenizer, self._step) if self._step else frozenset()
        first = len(paths[0].run.tokens) + len(forced)
        return Request(
            question.runs[0].prompt_ids,
            sampling,
            [path.run for path in paths],
            priority=question.priority,
            forced=forced,
            pause=Pause(tokens, ids, first) if ids or tokens < MOST_TOKENS else None,
            drafts=self._llm.drafts,
            owner=self._owner,
            arrived=growth.arrived,
            built=self._compiled,
        )


# ── steps ──────────────────────────────────────────────────────────────────────────────────────────────────


def ends_step(run: Run, step: str | None) -> bool:
    """Returns whether the last token of a run completes the text that ends a step."""
    text = (step or "").encode()
    if not text:
        return False
    tail = b"".join(token.bytes for token in run.tokens[-len(text) - 1 :])
    return text in tail[-len(run.tokens[-1].bytes) - len(text) + 1 :]


def encode_forced(tokenizer: Tokenizer, text: str) -> list[int]:
    """Returns the tokens of a text that a path continues with. A text that is one token of the vocabulary,
    such as `</think>`, is that token."""
    special_id = tokenizer.id_of(text)
    if special_id is not None:
        return [special_id]
    return tokenizer.encode(text, add_special=False, parse_special=False)


_step_ids: WeakKeyDictionary[Tokenizer, dict[str, frozenset[int]]] = WeakKeyDictionary()


def step_ids(tokenizer: Tokenizer, step: str) -> frozenset[int]:
    """Returns the tokens that may end a step: those with the last byte of its text."""
    ids_of = _step_ids.setdefault(tokenizer, {})
    if step not in ids_of:
        last, tokens = step.encode()[-1:], range(tokenizer.vocab_size)
        ids_of[step] = frozenset(id for id in tokens if last in tokenizer.token_bytes(id))
    return ids_of[step]
