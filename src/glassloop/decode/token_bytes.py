"""The exact bytes of every token of a vocabulary, for those who look for text in tokens: bad words, grammars.

Made once for each tokenizer, since a vocabulary has up to a quarter of a million tokens.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from glassloop.decode.luck import GOLDEN
from glassloop.errors import TextError
from glassloop.ops.rows import Int32
from glassloop.text.tokenizer import Tokenizer

Int64 = NDArray[np.int64]


class TokenBytes(NamedTuple):
    by_id: list[bytes]  # empty where an id has no token
    in_order: list[bytes]  # sorted, so that those with one beginning are together
    sorted_ids: Int32  # theirs
    joined: bytes  # all of them in one, by id
    starts: Int64  # where each begins in that
    ends: Int64

    def range_of(self, start: bytes) -> tuple[int, int]:
        """Returns from which place of `in_order` to before which the tokens' bytes begin so."""
        low = bisect_left(self.in_order, start)
        above = start.rstrip(b"\xff")  # the first bytes after all that begin so: the last byte one higher
        if not above:
            return low, len(self.in_order)
        return low, bisect_left(self.in_order, above[:-1] + bytes([above[-1] + 1]), low)

    def holding(self, texts: Collection[bytes]) -> set[int]:
        """The tokens whose bytes hold one of these somewhere. All texts of a length are looked for at once,
        by their last eight bytes as one number."""
        by_length: dict[int, set[bytes]] = {}
        for text in texts:
            by_length.setdefault(len(text), set()).add(text)
        found: set[int] = set()
        data = np.frombuffer(self.joined, np.uint8)
        numbers: NDArray[np.uint64] = np.zeros(len(data), np.uint64)  # of as many bytes from here on
        longest = min(max(by_length, default=0), int((self.ends - self.starts).max()))
        for length in range(1, longest + 1):
            numbers = (numbers[: len(data) - length + 1] << np.uint64(8)) | data[length - 1 :]
            if length not in by_length:
                continue
            wanted = np.array([int.from_bytes(text[-8:]) for text in by_length[length]], np.uint64)
            marked = np.zeros(1 << 16, np.bool_)
            marked[_short(wanted)] = True
            places = np.flatnonzero(marked[_short(numbers)])  # few, and all that matter
            places = places[np.isin(numbers[places], wanted)]
            owners = self.starts.searchsorted(places, "right") - 1
            within = places + length <= self.ends[owners]  # and not over the border to the next
            if length <= 8:
                found.update(owners[within].tolist())
                continue
            for place, token in zip(places[within].tolist(), owners[within].tolist(), strict=True):
                if self.joined[place : place + length] in by_length[length]:
                    found.add(token)
        return found


def _short(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """16 bits that depend on all of them."""
    return (numbers * np.uint64(GOLDEN)) >> np.uint64(48)


_MADE: WeakKeyDictionary[Tokenizer, TokenBytes] = WeakKeyDictionary()


def token_bytes(tokenizer: Tokenizer) -> TokenBytes:
    made = _MADE.get(tokenizer)
    if made is None:
        by_id = [_bytes_of(tokenizer, token) for token in range(tokenizer.vocab_size)]
        sorted_ids = sorted((token for token, data in enumerate(by_id) if data), key=by_id.__getitem__)
        in_order = [by_id[token] for token in sorted_ids]
        ends = np.cumsum([len(data) for data in by_id])
        starts = np.concatenate([[0], ends[:-1]])
        made = _MADE[tokenizer] = TokenBytes(
            by_id, in_order, np.array(sorted_ids, np.int32), b"".join(by_id), starts, ends
        )
    return made


def _bytes_of(tokenizer: Tokenizer, token: int) -> bytes:
    try:
        return tokenizer.token_bytes(token)
    except TextError:
        return b""
