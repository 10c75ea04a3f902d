"""The `tokenizers` objects behind a tokenizer, and what every reader returns with them.

A tokenizer encodes in three ways, which differ in the tokens that they look for before they merge. The
objects never change once built, so any number of threads may encode at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from glassloop.text.vocabulary import Vocabulary
from glassloop.util.shown import printable

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

    from glassloop.text.chat import ChatTemplate


class SpacePrefix(Enum):
    """Where a space is put in front of text before it is encoded, and dropped again by decoding."""

    NEVER = "never"
    FIRST = "first"  # at the start of the text, where a BOS may stand before it
    ALWAYS = "always"  # at the start and after every special or user-defined token


class Pipeline(NamedTuple):
    parsing: Backend  # the text of a special token becomes that token
    plain: Backend  # the text of a special token is text; user-defined tokens are still found
    bare: Backend  # like `plain`, for text that continues other text: no space in front


Mode = Literal["parsing", "plain", "bare"]


class Model(Protocol):
    """Turns text into tokens. `BPE` builds its pipelines when they are needed, `Ready` has one."""

    @property
    def space(self) -> str:
        """How the vocabulary writes a space, "▁" or " "; not used for byte-level ones."""

    def for_text(self, text: str) -> Pipeline:
        """Returns the pipeline to encode this text with."""

    @property
    def whole(self) -> Pipeline:
        """The pipeline with the whole vocabulary."""

    def token_to_id(self, piece: str) -> int | None: ...


class Ready(NamedTuple):
    pipeline: Pipeline
    space: str

    def for_text(self, text: str) -> Pipeline:
        return self.pipeline

    @property
    def whole(self) -> Pipeline:
        return self.pipeline

    def token_to_id(self, piece: str) -> int | None:
        token_id: int | None = self.pipeline.parsing.token_to_id(piece)
        return token_id


class TokenizerParts(NamedTuple):
    """What a `Tokenizer` is made of."""

    vocabulary: Vocabulary
    model: Model
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    before: tuple[int, ...] = ()  # put before an encoded text if special tokens are to be added
    after: tuple[int, ...] = ()
    space_prefix: SpacePrefix = SpacePrefix.NEVER
    exact: bool = True  # encoding keeps every byte (no normalizer that rewrites text)
    chat_template: ChatTemplate | None = None
    # The normalizer, if special tokens are looked for in normalized text.
    fold: Callable[[str], str] | None = None


def raise_unless_from_library(error: BaseException) -> None:
    """Raises the error again unless it comes from the `tokenizers` library. A panic there, such as a regular
    expression that takes too many steps, is a BaseException of its own class."""
    if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
        raise error


def first_line(error: BaseException) -> str:
    """Returns the message of a library's exception, cut to one line."""
    lines = str(error).strip().splitlines()
    return printable(lines[0], 300) if lines else type(error).__name__


def component_state(component: object) -> Any:
    """Returns the JSON that a `tokenizers` component is saved as; None for None."""
    if component is None:
        return None
    state = component.__getstate__()
    return json.loads(state if isinstance(state, (str, bytes)) else bytes(state))  # type: ignore[call-overload]
