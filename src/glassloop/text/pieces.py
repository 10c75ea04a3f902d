"""The readable text of each token of a vocabulary."""

from __future__ import annotations

from glassloop.text.tokenizer import Tokenizer


class Pieces(dict[int, str]):
    """Maps a token id to its text; made at first use and kept. It refers to the tokenizer alone, so that an
    object that holds it keeps no model alive."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def __missing__(self, token: int) -> str:
        # A model may have more logits than its tokenizer has tokens.
        known = token < self._tokenizer.vocab_size
        piece = self[token] = self._tokenizer.piece(token) if known else f"<{token}>"
        return piece
