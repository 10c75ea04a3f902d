"""Damaged vocabularies end in one line that names the file and the field."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text.small import (
    LLAMA3,
    QWEN35,
    byte_level,
    byte_level_metadata,
    sentencepiece_metadata,
    write_folder,
)
from tokenizers import Regex, pre_tokenizers

from glassloop.errors import TextError
from glassloop.text.pipeline import Pipeline, Ready
from glassloop.text.pretokenizers import CL100K, GGUF_RULES, O200K
from glassloop.text.readers.split_patterns import complaint
from glassloop.text.tokenizer import Tokenizer

KEY = "tokenizer.ggml."
BYTE_RANKS = [f"{base64.b64encode(bytes([b])).decode()} {b}" for b in range(256)]


def _refused(metadata: dict[str, Any], complaint: str) -> None:
    with pytest.raises(TextError, match=complaint) as caught:
        Tokenizer.from_gguf(metadata, "m.gguf")
    assert str(caught.value).startswith("m.gguf: ") and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value", "complaint"),
    [
        ("model", None, "tokenizer.ggml.model is missing"),
        ("model", 7, "tokenizer.ggml.model is a int; text is expected"),
        ("model", "t5", "tokenizer.ggml.model is 't5'; 'gpt2', 'gemma4', 'llama' and 'bert' are read"),
        ("pre", "nonsense", r"tokenizer.ggml.pre is 'nonsense', which is none of the \d+ known here"),
        ("tokens", None, "tokenizer.ggml.tokens is missing"),
        ("tokens", [], "tokenizer.ggml.tokens is empty"),
        ("tokens", ["a", 3], "tokenizer.ggml.tokens is not a list of texts"),
        ("tokens", "abc", "tokenizer.ggml.tokens is not a list of texts"),
        ("token_type", [1, 2], r"token_type has 2 values; one for each of the \d+ tokens"),
        ("token_type", "x", "token_type is not a list of numbers"),
        ("merges", None, "tokenizer.ggml.merges is missing"),
        ("merges", ["a b c"], r"merges\[0\] is 'a b c'; two tokens and a space"),
        ("bos_token_id", 10**6, r"bos_token_id is 1000000, outside the vocabulary of \d+ tokens"),
        ("eos_token_id", -1, "eos_token_id is -1, outside"),
        ("eot_token_id", "x", "eot_token_id is 'x'; a token id is expected"),
        ("add_bos_token", "yes", "add_bos_token is 'yes'; true or false"),
    ],
)
def test_byte_level_fields(field: str, value: Any, complaint: str) -> None:
    metadata = byte_level_metadata("gpt-2") | {KEY + field: value}
    if value is None:
        del metadata[KEY + field]
    _refused(metadata, complaint)


def test_merges_of_unknown_tokens_are_refused_when_the_whole_model_is_built() -> None:
    tokenizer = Tokenizer.from_gguf(byte_level_metadata("gpt-2") | {KEY + "merges": ["nope nada"]}, "m.gguf")
    with pytest.raises(TextError, match=r"^m: the merges do not fit the tokens: .*nope"):
        tokenizer.encode("a long text " * 1000)


@pytest.mark.parametrize(
    ("field", "value", "complaint"),
    [
        ("scores", None, "tokenizer.ggml.scores is missing"),
        ("scores", [0.5], "scores has 1 values"),
        ("scores", np.full(2000, np.nan), "scores has"),
        ("add_space_prefix", 1, "add_space_prefix is 1; true or false"),
    ],
)
def test_sentencepiece_fields(field: str, value: Any, complaint: str) -> None:
    metadata = sentencepiece_metadata(False) | {KEY + field: value}
    if value is None:
        del metadata[KEY + field]
    _refused(metadata, complaint)
    nan = np.array(sentencepiece_metadata(False)[KEY + "scores"])
    nan[5] = np.nan
    _refused(sentencepiece_metadata(False) | {KEY + "scores": nan}, "scores has a value that is not a number")


def test_kinds_out_of_range_and_endless_tokens() -> None:
    metadata = sentencepiece_metadata(False)
    types = [*metadata[KEY + "token_type"]]
    _refused(metadata | {KEY + "token_type": [9, *types[1:]]}, "token_type has the value 9; 1 to 6")
    _refused(metadata | {KEY + "token_type": [1.5, *types[1:]]}, "token_type is not a list of whole numbers")
    tokens = [*metadata[KEY + "tokens"]]
    tokens[300] = "a" * 100_000
    _refused(metadata | {KEY + "tokens": tokens}, r"tokens\[300\] has 100000 characters; at most 1024")


@pytest.mark.parametrize(
    "build", [lambda: byte_level_metadata("qwen2"), lambda: sentencepiece_metadata(True)]
)
def test_any_damage_is_an_error_of_ours_or_still_a_tokenizer(build) -> None:
    whole = build()
    count = len(whole[KEY + "tokens"])
    junk = st.one_of(
        st.none(), st.booleans(), st.integers(-5, 10**9), st.floats(), st.text(max_size=5),
        st.binary(max_size=5), st.lists(st.integers(-1, 8), max_size=3),
        st.lists(st.text(max_size=3), max_size=3),
        st.just({}), st.just(np.zeros((count, 2))), st.just(np.zeros(count)), st.just(["a"] * count),
        st.just([""] * count), st.just(["\udcff"] * count), st.just([1] * count), st.just([3] * count),
        st.just([4] * count), st.just([6] * count), st.just(np.array([0.5] * count)), st.just([[1]] * count),
    )  # fmt: skip

    @settings(max_examples=250)
    @given(
        st.dictionaries(st.sampled_from([*whole, "tokenizer.chat_template"]), junk, min_size=1, max_size=3)
    )
    def check(damage: dict[str, Any]) -> None:
        try:
            tokenizer = Tokenizer.from_gguf({**whole, **damage}, "m.gguf")
            ids = tokenizer.encode("ban anna 1 <s> é <|im_end|>\xff")
            assert all(0 <= i < tokenizer.vocab_size for i in ids)
            tokenizer.decode(range(tokenizer.vocab_size))
        except TextError as error:
            assert "\n" not in str(error)

    check()


def test_single_elements_may_be_wrong_too() -> None:
    whole = byte_level_metadata("gpt-2")

    @settings(max_examples=150)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        metadata = {key: [*value] if isinstance(value, list) else value for key, value in whole.items()}
        for _ in range(data.draw(st.integers(1, 4))):
            key = data.draw(st.sampled_from([KEY + "tokens", KEY + "merges", KEY + "token_type"]))
            place = data.draw(st.integers(0, len(metadata[key]) - 1))
            wrong: st.SearchStrategy[Any] = (
                st.integers(-1, 8) if key.endswith("type") else st.text(max_size=3)
            )
            metadata[key][place] = data.draw(wrong)
        try:
            tokenizer = Tokenizer.from_gguf(metadata)
        except TextError:
            return
        text = "the quick brown fox"
        try:
            assert tokenizer.decode(tokenizer.encode(text)) == text
        except TextError as error:
            assert "no token for the byte" in str(error) or "the merges do not fit" in str(error)

    check()


def test_two_tokens_with_one_text_both_decode() -> None:
    metadata = byte_level_metadata("gpt-2")
    tokens, merges = [*metadata[KEY + "tokens"]], metadata[KEY + "merges"]
    first = tokens.index("in")
    unused = {*tokens} - {part for merge in merges for part in (merge.replace(" ", ""), *merge.split(" "))}
    twin = max(tokens.index(token) for token in unused if len(token) > 1)
    tokens[twin] = "in"
    types = [*metadata[KEY + "token_type"]]
    types[twin] = 1
    tokenizer = Tokenizer.from_gguf(metadata | {KEY + "tokens": tokens, KEY + "token_type": types})
    assert twin > first and tokenizer.token_bytes(first) == tokenizer.token_bytes(twin) == b"in"
    assert tokenizer.encode("in") == [twin]  # the last, as llama.cpp has it


def test_pieces_that_are_not_text_keep_their_bytes() -> None:
    metadata = sentencepiece_metadata(False)
    tokens = [*metadata[KEY + "tokens"], b"\xf0\x9f".decode("utf-8", "surrogateescape")]
    tokenizer = Tokenizer.from_gguf(
        metadata
        | {
            KEY + "tokens": tokens,
            KEY + "scores": [*metadata[KEY + "scores"], 0.0],
            KEY + "token_type": [*metadata[KEY + "token_type"], 1],
        }
    )
    assert tokenizer.token_bytes(len(tokens) - 1) == b"\xf0\x9f"
    assert tokenizer.piece(len(tokens) - 1) == "<0xF0><0x9F>"
    assert tokenizer.decode(tokenizer.encode("🎈", add_special=False)) == "🎈"


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ([], "holds no ranks"),
        (["!!!! 0"], "line 1: '!!!!' is not base64"),
        (["YQ=="], "line 1: '' is not a rank"),
        (["YQ== x"], "line 1: 'x' is not a rank"),
        (["YQ== 99999999"], "line 1: '99999999' is not a rank"),
        ([*BYTE_RANKS, "YWI= 300"], "no token has rank 256, though others go up to 300"),
        ([*BYTE_RANKS, "YWI= 255"], "line 257: the rank appears twice"),
        ([*BYTE_RANKS, "YQ== 256"], "line 257: the token appears twice"),
        (BYTE_RANKS[1:], "no token has rank 0"),
        (BYTE_RANKS[:-1], "no token for the byte 0xFF"),
        ([*BYTE_RANKS, f"{base64.b64encode(b'a' * 5000).decode()} 256"], "line 257: a token of 5000 bytes"),
        ([*BYTE_RANKS, "YWI= 100257"], "rank 100257 is the id of a special token"),
    ],
)
def test_rank_files(lines: list[str], complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "x.tiktoken"
    path.write_text("\n".join(lines))
    with pytest.raises(TextError, match=complaint) as caught:
        Tokenizer.from_tiktoken(path, "cl100k_base")
    assert str(caught.value).startswith(f"{path}: ") and "\n" not in str(caught.value)


def test_rank_files_that_are_not_there_or_not_known(tmp_path: Path) -> None:
    with pytest.raises(TextError, match="cannot be read: No such file"):
        Tokenizer.from_tiktoken(tmp_path / "x", "cl100k_base")
    with pytest.raises(TextError, match=r"'klingon' is not a known encoding; known are .*cl100k_base"):
        Tokenizer.from_tiktoken(tmp_path / "x", "klingon")


@pytest.mark.parametrize(
    ("file", "content", "complaint"),
    [
        ("tokenizer.json", None, "tokenizer.json: cannot be read: No such file"),
        ("tokenizer.json", "{", "tokenizer.json: is not a tokenizer.json"),
        ("tokenizer.json", "[]", "tokenizer.json: is not a tokenizer.json"),
        ("tokenizer.json", "\xff", "tokenizer.json: is not a tokenizer.json"),
        ("tokenizer_config.json", "{", "tokenizer_config.json: is not JSON"),
        ("tokenizer_config.json", "[" * 100_000, "tokenizer_config.json: is not JSON"),
        ("tokenizer_config.json", "3", "tokenizer_config.json: is 3; an object is expected"),
        ("tokenizer_config.json", '{"eos_token": "<nope>"}', "eos_token is '<nope>', which is not a token"),
        ("tokenizer_config.json", '{"chat_template": 3}', "chat_template is a int; text or a list"),
        ("tokenizer_config.json", '{"chat_template": [3]}', r"chat_template\[0\] is not an object"),
        ("generation_config.json", '{"eos_token_id": [2, 999999]}', "eos_token_id is 999999; an id below"),
        ("generation_config.json", '{"eos_token_id": "x"}', "eos_token_id is 'x'; an id below"),
    ],
)
def test_json_folders(file: str, content: str | None, complaint: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path, byte_level("gpt-2"))
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_text(content, encoding="latin-1")
    with pytest.raises(TextError, match=complaint) as caught:
        Tokenizer.from_json_folder(folder)
    assert "\n" not in str(caught.value)


def test_json_vocabularies_of_other_kinds_are_refused(tmp_path: Path) -> None:
    state = json.loads(byte_level("gpt-2").to_str())
    state |= {
        "pre_tokenizer": {"type": "Whitespace"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(state))
    with pytest.raises(TextError, match=r"its components \(Whitespace, WordPiece\) belong to neither"):
        Tokenizer.from_json_folder(tmp_path)


# --- ids, expressions and names ---


@pytest.mark.parametrize("place", range(8))
def test_ids_outside_the_vocabulary(place: int) -> None:
    token = (-1, -5, 10**6, 2**31, 2**63, -(2**63), 10**5000, np.int64(-1))[place]
    tokenizer = Tokenizer.from_gguf(byte_level_metadata("gpt-2"), "/some/where/m.gguf")
    for call in (tokenizer.token_bytes, tokenizer.piece, lambda i: tokenizer.decode([i])):
        with pytest.raises(
            TextError, match=r"^(token id -?\d+|a token id of over 64 bits) is outside m, which has"
        ):
            call(token)


@pytest.mark.parametrize("token", [None, "1", 1.0, [1], b"1", [[[[[[]]]]]]])
def test_what_is_no_id(token: Any) -> None:
    tokenizer = Tokenizer.from_gguf(byte_level_metadata("gpt-2"))
    tokenizer.token_bytes(1)
    for call in (tokenizer.token_bytes, tokenizer.piece, lambda i: tokenizer.decode([i])):
        with pytest.raises(TextError, match=r"^a token id is expected, not "):
            call(token)


def test_errors_of_requests_name_no_folder(tmp_path: Path) -> None:
    source = (
        "{% if messages[0].content == 'x' %}{{ raise_exception('no x') }}{% else %}{{ a.b.c }}{% endif %}"
    )
    metadata = byte_level_metadata("gpt-2") | {"tokenizer.chat_template": source}
    folder = write_folder(tmp_path / "mine", byte_level("gpt-2"), chat_template=source)
    (tmp_path / "other").mkdir()
    other = write_folder(tmp_path / "other", byte_level("gpt-2"))
    (other / "chat_template.jinja").write_text(source)
    for tokenizer in (
        Tokenizer.from_gguf(metadata, str(tmp_path / "m.gguf")),
        Tokenizer.from_json_folder(folder),
        Tokenizer.from_json_folder(other),
    ):
        assert "/" not in tokenizer.name
        for call in (
            lambda t=tokenizer: t.encode_chat([{"role": "user", "content": "x"}]),
            lambda t=tokenizer: t.encode_chat([{"role": "user", "content": "y"}]),
            lambda t=tokenizer: t.encode("\ud800"),
            lambda t=tokenizer: t.decode([10**9]),
        ):
            with pytest.raises(TextError) as caught:
                call()
            assert "/" not in str(caught.value) and str(tmp_path) not in str(caught.value)


SAFE = [pattern for rule in (*GGUF_RULES.values(), CL100K, O200K) for pattern in rule.patterns] + [
    LLAMA3,
    QWEN35,
    r"\p{N}{1,3}(?=(?:\p{N}{3})*\b)",
    r" ?[^(\s|[.,!?…。，、।۔،])]+",
    r"[\p{Lu}\p{M}&&[^\p{Han}]]*[\p{Ll}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\s+$",
    r"[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))*((?=[\p{L}])([^A-Z]))+(?i:'s|'t)?",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*",
]
HOSTILE = [
    *("(a+)+$", "(a|aa)+$", r"(a*)*b\1c", "(a{0,9}){6}x|.", "(a{1,3}){2,}", "(?:a?){40}", "((a)+)+"),
    *("a?" * 30 + "a" * 30, "(?>(a+)+)b", "a*" * 9 + "b", "(?:(?:a|b)*c)*", "a+*+*", r"(?<n>a+)\k<n>"),
]


def test_expressions_of_real_tokenizers_are_run() -> None:
    assert [pattern for pattern in SAFE if complaint(pattern)] == []


@pytest.mark.parametrize("pattern", HOSTILE)
@pytest.mark.parametrize("place", ["pre_tokenizer", "normalizer"])
def test_expressions_that_can_take_forever_are_refused(pattern: str, place: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path, byte_level("gpt-2"))
    state = json.loads((folder / "tokenizer.json").read_text())
    part: dict[str, Any] = {"pattern": {"Regex": pattern}}
    if place == "normalizer":
        state["normalizer"] = part | {"type": "Replace", "content": "x"}
    else:
        split = part | {"type": "Split", "behavior": "Isolated", "invert": False}
        state["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, state["pre_tokenizer"]]}
    (folder / "tokenizer.json").write_text(json.dumps(state))
    with pytest.raises(TextError, match=r"tokenizer\.json: the expression .* can take forever"):
        Tokenizer.from_json_folder(folder)


def test_a_panic_of_the_library_is_an_error() -> None:
    """The engine of regular expressions gives up after ten million steps, by an exception that is none."""
    backend = type(byte_level("gpt-2")).from_str(byte_level("gpt-2").to_str())
    split = pre_tokenizers.Split(Regex("(a+)+$"), "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(use_regex=False)])
    parts = Tokenizer.from_gguf(byte_level_metadata("gpt-2"), "m.gguf")._parts
    tokenizer = Tokenizer(parts._replace(model=Ready(Pipeline(backend, backend, backend), " ")))
    with pytest.raises(TextError, match=r"^m cannot encode the text: .*retry-limit"):
        tokenizer.encode("a" * 100 + "b")
