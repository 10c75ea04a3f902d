"""A model of the pieces of a text gives the tokens that the whole model gives."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from text.small import SPECIAL, USER_DEFINED, byte_level_metadata, sentencepiece_metadata
from text.strings import BYTES, TEXTS

from glassloop.errors import TextError
from glassloop.text import bpe
from glassloop.text.tokenizer import Tokenizer

LONG = "A long text is worth the whole model. " * 10_000

SMALL: dict[str, Callable[[], dict[str, Any]]] = {
    **{pre: partial(byte_level_metadata, pre) for pre in ("gpt-2", "smollm", "llama-bpe")},
    "a space before": partial(sentencepiece_metadata, True, ("ab a", "<|x|>")),
    "no space before": partial(sentencepiece_metadata, False),
}


def _both(load: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[Tokenizer, Tokenizer]:
    """One that never builds the whole model, and one that has no other."""
    monkeypatch.setattr(bpe, "_PATIENCE", 10**9)
    small = load()
    monkeypatch.setattr(bpe, "_PATIENCE", 0)
    return small, load()


def _ways(tokenizer: Tokenizer, text: str, data: bytes) -> list[Any]:
    def ids(encode: Any) -> Any:
        try:
            return encode()
        except TextError as error:
            return str(error)

    return [
        ids(lambda: tokenizer.encode(text)),
        ids(lambda: tokenizer.encode(text, parse_special=False)),
        ids(lambda: tokenizer.encode_bytes(data)),
    ]


@pytest.mark.parametrize("name", SMALL)
def test_short_texts_of_small_vocabularies(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = SMALL[name]()
    small, whole = _both(lambda: Tokenizer.from_gguf(metadata), monkeypatch)
    literals = "".join([*SPECIAL, f"x{USER_DEFINED} y", "ab a<|x|>b"])

    @settings(max_examples=200)
    @given(TEXTS, BYTES)
    def check(text: str, data: bytes) -> None:
        for each in (text, literals + text):
            assert _ways(small, each, data) == _ways(whole, each, data)

    check()


def test_short_texts_of_a_rank_file(cl100k_ranks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small, whole = _both(lambda: Tokenizer.from_tiktoken(cl100k_ranks, "cl100k_base"), monkeypatch)

    @settings(max_examples=50)
    @given(TEXTS, BYTES)
    def check(text: str, data: bytes) -> None:
        assert _ways(small, text, data) == _ways(whole, text, data)

    check()


def test_the_whole_model_is_built_once_and_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[int] = []
    build = bpe.BPE._build
    monkeypatch.setattr(
        bpe.BPE, "_build", lambda self, vocab, merges: built.append(len(vocab)) or build(self, vocab, merges)
    )
    tokenizer = Tokenizer.from_gguf(SMALL["smollm"]())
    tokenizer.encode("short")
    assert built[0] < 50
    tokenizer.encode(LONG)
    tokenizer.encode("short")
    assert built[1:] == [tokenizer.vocab_size]

    short_ones = Tokenizer.from_gguf(SMALL["smollm"]())
    built.clear()
    for _ in range(50):
        short_ones.encode("short")
    assert built[-1] == short_ones.vocab_size and len(built) < 10
