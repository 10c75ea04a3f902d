"""The tokens of a vocabulary as people read them."""

from __future__ import annotations

from glassloop.text.tokenizer import Tokenizer


class Pieces(dict[int, str]):
    """Token id → its text by itself; made when it is first asked for, and kept. It holds the tokenizer alone,
    so that whatever holds it keeps no model alive."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def __missing__(self, token: int) -> str:
        # A model may have more logits than its tokenizer has tokens.
        known = token < self._tokenizer.vocab_size
        piece = self[token] = self._tokenizer.piece(token) if known else f"<{token}>"
        return piece
