"""Texts and token sequences that must never come: which tokens would complete one right now.

A text is looked for in the bytes, so it is found however it falls into tokens, the prompt's last included.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import islice

import numpy as np

from glassloop.decode.token_bytes import token_bytes
from glassloop.errors import SamplingError
from glassloop.ops.vocabulary import Int32
from glassloop.text.tokenizer import Tokenizer


class BadWords:
    def __init__(self, words: Sequence[str | tuple[int, ...]], tokenizer: Tokenizer | None) -> None:
        self._sequences = [word for word in words if not isinstance(word, str)]
        self._texts = sorted(word.encode() for word in words if isinstance(word, str))
        if self._texts and tokenizer is None:
            raise SamplingError("bad_words has texts; without a tokenizer token ids are expected")
        self._tokens = None if tokenizer is None or not self._texts else token_bytes(tokenizer)
        self._longest = max((len(text) for text in self._texts), default=0)
        self._known: dict[bytes, list[int]] = {}
        # Any token that holds a text whole, or is a sequence by itself, is out at every step.
        always = {sequence[0] for sequence in self._sequences if len(sequence) == 1}
        if self._tokens is not None:
            always |= self._tokens.holding(self._texts)
        self._always = np.array(sorted(always), np.int32)

    def banned(self, tokens: Int32) -> Int32:
        """The tokens that may not come after these."""
        found: list[int] = []
        for *start, last in self._sequences:
            if start and tokens[-len(start) :].tolist() == start:
                found.append(last)
        if self._tokens is not None:
            tail = self._tail(tokens, self._tokens.by_id)
            for place in range(len(tail)):
                found += self._completing(tail[place:])
        return np.concatenate([self._always, np.array(found, np.int32)]) if found else self._always

    def _completing(self, begun: bytes) -> list[int]:
        """The tokens that would complete a text of which so much is there. The same beginnings come often."""
        known = self._known.get(begun)
        if known is None and self._tokens is not None:
            known = []
            for text in islice(self._texts, bisect_left(self._texts, begun), None):
                if not text.startswith(begun):  # sorted, those that begin so are together
                    break
                if len(text) > len(begun):
                    known += self._tokens.beginning_with(text[len(begun) :])
            if known:
                self._known[begun] = known
        return known or []

    def _tail(self, tokens: Int32, by_id: list[bytes]) -> bytes:
        """The last bytes of the text so far: as many as could begin a bad word."""
        tail = b""
        for token in tokens[::-1]:
            if len(tail) >= self._longest:
                break
            tail = by_id[token] + tail
        return tail
