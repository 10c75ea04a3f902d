"""SentencePiece itself as the oracle for vocabularies with scores."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text.small import WORDS, sentencepiece_metadata, sentencepiece_model
from text.strings import TEXTS

from glassloop.text.tokenizer import Tokenizer

LETTERS = st.lists(st.sampled_from([*WORDS, " ", "  ", "\n", "é", "<x>", "<s>", "🎈"]), max_size=24).map(
    "".join
)


# A space prefix together with user-defined pieces is read as llama.cpp reads it, and not compared here:
# SentencePiece puts the space before the whole text alone, llama.cpp also after each user-defined piece.
@pytest.mark.parametrize(
    ("prefix", "user_defined"), [(False, ()), (True, ()), (False, ("aba", "bb", "<x>", "▁▁"))]
)
def test_same_ids_as_sentencepiece(prefix: bool, user_defined: tuple[str, ...]) -> None:
    theirs = sentencepiece_model(prefix, user_defined)
    ours = Tokenizer.from_gguf(sentencepiece_metadata(prefix, user_defined))

    @settings(max_examples=700)
    @given(LETTERS | TEXTS)
    def check(text: str) -> None:
        text = text.replace("▁", "").replace("\0", "")  # "▁" is a space to SentencePiece; NUL ends its text
        ids = ours.encode(text, add_special=False, parse_special=False)
        assert ids == theirs.encode(text)
        assert ours.decode(ids) == theirs.decode(ids) == text

    check()


def test_space_prefix_never_shows() -> None:
    tokenizer = Tokenizer.from_gguf(sentencepiece_metadata(True, ("<x>",)))

    @settings(max_examples=500)
    @given(LETTERS | TEXTS, st.booleans(), st.booleans())
    def check(text: str, add_special: bool, parse_special: bool) -> None:
        ids = tokenizer.encode(text, add_special=add_special, parse_special=parse_special)
        assert tokenizer.decode_bytes(ids) == (b"<s>" if add_special else b"") + text.encode()

    check()


def test_space_prefix_stays_out_of_any_bytes() -> None:
    tokenizer = Tokenizer.from_gguf(sentencepiece_metadata(True, ("<x>",)))
    awkward = st.lists(st.sampled_from([b"\xff", b" ", b"<x>", b"a", b"<s>", b"\xe2\x96", b"\n"]), max_size=8)

    @settings(max_examples=500)
    @given(awkward.map(b"".join) | st.binary(max_size=12))
    def check(data: bytes) -> None:
        assert tokenizer.decode_bytes(tokenizer.encode_bytes(data)) == data

    check()
