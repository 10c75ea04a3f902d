"""The tokens of one branch so far, and the counts that stages need at every step.

It grows by one token at a time and can be cut back. All of its results are pure functions of its tokens.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import numpy as np

from glassloop.ops.rows import Float64, Int32


class History:
    """The tokens of the prompt, then the generated ones."""

    def __init__(self, prompt: Iterable[int] = (), generated: Iterable[int] = ()) -> None:
        self._tokens = array("i", prompt)
        self.prompt_length = len(self._tokens)
        # Counting starts when the counts are first needed: most requests have no penalties.
        self._seen: _Tally | None = None  # prompt and generated
        self._generated: _Tally | None = None
        for token in generated:
            self.append(token)

    def append(self, token: int) -> None:
        self._tokens.append(token)
        if self._seen is not None:
            self._seen.add(token)
        if self._generated is not None:
            self._generated.add(token)

    def truncate(self, length: int) -> None:
        """Removes generated tokens from the end until `length` are left."""
        kept = self.prompt_length + length
        for token in reversed(self._tokens[kept:]):
            for tally in (self._seen, self._generated):
                if tally is not None:
                    tally.remove_last(token)
        del self._tokens[kept:]

    def copy(self) -> History:
        """Returns an independent history with the same tokens."""
        history = History.__new__(History)
        history.prompt_length = self.prompt_length
        history._tokens = self._tokens[:]
        history._seen = None if self._seen is None else self._seen.copy()
        history._generated = None if self._generated is None else self._generated.copy()
        return history

    def __len__(self) -> int:
        return len(self._tokens)

    @property
    def tokens(self) -> Int32:
        """A copy of the tokens so far."""
        return np.array(self._tokens, np.int32)

    @property
    def last(self) -> int:
        return self._tokens[-1]

    @property
    def generated_length(self) -> int:
        return len(self._tokens) - self.prompt_length

    @property
    def seen(self) -> Int32:
        """The distinct tokens of the prompt and the answer."""
        if self._seen is None:
            self._seen = _Tally(self._tokens)
        return self._seen.ids

    @property
    def generated(self) -> tuple[Int32, Float64]:
        """The distinct tokens of the answer, and how often each occurs."""
        if self._generated is None:
            self._generated = _Tally(self._tokens[self.prompt_length :])
        return self._generated.ids, self._generated.counts


class _Tally:
    """The distinct ids of a sequence, in order of first appearance, with their counts."""

    def __init__(self, ids: Iterable[int] = ()) -> None:
        self._places: dict[int, int] = {}
        self._ids = np.zeros(64, np.int32)
        self._counts = np.zeros(64, np.float64)
        for token in ids:
            self.add(token)

    def add(self, token: int) -> None:
        place = self._places.setdefault(token, len(self._places))
        if place == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids[place] = token
        self._counts[place] += 1

    def remove_last(self, token: int) -> None:
        """Undoes the last `add`. Ids leave in the reverse order of their arrival, so no gaps arise."""
        place = self._places[token]
        self._counts[place] -= 1
        if not self._counts[place]:
            del self._places[token]

    def copy(self) -> _Tally:
        tally = _Tally.__new__(_Tally)
        tally._places = self._places.copy()
        tally._ids, tally._counts = self._ids.copy(), self._counts.copy()
        return tally

    @property
    def ids(self) -> Int32:
        return self._ids[: len(self._places)]

    @property
    def counts(self) -> Float64:
        return self._counts[: len(self._places)]
