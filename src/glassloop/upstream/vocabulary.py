"""A vocabulary that is not known: another engine has the tokenizer. A token is known by its bytes, and its id
is a name that is made from them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from glassloop.engine.protocol import UNKNOWN_CONTEXT
from glassloop.errors import TextError
from glassloop.model.config import ModelConfig
from glassloop.record.run import Run
from glassloop.text.tokenizer import Tokenizer

IDS = (1 << 31) - 1  # ids are below this
_LONGEST_TOKEN = 1 << 10  # bytes, for the bound on the length of a prompt


def name_of(data: bytes) -> int:
    """Returns the id of a token with these bytes: the first bits of their SHA-256."""
    return int.from_bytes(hashlib.sha256(data).digest()[:4]) % IDS


class Names:
    """The tokens of one run by their ids. Called with an id, it returns the text of the token."""

    def __init__(self) -> None:
        self._ids: dict[bytes, int] = {}
        self._pieces: dict[int, str] = {}

    @classmethod
    def of(cls, run: Run) -> Names:
        """Returns the names of all tokens that the record of a run has."""
        names = cls()
        for token in (*run.prompt_tokens, *run.tokens):
            names._learn(token.id, token.piece, token.bytes)
            for other in token.alternatives:
                names._learn(other.id, other.text, b"")
        return names

    def add(self, piece: str, data: bytes) -> int:
        """Returns the id of a token. Where another token of the run has that one, the next is used."""
        key = data or piece.encode()
        id = self._ids.get(key)
        if id is None:
            id = name_of(key)
            while id in self._pieces:
                id = (id + 1) % IDS
            self._learn(id, piece, key)
        return id

    def _learn(self, id: int, piece: str, data: bytes) -> None:
        self._ids.setdefault(data or piece.encode(), id)
        self._pieces.setdefault(id, piece)

    def __call__(self, id: int) -> str:
        return self._pieces.get(id, f"<{id}>")


def name_of_messages(messages: Sequence[Mapping[str, Any]]) -> int:
    """Returns the id that stands for a conversation."""
    return name_of(json.dumps(list(messages), sort_keys=True).encode())


class UnknownTokenizer(Tokenizer):
    """The tokenizer of an engine elsewhere. It can name a conversation and nothing else."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.vocab_size = 0
        self.bos_id = None
        self.eos_ids = ()
        self.add_bos = self.add_eos = False
        self.special_ids = frozenset()
        self.chat_template = None

    @property
    def can_chat(self) -> bool:
        return True

    @property
    def longest_token(self) -> int:
        return _LONGEST_TOKEN

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        raise TextError("the tokens of a text are not known here: another engine has the tokenizer")

    def encode_chat(self, messages: Iterable[Mapping[str, Any]], **options: Any) -> list[int]:
        """Returns one id, which stands for the conversation."""
        return [name_of_messages(list(messages))]

    def decode(self, ids: Iterable[int], *, skip_special: bool = False) -> str:
        """Returns nothing: texts are in the record of a run, not in its ids."""
        return ""

    def token_bytes(self, token_id: int) -> bytes:
        return b""

    def id_of(self, piece: str) -> int | None:
        return None


class UnknownConfig(ModelConfig):
    """The sizes of a model elsewhere, of which at most the context is known."""

    def __init__(self, context: int | None) -> None:
        # A frozen dataclass; its checks are for models that are loaded.
        sizes = {"family": "", "vocab_size": IDS, "dim": 0, "layers": (), "final_norm": None}
        for name, value in {**sizes, "context": context or UNKNOWN_CONTEXT}.items():
            object.__setattr__(self, name, value)

    @property
    def heads(self) -> int:
        return 0
