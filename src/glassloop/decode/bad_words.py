"""Texts and token sequences that must never come: which tokens would complete one right now.

A text is looked for in the bytes, so it is found however it falls into tokens, the prompt's last included.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from glassloop.decode.token_bytes import TokenBytes, token_bytes
from glassloop.errors import SamplingError
from glassloop.ops.vocabulary import Int32
from glassloop.text.tokenizer import Tokenizer


class BadWords:
    def __init__(self, words: Sequence[str | tuple[int, ...]], tokenizer: Tokenizer | None) -> None:
        self._sequences = [word for word in words if not isinstance(word, str)]
        self._texts = [word.encode() for word in words if isinstance(word, str)]
        if self._texts and tokenizer is None:
            raise SamplingError("bad_words has texts; without a tokenizer token ids are expected")
        self._tokens = TokenBytes([], [], b"", []) if tokenizer is None else token_bytes(tokenizer)
        self._longest = max((len(text) for text in self._texts), default=0)
        self._by_first_byte: dict[int, list[bytes]] = {}
        # Any token that holds a text whole, or is a sequence by itself, is out at every step.
        always = {sequence[0] for sequence in self._sequences if len(sequence) == 1}
        for text in self._texts:
            always |= self._tokens.holding(text)
            self._by_first_byte.setdefault(text[0], []).append(text)
        self._always = np.array(sorted(always), np.int32)

    def banned(self, tokens: Int32) -> Int32:
        """The tokens that may not come after these."""
        found: list[int] = []
        for *start, last in self._sequences:
            if start and tokens[-len(start) :].tolist() == start:
                found.append(last)
        tail = self._tail(tokens)
        for place, byte in enumerate(tail):
            begun = tail[place:]
            for text in self._by_first_byte.get(byte, ()):
                if len(text) > len(begun) and text.startswith(begun):
                    found += self._tokens.beginning_with(text[len(begun) :])
        return np.concatenate([self._always, np.array(found, np.int32)]) if found else self._always

    def _tail(self, tokens: Int32) -> bytes:
        """The last bytes of the text so far: as many as could begin a bad word."""
        tail = b""
        for token in tokens[::-1]:
            if len(tail) >= self._longest:
                break
            tail = self._tokens.by_id[token] + tail
        return tail
