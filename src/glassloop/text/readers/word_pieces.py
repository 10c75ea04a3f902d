"""WordPiece, the vocabularies of BERT: words are cut at spaces and punctuation, folded, and each is spelled
by the longest pieces that fit, from its start. It forgets spaces, and case where the model folds it.
"""

from __future__ import annotations

from collections.abc import Sequence

from glassloop.errors import TextError
from glassloop.text.alphabet import SPACE_MARK
from glassloop.text.pipeline import (
    Pipeline,
    Ready,
    SpacePrefix,
    TokenizerParts,
    first_line,
    raise_unless_from_library,
)
from glassloop.text.vocabulary import Spelling, TokenKind, Vocabulary

_LONGEST_WORD = 100  # characters of a word that is spelled; a longer one is unknown


def word_pieces(
    name: str,
    pieces: list[str],
    kinds: Sequence[int],
    *,
    first: int | None,
    last: int | None,
    unknown: int,
    lowercase: bool,
    strip_accents: bool,
) -> TokenizerParts:
    """Returns a tokenizer for pieces as GGUF has them: "▁word" begins a word, "ing" continues one. `first`
    and `last` are the tokens around a text ([CLS] and [SEP])."""
    from tokenizers import AddedToken, models, normalizers, pre_tokenizers
    from tokenizers import Tokenizer as Backend

    vocabulary = Vocabulary(name, pieces, kinds, Spelling.SENTENCEPIECE)
    vocab: dict[str, int] = {}
    for token_id, piece in enumerate(pieces):
        special = kinds[token_id] in (TokenKind.CONTROL, TokenKind.UNKNOWN, TokenKind.USER_DEFINED)
        vocab[piece if special else _spelled(piece)] = token_id
    unknown_text = pieces[unknown]
    vocab[unknown_text] = unknown

    def backend_of(literals: list[str]) -> Backend:
        try:
            model = models.WordPiece(
                vocab=vocab, unk_token=unknown_text, max_input_chars_per_word=_LONGEST_WORD
            )
        except BaseException as error:
            raise_unless_from_library(error)
            raise TextError(f"{name}: the pieces make no vocabulary: {first_line(error)}") from None
        backend = Backend(model)
        backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=strip_accents)
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        if literals:
            backend.add_special_tokens(
                [AddedToken(text, normalized=False, special=True) for text in literals]
            )
        return backend

    special_texts = [pieces[i] for i in vocabulary.literal_ids if pieces[i] and vocab[pieces[i]] == i]
    plain = backend_of([])
    return TokenizerParts(
        vocabulary,
        Ready(Pipeline(backend_of(special_texts), plain, plain), SPACE_MARK),
        bos_id=first,
        eos_ids=() if last is None else (last,),
        before=() if first is None else (first,),
        after=() if last is None else (last,),
        space_prefix=SpacePrefix.FIRST,
        exact=False,
    )


def _spelled(piece: str) -> str:
    """Returns a piece as the library spells it: a word, or "##" and its continuation."""
    return piece[1:] if piece.startswith(SPACE_MARK) else f"##{piece}"
