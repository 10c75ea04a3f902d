"""The tokens of a vocabulary: the spelling, the kind and the exact bytes of each.

Every reader (GGUF, tokenizer.json, tiktoken ranks) makes a `Vocabulary`; decoding uses nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from functools import cached_property

from glassloop.errors import TextError
from glassloop.text.alphabet import SPACE_MARK, from_alphabet, named_byte


class TokenKind:
    """The kinds of tokens, with the numbers of GGUF's `tokenizer.ggml.token_type`. They are plain numbers,
    since a vocabulary has a quarter of a million of them, a byte each."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4  # always found whole in text, special or not
    UNUSED = 5
    BYTE = 6


class Spelling(Enum):
    BYTE_LEVEL = "byte-level"
    SENTENCEPIECE = "sentencepiece"


SPECIAL_KINDS = frozenset({TokenKind.CONTROL, TokenKind.UNKNOWN})
_NOT_NORMAL = re.compile(rb"[^\x01]")
LITERAL_KINDS = SPECIAL_KINDS | {
    TokenKind.USER_DEFINED
}  # spelled as plain text, never in the byte-level alphabet


class Vocabulary:
    def __init__(
        self, name: str, pieces: Sequence[str | None], kinds: Sequence[int], spelling: Spelling
    ) -> None:
        self.name = name  # what errors call it
        self.pieces = pieces  # id → the file's own spelling; None where an id has no token
        self.kinds = bytes(kinds)  # id → Kind
        self.spelling = spelling
        self._byte_level = spelling is Spelling.BYTE_LEVEL

    def __len__(self) -> int:
        return len(self.pieces)

    @cached_property
    def literal_ids(self) -> tuple[int, ...]:
        """The tokens that are found whole in text: special and user-defined ones."""
        return tuple([i for i in self.marked_ids if self.kinds[i] in LITERAL_KINDS])

    @cached_property
    def marked_ids(self) -> tuple[int, ...]:
        """The few tokens that are not normal."""
        return tuple([match.start() for match in _NOT_NORMAL.finditer(self.kinds)])

    def token_bytes(self, token_id: int) -> bytes:
        piece = self.pieces[token_id] if 0 <= token_id < len(self.pieces) else None
        if piece is None:
            if 0 <= token_id < len(self.pieces):
                raise TextError(f"token id {token_id} has no token in {self.name}")
            # Python refuses to print very large numbers.
            shown = f"token id {token_id}" if token_id.bit_length() <= 64 else "a token id of over 64 bits"
            raise TextError(f"{shown} is outside {self.name}, which has {len(self.pieces)} tokens")
        kind = self.kinds[token_id]
        if kind in SPECIAL_KINDS:
            return _utf8(piece)
        if self._byte_level:
            data = None if kind == TokenKind.USER_DEFINED else from_alphabet(piece)
            return _utf8(piece) if data is None else data
        if kind == TokenKind.BYTE:
            byte = named_byte(piece)
            return _utf8(piece) if byte is None else bytes([byte])
        return _utf8(piece.replace(SPACE_MARK, " "))

    def text(self, token_id: int | None) -> str:
        """Returns a token's text, with U+FFFD for bytes that are not UTF-8; no text for None."""
        return "" if token_id is None else self.token_bytes(token_id).decode("utf-8", "replace")


def _utf8(piece: str) -> bytes:
    # Pieces that were not valid UTF-8 in the file carry their bytes as surrogate escapes. (Other surrogates
    # cannot come from bytes, but JSON can write them; they are kept as three bytes each.)
    try:
        return piece.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return piece.encode("utf-8", "surrogatepass")
