"""The exact bytes of every token of a vocabulary, for searching text in tokens (bad words, grammars).

They are made once per tokenizer, since a vocabulary has up to a quarter of a million tokens.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from glassloop.errors import TextError
from glassloop.ops.exact import GOLDEN
from glassloop.ops.rows import Int32
from glassloop.text.tokenizer import Tokenizer

Int64 = NDArray[np.int64]


class TokenBytes(NamedTuple):
    by_id: list[bytes]  # empty for ids without a token
    in_order: list[bytes]  # sorted, so that tokens with the same beginning are adjacent
    sorted_ids: Int32  # the ids of `in_order`
    joined: bytes  # all tokens concatenated, by id
    starts: Int64  # where each token begins in `joined`
    ends: Int64

    def range_of(self, start: bytes) -> tuple[int, int]:
        """Returns the range of `in_order` whose tokens begin with these bytes."""
        low = bisect_left(self.in_order, start)
        above = start.rstrip(b"\xff")  # the upper bound: the last byte increased by one
        if not above:
            return low, len(self.in_order)
        return low, bisect_left(self.in_order, above[:-1] + bytes([above[-1] + 1]), low)

    def holding(self, texts: Collection[bytes]) -> set[int]:
        """Returns the tokens whose bytes contain one of these texts. All texts of one length are searched at
        once, by their last eight bytes as one number."""
        by_length: dict[int, set[bytes]] = {}
        for text in texts:
            by_length.setdefault(len(text), set()).add(text)
        ids: set[int] = set()
        data = np.frombuffer(self.joined, np.uint8)
        numbers: NDArray[np.uint64] = np.zeros(
            len(data), np.uint64
        )  # the last eight of `length` bytes from each place on
        longest = min(max(by_length, default=0), int((self.ends - self.starts).max()))
        for length in range(1, longest + 1):
            numbers = (numbers[: len(data) - length + 1] << np.uint64(8)) | data[length - 1 :]
            if length not in by_length:
                continue
            wanted = np.array([int.from_bytes(text[-8:]) for text in by_length[length]], np.uint64)
            marked = np.zeros(1 << 16, np.bool_)
            marked[_short(wanted)] = True
            places = np.flatnonzero(marked[_short(numbers)])  # few, and all matches among them
            places = places[np.isin(numbers[places], wanted)]
            owners = self.starts.searchsorted(places, "right") - 1
            within = places + length <= self.ends[owners]  # not across the end of a token
            if length <= 8:
                ids.update(owners[within].tolist())
                continue
            for place, token in zip(places[within].tolist(), owners[within].tolist(), strict=True):
                if self.joined[place : place + length] in by_length[length]:
                    ids.add(token)
        return ids


def _short(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Returns a hash of 16 bits for each number."""
    return (numbers * np.uint64(GOLDEN)) >> np.uint64(48)


_MADE: WeakKeyDictionary[Tokenizer, TokenBytes] = WeakKeyDictionary()


def token_bytes(tokenizer: Tokenizer) -> TokenBytes:
    """Returns the bytes of a tokenizer's tokens, which are made once."""
    token_bytes = _MADE.get(tokenizer)
    if token_bytes is None:
        by_id = [_bytes_of(tokenizer, token) for token in range(tokenizer.vocab_size)]
        sorted_ids = sorted((token for token, data in enumerate(by_id) if data), key=by_id.__getitem__)
        in_order = [by_id[token] for token in sorted_ids]
        ends = np.cumsum([len(data) for data in by_id])
        starts = np.concatenate([[0], ends[:-1]])
        token_bytes = _MADE[tokenizer] = TokenBytes(
            by_id, in_order, np.array(sorted_ids, np.int32), b"".join(by_id), starts, ends
        )
    return token_bytes


def _bytes_of(tokenizer: Tokenizer, token: int) -> bytes:
    try:
        return tokenizer.token_bytes(token)
    except TextError:
        return b""
