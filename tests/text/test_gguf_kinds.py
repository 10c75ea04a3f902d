"""Vocabularies of GGUF files against llama.cpp: how each named rule cuts words, pieces of plain text with
merges, and WordPiece."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassloop.errors import TextError
from glassloop.text.alphabet import from_alphabet
from glassloop.text.pretokenizers import GGUF_RULES
from glassloop.text.tokenizer import Tokenizer

# What llama.cpp (b11549) makes of some texts: the bytes of each word, by the name of the rule. None where it
# cannot express the published rule (it has no classes for upper and lower case).
WORDS = json.loads((Path(__file__).parent / "llama_cpp_words.json").read_text())
SOME = settings(max_examples=50, deadline=None)


@pytest.mark.parametrize("group", WORDS["words"], ids=lambda group: group["names"][0])
def test_words_are_cut_as_llama_cpp_cuts_them(group: dict[str, Any]) -> None:
    for name in group["names"]:
        rule = GGUF_RULES[name].build()
        for text, cuts in zip(WORDS["texts"], group["cuts"], strict=True):
            if cuts is not None:
                words = [from_alphabet(word) for word, _ in rule.pre_tokenize_str(text)]
                assert [len(word or b"") for word in words] == cuts, (name, text)
                assert b"".join(word or b"" for word in words) == text.encode()


def test_most_words_are_compared() -> None:
    names = {name for group in WORDS["words"] for name in group["names"]}
    assert names == {name for name, rule in GGUF_RULES.items() if rule.byte_level}
    cuts = [cut for group in WORDS["words"] for cut in group["cuts"]]
    assert sum(cut is None for cut in cuts) < len(cuts) / 10


def _plain_text(**more: Any) -> dict[str, Any]:
    pieces = ["<pad>", "<eos>", *[f"<0x{byte:02X}>" for byte in range(256)]]
    pieces += ["▁", "a", "b", "c", "\n", "▁a", "ab", "▁ab", "\n\n", "b▁", "▁▁"]
    kinds = [3, 3, *[6] * 256, *[1] * (len(pieces) - 258)]
    merges = ["a b", "▁ ab", "▁ a", "\n \n", "b ▁", "▁ ▁"]
    return {
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": 1,
        **more,
    }


@pytest.mark.parametrize("kind", [{}, {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "sarvam-moe"}])
def test_merges_of_plain_text_run_over_spaces_and_stop_at_lines(kind: dict[str, str]) -> None:
    tokenizer = Tokenizer.from_gguf(_plain_text(**kind))
    pieces = [tokenizer.decode([token]) for token in tokenizer.encode("ab ab\n\nab  a", add_special=False)]
    assert pieces == ["ab", " ab", "\n\n", "ab", "  ", "a"] or pieces == [
        "ab",
        " ab",
        "\n\n",
        "ab",
        " ",
        " a",
    ]

    @SOME
    @given(st.text(alphabet="abc \n▁é😀", max_size=20))
    def check(text: str) -> None:
        ids = tokenizer.encode(text, add_special=False)
        assert tokenizer.decode(ids) == text
        assert ids == tokenizer._parts.model.whole.parsing.encode(text, add_special_tokens=False).ids

    check()


def _bert(**more: Any) -> dict[str, Any]:
    pieces = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "▁hello",
        "▁he",
        "llo",
        "▁world",
        "s",
        "▁!",
        "▁é",
        "▁e",
        "▁中",
    ]
    return {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.token_type": [3, 2, 3, 3, *[1] * (len(pieces) - 4)],
        "tokenizer.ggml.cls_token_id": 2,
        "tokenizer.ggml.seperator_token_id": 3,
        "tokenizer.ggml.unknown_token_id": 1,
        **more,
    }


def _naive_word_pieces(words: list[str], pieces: list[str]) -> list[int]:
    """The definition: the longest piece that fits, from the start of each word, or the unknown token."""
    ids: list[int] = []
    for word in words:
        spelled, found = "▁" + word, []
        while spelled:
            piece = next((spelled[:n] for n in range(len(spelled), 0, -1) if spelled[:n] in pieces[4:]), None)
            if piece is None:
                found = [1]
                break
            found.append(pieces.index(piece))
            spelled = spelled[len(piece) :]
        ids += found
    return ids


@SOME
@given(st.lists(st.sampled_from(["hello", "hellos", "HELLO", "world", "worlds", "he", "x", "!", "中"])))
def test_word_pieces_are_the_longest_that_fit(words: list[str]) -> None:
    metadata = _bert()
    tokenizer = Tokenizer.from_gguf(metadata)
    expected = _naive_word_pieces([word.lower() for word in words], metadata["tokenizer.ggml.tokens"])
    assert tokenizer.encode(" ".join(words), add_special=False) == expected
    assert tokenizer.encode(" ".join(words)) == [2, *expected, 3]


def test_word_pieces_fold_as_the_file_says() -> None:
    folded = Tokenizer.from_gguf(_bert())
    assert folded.encode("É", add_special=False) == [11]
    assert folded.decode(folded.encode("Hello worlds!", add_special=False)) == "hello worlds !"
    kept = Tokenizer.from_gguf(_bert(**{"tokenizer.ggml.normalizer.lowercase": False}))
    assert kept.encode("é É", add_special=False) == [10, 1]
    with pytest.raises(TextError, match="unknown_token_id is missing"):
        strange = {"tokenizer.ggml.unknown_token_id": None, "tokenizer.ggml.tokens": ["a"] * 13}
        Tokenizer.from_gguf(_bert(**strange))


def test_other_kinds_are_refused_by_name() -> None:
    with pytest.raises(TextError, match=r"model is 'rwkv'; 'gpt2', 'gemma4', 'llama' and 'bert' are read"):
        Tokenizer.from_gguf(_bert(**{"tokenizer.ggml.model": "rwkv"}))
