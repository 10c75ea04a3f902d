"""The conditions that end a branch: an end-of-sequence or stop token, the number of tokens, a loop, the time.

Stop strings depend on the text, not on tokens; they are in `text/stops.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from copy import copy
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np

from glassloop.decode.history import History
from glassloop.decode.sampling import Sampling

_LAST_TOKENS = 8  # by whose time the time of the next one is judged


class Ending(NamedTuple):
    reason: str  # stop, length, timeout, repetition
    detail: str  # which token, which limit, which loop


def stop_ids(sampling: Sampling, eos_ids: Collection[int]) -> frozenset[int]:
    """Returns the tokens that end a text."""
    return frozenset(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else frozenset(eos_ids))


class Stopper:
    """The conditions of one branch: `before` is called for a chosen token, `after` once it was added."""

    def __init__(self, sampling: Sampling, eos_ids: Collection[int], context: int) -> None:
        self._min_tokens = sampling.min_tokens
        self._max_tokens = sampling.max_tokens
        self._timeout = sampling.timeout
        self._last: float | None = None  # when the last token was added, in seconds
        self._gaps: deque[float] = deque(maxlen=_LAST_TOKENS)  # seconds that the last tokens took
        self._context = context
        self._stop_ids = stop_ids(sampling, eos_ids)
        self._loops = Loops(sampling.stop_on_repetition) if sampling.stop_on_repetition else None

    def fork(self) -> Self:
        """Returns the conditions of another branch with the same tokens so far."""
        twin = copy(self)
        twin._gaps = self._gaps.copy()
        twin._loops = None if self._loops is None else self._loops.fork()
        return twin

    def before(self, token: int) -> bool:
        """Returns whether this token ends the text."""
        return token in self._stop_ids

    def after(self, history: History, seconds: float) -> Ending | None:
        """Returns the ending if the branch ends with the token that has just been added."""
        if self._loops is not None:
            period = self._loops.add(history.last)
            if period and history.generated_length >= self._min_tokens:
                what = "1 token" if period == 1 else f"{period} tokens"
                return Ending("repetition", f"{what} {self._loops.rounds} times in a row")
        if history.generated_length >= self._max_tokens:
            return Ending("length", "max_tokens")
        if len(history) >= self._context:
            return Ending("length", "context")
        if self._timeout is not None and seconds + self._next_takes(seconds) >= self._timeout:
            return Ending("timeout", f"after {self._timeout:g} s")
        return None

    def _next_takes(self, seconds: float) -> float:
        """Returns how long the next token may take: as long as the slowest but one of the last ones, since a
        machine has other work too. A single slow one does not count: the branch may have been preempted."""
        if self._last is not None:
            self._gaps.append(seconds - self._last)
        self._last = seconds
        return sorted(self._gaps)[-2] if len(self._gaps) > 1 else 0.0

    def ends_next(self, history: History) -> bool:
        """Returns whether the branch ends with the next token, whatever that is."""
        return history.generated_length + 1 >= self._max_tokens or len(history) + 1 >= self._context


@dataclass(frozen=True)
class Pause:
    """Where a request interrupts its run, so that another request can continue it."""

    tokens: int  # when the answer has this many
    ids: frozenset[int] = frozenset()  # or after one of these tokens,
    first: int = 0  # if the answer has more than this many by then


PAUSED = Ending("cancelled", "paused")


class PausingStopper(Stopper):
    """The conditions of a branch that pauses before its end."""

    def __init__(self, sampling: Sampling, eos_ids: Collection[int], context: int, pause: Pause) -> None:
        super().__init__(sampling, eos_ids, context)
        self._pause = pause

    def after(self, history: History, seconds: float) -> Ending | None:
        ending = super().after(history, seconds)
        if ending is not None:
            return ending
        length, pause = history.generated_length, self._pause
        if length >= pause.tokens or (length > pause.first and history.last in pause.ids):
            return PAUSED
        return None

    def ends_next(self, history: History) -> bool:
        return super().ends_next(history) or history.generated_length + 1 >= self._pause.tokens


class Loops:
    """Detects that the last tokens are one sequence, of any length, `rounds` times in a row."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self._tokens = np.empty(64, np.int64)
        self._count = 0
        self._matches = np.zeros(
            64, np.int64
        )  # [period] how many of the last tokens equal the one a period earlier

    def fork(self) -> Loops:
        """Returns a detector that has seen the same tokens."""
        twin = copy(self)
        twin._tokens, twin._matches = self._tokens.copy(), self._matches.copy()
        return twin

    def add(self, token: int) -> int:
        """Adds a token. Returns the period of the shortest loop that it closes, or 0."""
        if self._count == len(self._tokens):
            self._tokens = np.concatenate([self._tokens, np.empty_like(self._tokens)])
            self._matches = np.concatenate([self._matches, np.zeros_like(self._matches)])
        count = self._count
        matches = self._matches[1 : count + 1]
        matches += 1
        matches *= self._tokens[:count][::-1] == token  # [period - 1]
        self._tokens[count] = token
        self._count += 1
        closed = np.flatnonzero(matches >= (self.rounds - 1) * np.arange(1, count + 1))
        return int(closed[0]) + 1 if len(closed) else 0
