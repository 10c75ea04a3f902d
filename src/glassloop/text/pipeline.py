"""The `tokenizers` objects behind a tokenizer, and what every loader hands over with them.

One BPE model has three ways in, which differ in what they look for before they merge. They share the model
and are never changed once built, so any number of threads may encode at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from glassloop.errors import TextError
from glassloop.text.vocabulary import Kind, Vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend
    from tokenizers.normalizers import Normalizer
    from tokenizers.pre_tokenizers import PreTokenizer

    from glassloop.text.chat import ChatTemplate


class SpacePrefix(Enum):
    """Where a space is put in front of text before it is encoded (and dropped again by decoding)."""

    NEVER = "never"
    FIRST = "first"  # at the start of the text, where a BOS may stand before it
    ALWAYS = "always"  # at the start and after every special or user-defined token


@dataclass(frozen=True, slots=True)
class Pipeline:
    parsing: Backend  # the text of a special token becomes that token
    plain: Backend  # the text of a special token is text; user-defined tokens are still found
    bare: Backend  # as `plain`, for text that continues other text: no space is put in front
    space: str  # how the model's vocabulary writes a space, "▁" or " "; byte-level ones do not ask


@dataclass(frozen=True, slots=True)
class TokenizerParts:
    """All that a `Tokenizer` is made of."""

    vocabulary: Vocabulary
    pipeline: Pipeline
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    before: tuple[int, ...] = ()  # put before an encoded text when special tokens are asked for
    after: tuple[int, ...] = ()
    space_prefix: SpacePrefix = SpacePrefix.NEVER
    exact: bool = True  # encoding keeps every byte (no normalizer that rewrites text)
    chat_template: ChatTemplate | None = None


def first_line(error: BaseException) -> str:
    """The message of somebody else's exception, cut down to one line of our own errors."""
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__


def build_pipeline(
    vocabulary: Vocabulary,
    vocab: dict[str, int],
    merges: Sequence[tuple[str, str]],
    *,
    words: PreTokenizer | None = None,
    normalizer: Normalizer | None = None,
    ignore_merges: bool = False,
    byte_fallback: bool = False,
) -> Pipeline:
    """A pipeline around a new BPE model. `vocab` holds the text of literal tokens among the rest."""
    from tokenizers import Tokenizer as Backend
    from tokenizers.models import BPE

    try:
        model = BPE(vocab=vocab, merges=merges, ignore_merges=ignore_merges, byte_fallback=byte_fallback)
    except Exception as error:
        raise TextError(f"{vocabulary.name}: the merges do not fit the tokens: {first_line(error)}") from None

    special: list[str] = []
    user_defined: list[str] = []
    for token_id in vocabulary.literal_ids:
        text = vocabulary.token_bytes(token_id).decode("utf-8", "replace")
        if text and vocab.get(text) == token_id:  # else a later token has the same text
            (user_defined if vocabulary.kinds[token_id] == Kind.USER_DEFINED else special).append(text)

    def way_in(special: Iterable[str], user_defined: Iterable[str], normalizer: Normalizer | None) -> Backend:
        backend = Backend(model)
        if words is not None:
            backend.pre_tokenizer = words
        if normalizer is not None:
            backend.normalizer = normalizer
        _add(backend, special, special=True)
        _add(backend, user_defined, special=False)
        return backend

    plain = way_in((), user_defined, normalizer)
    # With a space prefix, decoding drops a space after each user-defined token. `bare` adds none, so for
    # its bytes to come back it must not find such tokens either; their text is then spelled out.
    bare = plain if normalizer is None else way_in((), (), None)
    return Pipeline(way_in(special, user_defined, normalizer), plain, bare, space=" ")


def _add(backend: Backend, texts: Iterable[str], *, special: bool) -> None:
    from tokenizers import AddedToken

    tokens = [AddedToken(text, normalized=False, special=special) for text in texts]
    if tokens and special:
        backend.add_special_tokens(tokens)
    elif tokens:
        backend.add_tokens(tokens)


def component_state(component: object) -> Any:
    """A `tokenizers` component as the JSON it is saved as; None for none."""
    if component is None:
        return None
    state = component.__getstate__()
    return json.loads(state if isinstance(state, (str, bytes)) else bytes(state))  # type: ignore[call-overload]
