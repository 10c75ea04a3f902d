"""Byte-pair encoding by `tokenizers`, built when a text needs it and only as large as that text needs.

Giving a vocabulary and its merges to the library takes a tenth of a second or more. But a token is a
substring of the text, and so is everything that was merged on the way to it: for a short text, a model of the
pieces that occur in it gives the same tokens at once. The whole model is built for the first long text, or
when the short ones have cost as much.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import cached_property
from typing import TYPE_CHECKING

from glassloop.errors import TextError
from glassloop.text.alphabet import to_alphabet
from glassloop.text.merges import many_small_objects
from glassloop.text.pipeline import Pipeline, first_line, raise_unless_from_library
from glassloop.text.vocabulary import Spelling, TokenKind, Vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend
    from tokenizers.normalizers import Normalizer
    from tokenizers.pre_tokenizers import PreTokenizer

Pair = tuple[str, str]
# Returns the merges, best first, that make one of these pieces; of all pieces for None.
Merges = Callable[[Collection[str] | None], list[Pair]]

_PATIENCE = 5  # how often the vocabulary is gone through for short texts before the whole model is built


class BPE:
    """The pipelines around one BPE model. `vocab` includes the text of literal tokens."""

    space = " "

    def __init__(
        self,
        vocabulary: Vocabulary,
        vocab: dict[str, int],
        merges: Merges,
        *,
        words: PreTokenizer | None = None,
        space_prefix: bool = False,
        ignore_merges: bool = False,
        byte_names: Collection[str] = (),
    ) -> None:
        self._name = vocabulary.name
        self._vocab = vocab
        self._merges = merges
        self._byte_level = vocabulary.spelling is Spelling.BYTE_LEVEL
        self._words = words
        self._space_prefix = space_prefix
        self._ignore_merges = ignore_merges
        self._byte_names = byte_names  # tokens for bytes that no piece covers
        self._special: list[str] = []
        self._user_defined: list[str] = []
        for token_id in vocabulary.literal_ids:
            text = vocabulary.text(token_id)
            if text and vocab.get(text) == token_id:  # else a later token has the same text
                user_defined = vocabulary.kinds[token_id] == TokenKind.USER_DEFINED
                (self._user_defined if user_defined else self._special).append(text)
        self._patience = _PATIENCE * len(vocab)

    def token_to_id(self, piece: str) -> int | None:
        return self._vocab.get(piece)

    def for_text(self, text: str) -> Pipeline:
        cost = len(self._vocab) + len(text) * self._longest
        if cost > self._patience:
            self._patience = 0  # once it is built, it is cheaper for every text
            return self.whole
        self._patience -= cost
        literals = [literal for literal in (*self._special, *self._user_defined) if literal in text]
        pieces = self._pieces_of(to_alphabet(text.encode()) if self._byte_level else text)
        vocab = {piece: self._vocab[piece] for piece in (*pieces, *literals, *self._byte_names)}
        return self._build(vocab, self._merges(pieces))

    def _pieces_of(self, text: str) -> set[str]:
        ends = range(1, self._longest + 1)
        pieces = {text[start : start + size] for start in range(len(text)) for size in ends}
        if self._space_prefix:  # a space may come before any of them
            pieces |= {" ", *[" " + piece for piece in pieces]}
        return pieces & self._vocab.keys()

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._vocab), default=0)

    @cached_property
    def whole(self) -> Pipeline:
        with many_small_objects():
            return self._build(self._vocab, self._merges(None))

    def _build(self, vocab: dict[str, int], merges: list[Pair]) -> Pipeline:
        from tokenizers import Tokenizer as Backend
        from tokenizers import models, normalizers

        try:
            model = models.BPE(
                vocab=vocab,
                merges=merges,
                ignore_merges=self._ignore_merges,
                byte_fallback=bool(self._byte_names),
            )
        except BaseException as error:
            raise_unless_from_library(error)
            raise TextError(f"{self._name}: the merges do not fit the tokens: {first_line(error)}") from None
        prefix = normalizers.Prepend(" ") if self._space_prefix else None

        def backend_of(special: list[str], user_defined: list[str], normalizer: Normalizer | None) -> Backend:
            backend = Backend(model)
            if self._words is not None:
                backend.pre_tokenizer = self._words
            if normalizer is not None:
                backend.normalizer = normalizer
            _add(backend, [text for text in special if text in vocab], special=True)
            _add(backend, [text for text in user_defined if text in vocab], special=False)
            return backend

        plain = backend_of([], self._user_defined, prefix)
        # With a space prefix, decoding drops a space after each user-defined token. `bare` adds no space, so
        # it must not find such tokens either, or its bytes would not come back; their text is spelled out.
        bare = plain if prefix is None else backend_of([], [], None)
        return Pipeline(backend_of(self._special, self._user_defined, prefix), plain, bare)


def _add(backend: Backend, texts: Iterable[str], *, special: bool) -> None:
    from tokenizers import AddedToken

    tokens = [AddedToken(text, normalized=False, special=special) for text in texts]
    if tokens and special:
        backend.add_special_tokens(tokens)
    elif tokens:
        backend.add_tokens(tokens)
