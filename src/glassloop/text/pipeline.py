"""The `tokenizers` objects behind a tokenizer, and what every loader hands over with them.

A model has three ways in, which differ in what they look for before they merge. They are never changed once
built, so any number of threads may encode at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from glassloop.shown import printable
from glassloop.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

    from glassloop.text.chat import ChatTemplate


class SpacePrefix(Enum):
    """Where a space is put in front of text before it is encoded (and dropped again by decoding)."""

    NEVER = "never"
    FIRST = "first"  # at the start of the text, where a BOS may stand before it
    ALWAYS = "always"  # at the start and after every special or user-defined token


class Pipeline(NamedTuple):
    parsing: Backend  # the text of a special token becomes that token
    plain: Backend  # the text of a special token is text; user-defined tokens are still found
    bare: Backend  # as `plain`, for text that continues other text: no space is put in front


WayIn = Literal["parsing", "plain", "bare"]


class Model(Protocol):
    """What turns text into tokens. `BPE` builds its pipelines as they are needed, `Ready` has one."""

    @property
    def space(self) -> str:
        """How the vocabulary writes a space, "▁" or " "; byte-level ones do not ask."""

    def for_text(self, text: str) -> Pipeline:
        """The ways in for this text."""

    def token_to_id(self, piece: str) -> int | None: ...


class Ready(NamedTuple):
    pipeline: Pipeline
    space: str

    def for_text(self, text: str) -> Pipeline:
        return self.pipeline

    def token_to_id(self, piece: str) -> int | None:
        token_id: int | None = self.pipeline.parsing.token_to_id(piece)
        return token_id


class TokenizerParts(NamedTuple):
    """All that a `Tokenizer` is made of."""

    vocabulary: Vocabulary
    model: Model
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    before: tuple[int, ...] = ()  # put before an encoded text when special tokens are asked for
    after: tuple[int, ...] = ()
    space_prefix: SpacePrefix = SpacePrefix.NEVER
    exact: bool = True  # encoding keeps every byte (no normalizer that rewrites text)
    chat_template: ChatTemplate | None = None
    # What happens to text before special tokens are looked for, where it is not looked at as it stands.
    fold: Callable[[str], str] | None = None


def raise_unless_from_library(error: BaseException) -> None:
    """Raises what is not an error of the `tokenizers` library. A panic in it (as of a regular expression that
    takes too many steps) is an exception of its own kind, which is no `Exception`."""
    if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
        raise error


def first_line(error: BaseException) -> str:
    """The message of somebody else's exception, cut down to one line of our own errors."""
    lines = str(error).strip().splitlines()
    return printable(lines[0], 300) if lines else type(error).__name__


def component_state(component: object) -> Any:
    """A `tokenizers` component as the JSON it is saved as; None for none."""
    if component is None:
        return None
    state = component.__getstate__()
    return json.loads(state if isinstance(state, (str, bytes)) else bytes(state))  # type: ignore[call-overload]
