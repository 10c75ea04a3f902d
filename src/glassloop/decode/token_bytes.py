"""The exact bytes of every token of a vocabulary, for those who look for text in tokens: bad words, grammars.

Made once for each tokenizer, since a vocabulary has up to a quarter of a million tokens.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate
from typing import NamedTuple
from weakref import WeakKeyDictionary

from glassloop.errors import TextError
from glassloop.text.tokenizer import Tokenizer


class TokenBytes(NamedTuple):
    by_id: list[bytes]  # empty where an id has no token
    in_order: list[tuple[bytes, int]]  # (bytes, id), sorted, so that those with one beginning are together
    joined: bytes  # all of them in one, by id
    starts: list[int]  # where each begins in that

    def beginning_with(self, start: bytes) -> list[int]:
        """The tokens whose bytes begin so."""
        place = bisect_left(self.in_order, (start, -1))
        found = []
        while place < len(self.in_order) and self.in_order[place][0].startswith(start):
            found.append(self.in_order[place][1])
            place += 1
        return found

    def holding(self, text: bytes) -> set[int]:
        """The tokens whose bytes hold these somewhere."""
        found: set[int] = set()
        place = self.joined.find(text)
        while place >= 0:
            token = bisect_right(self.starts, place) - 1
            if text in self.by_id[token]:  # and not over the border to the next
                found.add(token)
            place = self.joined.find(text, place + 1)
        return found


_MADE: WeakKeyDictionary[Tokenizer, TokenBytes] = WeakKeyDictionary()


def token_bytes(tokenizer: Tokenizer) -> TokenBytes:
    made = _MADE.get(tokenizer)
    if made is None:
        by_id = [_bytes_of(tokenizer, token) for token in range(tokenizer.vocab_size)]
        in_order = sorted((data, token) for token, data in enumerate(by_id) if data)
        starts = list(accumulate(map(len, by_id[:-1]), initial=0))
        made = _MADE[tokenizer] = TokenBytes(by_id, in_order, b"".join(by_id), starts)
    return made


def _bytes_of(tokenizer: Tokenizer, token: int) -> bytes:
    try:
        return tokenizer.token_bytes(token)
    except TextError:
        return b""
