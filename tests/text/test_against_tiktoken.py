"""tiktoken itself as the oracle, on the same rank files."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st
from text.strings import BYTES, TEXTS
from tiktoken_ext import openai_public

from glassloop.text.tokenizer import Tokenizer


@pytest.fixture(scope="module", params=["cl100k", "o200k"])
def pair(request: pytest.FixtureRequest, monkeypatch_module):
    path: Path = request.getfixturevalue(f"{request.param}_ranks")
    lines = [line.split() for line in path.read_bytes().splitlines()]
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    monkeypatch_module.setattr(openai_public, "load_tiktoken_bpe", lambda *_, **__: ranks)
    theirs = tiktoken.Encoding(**getattr(openai_public, f"{request.param}_base")())
    return request.getfixturevalue(request.param), theirs


@pytest.fixture(scope="module")
def monkeypatch_module():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


def test_same_ids_as_tiktoken(pair) -> None:
    ours, theirs = pair

    @settings(max_examples=400)
    @given(st.lists(TEXTS, max_size=8))
    def check(texts: list[str]) -> None:
        for text in texts:
            assert ours.encode(text) == theirs.encode(text, allowed_special="all")
            assert ours.encode(text, parse_special=False) == theirs.encode(text, disallowed_special=())

    check()


def test_same_tokens_as_tiktoken(pair) -> None:
    ours, theirs = pair
    assert ours.vocab_size == theirs.n_vocab
    assert {ours.token_bytes(i) for i in ours.special_ids} == {s.encode() for s in theirs.special_tokens_set}
    for data in theirs.token_byte_values()[::7]:
        token_id = theirs.encode_single_token(data)
        assert ours.token_bytes(token_id) == data
    assert ours.eos_ids == (theirs.eot_token,)


def test_any_bytes_decode_as_tiktoken_decodes_them(pair) -> None:
    ours, theirs = pair

    @settings(max_examples=300)
    @given(BYTES)
    def check(data: bytes) -> None:
        assert theirs.decode_bytes(ours.encode_bytes(data)) == data

    check()


def test_a_known_sentence(cl100k: Tokenizer) -> None:
    ids = cl100k.encode("How do transformers work?")
    assert [cl100k.decode([i]) for i in ids] == ["How", " do", " transformers", " work", "?"]
    assert ids == [4438, 656, 87970, 990, 30]


def test_a_whole_word_is_its_token_even_if_nothing_merges_into_it(tmp_path: Path) -> None:
    tokens = [*(bytes([b]) for b in range(256)), b"bc", b"abc", b"xyz", b" xyzw"]
    path = tmp_path / "ranks"
    path.write_text("".join(f"{base64.b64encode(t).decode()} {i}\n" for i, t in enumerate(tokens)))
    ours = Tokenizer.from_tiktoken(path, "cl100k_base")
    ranks = {token: i for i, token in enumerate(tokens)}
    pattern = openai_public.cl100k_base.__globals__["r50k_pat_str"]  # any that keeps letters together
    theirs = tiktoken.Encoding("test", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    for text in ("abc", "xyz", " xyzw", "xyz abc", "xyzabc", "aabc", "xyzw"):
        assert ours.encode(text) == theirs.encode(text)
    assert ours.encode("xyz") == [258] and len(ours.encode("xyzw")) == 4
