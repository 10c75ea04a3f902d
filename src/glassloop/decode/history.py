"""The tokens of one branch so far, with what stages ask of them at every step: which have come, how often.

It grows by one token at a time; what it answers is a pure function of the tokens in it.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from glassloop.ops.vocabulary import Float64, Int32


class History:
    """The prompt, then what was generated."""

    def __init__(self, prompt: Iterable[int] = (), generated: Iterable[int] = ()) -> None:
        ids = list(prompt)
        self.prompt_length = len(ids)
        self._tokens = np.array(ids + [0] * 64, np.int32)
        self._length = len(ids)
        self._seen = _Tally(ids)  # prompt and generated
        self._generated = _Tally()
        for token in generated:
            self.append(token)

    def append(self, token: int) -> None:
        if self._length == len(self._tokens):
            self._tokens = np.concatenate([self._tokens, np.zeros_like(self._tokens)])
        self._tokens[self._length] = token
        self._length += 1
        self._seen.add(token)
        self._generated.add(token)

    def __len__(self) -> int:
        return self._length

    @property
    def tokens(self) -> Int32:
        return self._tokens[: self._length]

    @property
    def generated_length(self) -> int:
        return self._length - self.prompt_length

    @property
    def seen(self) -> Int32:
        """Every token of prompt and answer, once."""
        return self._seen.ids

    @property
    def generated(self) -> tuple[Int32, Float64]:
        """Every token of the answer, once, and how often it came."""
        return self._generated.ids, self._generated.counts


class _Tally:
    """Which ids have come, in order of first appearance, and how often."""

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

    @property
    def ids(self) -> Int32:
        return self._ids[: len(self._places)]

    @property
    def counts(self) -> Float64:
        return self._counts[: len(self._places)]
