"""Data: what is read, how it is packed, and how bad data is refused."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from train.small import TEXT

from glassloop.text.alphabet import BYTE_CHARACTERS, to_alphabet
from glassloop.text.tokenizer import Tokenizer
from glassloop.train.batches import (
    IGNORED,
    Batches,
    Cursor,
    Epoch,
    document_cuts,
    order,
    split_validation,
    stack,
)
from glassloop.train.new_tokenizer import END, train_bpe, train_characters
from glassloop.train.prepare import prepare_tokens
from glassloop.train.sources import find_files, read_documents
from glassloop.train.token_files import DataError, TokenFiles, TokenWriter

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def chat_tokenizer(tmp_path_factory) -> Tokenizer:
    """A BPE with the tokens and the template of ChatML."""
    from tokenizers import Tokenizer as Backend

    folder = tmp_path_factory.mktemp("chat")
    text = folder / "text.txt"
    text.write_text("Tell me a story about the cat. It was a dark night.\n" * 3)
    train_bpe([text], folder, 300)
    backend = Backend.from_file(str(folder / "tokenizer.json"))
    backend.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    backend.save(str(folder / "tokenizer.json"))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config |= {"eos_token": "<|im_end|>", "chat_template": CHATML}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return Tokenizer.from_json_folder(folder)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("characters")
    (folder / "text.txt").write_text("abcdefgh \n", encoding="utf-8")
    return Tokenizer.from_json_folder(train_characters([folder / "text.txt"], folder / "made"))


def _lines(path: Path, *values: object) -> Path:
    path.write_text("".join(json.dumps(value) + "\n" for value in values), encoding="utf-8")
    return path


# ── sources ────────────────────────────────────────────────────────────────────────────────────────────────


def test_text_in_pieces_is_the_whole_text(tmp_path, monkeypatch):
    monkeypatch.setattr("glassloop.train.sources._PIECE", 7)
    text = "first line\nsecond läne, longer €€€\n\nlast, without an end"
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    (document,) = read_documents([tmp_path / "a.txt"])
    pieces = list(document.pieces)
    assert "".join(pieces) == text and len(pieces) > 2


def test_folders_and_compressed_files(tmp_path):
    (tmp_path / "b.txt").write_text("b")
    (tmp_path / "deep").mkdir()
    _lines(tmp_path / "deep" / "a.jsonl", {"text": "one"}, {"text": "two"})
    with gzip.open(tmp_path / "c.jsonl.gz", "wt") as file:
        file.write('{"text": "packed"}\n\n')
    (tmp_path / "ignored.png").write_bytes(b"\x89PNG")
    files = find_files([tmp_path])
    assert [path.name for path in files] == ["b.txt", "c.jsonl.gz", "a.jsonl"]
    texts = ["".join(document.pieces) for document in read_documents(files)]
    assert texts == ["b", "packed", "one", "two"]


BAD = {
    "empty.txt": (b"", "empty.txt: is empty"),
    "empty.jsonl": (b"\n \n", "empty.jsonl: is empty"),
    "broken.jsonl": (b'{"text": "fine"}\n{"text": "no end\n', "broken.jsonl, line 2: is not JSON"),
    "bytes.txt": (b"fine\nnot \xff fine", "bytes.txt: byte 9 is not UTF-8"),
    "cut.txt": ("half a euro €".encode()[:-1], "cut.txt: byte 12 is not UTF-8"),
    "bytes.jsonl": (b'{"text": "\xff"}', "bytes.jsonl, line 1: byte 10 is not UTF-8"),
    "list.jsonl": (b'["text"]', "list.jsonl, line 1: is"),
    "field.jsonl": (b'{"body": "text"}', "line 1: has none of text, messages, prompt"),
    "number.jsonl": (b'{"text": 3}', "line 1: text is 3; a text is expected"),
    "half.jsonl": (b'{"prompt": "a"}', "line 1: completion is"),
    "chat.jsonl": (b'{"messages": [{"role": "user"}]}', r"line 1: messages\[0\].content must be text"),
    "silent.jsonl": (b'{"messages": [{"role": "user", "content": "x"}]}', "line 1: messages has no answer"),
    "deep.jsonl": (b"[" * 100_000, "deep.jsonl, line 1: is not JSON"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_data_is_refused_with_its_place(name, tmp_path, chat_tokenizer):
    data, message = BAD[name]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match=message):
        prepare_tokens([tmp_path / name], tmp_path / "tokens", chat_tokenizer)
    assert not (tmp_path / "tokens").exists()


def test_missing_and_useless_paths_are_refused(tmp_path):
    with pytest.raises(DataError, match="there is no such file"):
        find_files([tmp_path / "nothing"])
    with pytest.raises(DataError, match="has no file that ends in"):
        find_files([tmp_path])


def test_a_document_longer_than_the_context_is_refused_with_its_place(tmp_path, tokenizer):
    path = _lines(tmp_path / "a.jsonl", {"text": "abc"}, {"text": "abcdefgh"})
    with pytest.raises(DataError, match=r"a\.jsonl, line 2: has 9 tokens; at most 8 fit"):
        prepare_tokens([path], tmp_path / "tokens", tokenizer, longest=8)


def test_a_character_without_a_token_is_refused_with_its_place(tmp_path, tokenizer):
    path = _lines(tmp_path / "a.jsonl", {"text": "abc"}, {"text": "abz"})
    with pytest.raises(DataError, match=r"a\.jsonl, line 2: .*no token for the byte 0x7A"):
        prepare_tokens([path], tmp_path / "tokens", tokenizer)


def test_loss_of_a_chat_counts_the_answers(tmp_path, chat_tokenizer):
    messages = [
        {"role": "user", "content": "Tell me a story"},
        {"role": "assistant", "content": "It was a dark night."},
        {"role": "user", "content": "about the cat <|im_end|>"},
        {"role": "assistant", "content": "a cat"},
    ]
    path = _lines(tmp_path / "chat.jsonl", {"messages": messages})
    files = prepare_tokens([path], tmp_path / "tokens", chat_tokenizer)
    ids, learned = files.read(0, files.tokens)
    assert ids.tolist() == chat_tokenizer.encode_chat(messages, add_generation_prompt=False)
    pieces = [chat_tokenizer.piece(int(token)) for token in ids]
    runs = "".join(piece if keep else "·" for piece, keep in zip(pieces, learned, strict=True))
    assert [part for part in runs.split("·") if part] == ["It was a dark night.<|im_end|>", "a cat<|im_end|>"]


def test_loss_of_a_completion_counts_no_prompt(tmp_path, tokenizer):
    path = _lines(tmp_path / "a.jsonl", {"prompt": "abc", "completion": "de"})
    files = prepare_tokens([path], tmp_path / "tokens", tokenizer)
    ids, learned = files.read(0, files.tokens)
    assert tokenizer.decode(ids.tolist()) == "abcde<|endoftext|>"
    assert learned.tolist() == [False] * 3 + [True] * 3


# ── token files ────────────────────────────────────────────────────────────────────────────────────────────


def _write(folder: Path, documents: list[list[int]], shard: int = 10) -> TokenFiles:
    writer = TokenWriter(folder, 1000, shard)
    for ids in documents:
        writer.add(ids)
    return writer.finish()


def test_token_files_give_back_every_document(tmp_path):
    documents = [[1, 2, 3], [4] * 12, [5, 6], [7], [8, 9, 999]]
    files = _write(tmp_path / "tokens", documents)
    assert len(files.shards) > 1
    begins = [0, *files.ends[:-1].tolist()]
    found = [files.read(a, b)[0].tolist() for a, b in zip(begins, files.ends.tolist(), strict=True)]
    assert found == documents
    files.verify()


def test_damaged_token_files_are_refused_in_words(tmp_path):
    files = _write(tmp_path / "tokens", [[1, 2, 3], [4, 5]])
    manifest = tmp_path / "tokens" / "manifest.json"
    tokens = tmp_path / "tokens" / "tokens-00000.npy"
    good, raw = manifest.read_text(), tokens.read_bytes()
    np.save(tokens, np.array([1, 2, 3, 4, 6], np.uint16))
    with pytest.raises(DataError, match="another SHA-256"):
        files.verify()
    for data, message in (
        (np.array([1, 2, 3, 4], np.uint16), "must rise to the number of tokens"),
        (np.array([1, 2, 3, 4, 1000], np.uint16), "has token id 1000"),
        (np.array([1, 2, 3, 4, 5], np.int64), "needs tokens"),
        (np.zeros((5, 2), np.uint16), "has shape"),
        (np.array([{}], object), "cannot be read"),
    ):
        np.save(tokens, data)
        with pytest.raises(DataError, match=message):
            TokenFiles(tmp_path / "tokens")
    tokens.write_bytes(raw)
    values = json.loads(good)
    for change, message in (
        ({"version": 2}, "version is 2"),
        ({"format": "other"}, "is not the manifest"),
        ({"shards": []}, "shards must be a list"),
        ({"vocab_size": -1}, "vocab_size is -1"),
        ({"shards": [{"tokens": {"file": "../x.npy", "sha256": ""}}]}, "must be the name of an .npy file"),
    ):
        manifest.write_text(json.dumps(values | change))
        with pytest.raises(DataError, match=message):
            TokenFiles(tmp_path / "tokens")
    manifest.write_text("{")
    with pytest.raises(DataError, match="is not JSON"):
        TokenFiles(tmp_path / "tokens")


# ── packing ────────────────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=12),
    length=st.integers(2, 16),
    packing=st.sampled_from(["stream", "whole"]),
    seed=st.integers(0, 5),
    epoch=st.integers(0, 2),
)
def test_every_token_is_in_an_epoch_once_with_its_own_next_token(
    tmp_path_factory, sizes, length, packing, seed, epoch
):
    if packing == "whole":
        sizes = [min(size, length) for size in sizes]
    starts = np.cumsum([0, *sizes])
    documents = [list(range(a, b)) for a, b in pairwise(starts)]  # all different
    files = _write(tmp_path_factory.mktemp("tokens") / "tokens", [list(map(int, d)) for d in documents], 50)
    ranges, _ = split_validation(files, 0.0)
    made = Epoch(files, ranges, length, packing, seed, epoch)
    seen, learned = [], []
    ends = {document[-1] for document in documents}
    for place in range(len(made)):
        tokens, targets, positions, numbers = made.sequence(place)
        for row in range(length):
            if numbers[row] < 0:
                assert targets[row] == IGNORED
                continue
            seen.append(int(tokens[row]))
            if targets[row] != IGNORED:
                assert targets[row] == tokens[row] + 1
                learned.append(int(tokens[row]))
            first = int(np.flatnonzero(numbers == numbers[row])[0])
            assert positions[row] == row - first
            assert tokens[row] - tokens[first] == row - first  # one document has one number
    assert sorted(seen) == list(range(starts[-1]))
    assert sorted(learned) == [token for token in range(starts[-1]) if token not in ends]


def test_order_is_a_pure_function_of_seed_epoch_and_index():
    assert sorted(order(1, 0, 0, 100).tolist()) == list(range(100))
    assert order(1, 0, 0, 8).tolist() == order(1, 0, 0, 8).tolist() != order(1, 1, 0, 8).tolist()
    # An index keeps its hash, whatever the number of others is.
    few, many = order(3, 2, 1, 20).tolist(), order(3, 2, 1, 50).tolist()
    assert [index for index in many if index < 20] == few
    assert order(7, 3, 1, 6).tolist() == [1, 4, 5, 3, 2, 0]  # recorded runs depend on it


def test_a_cursor_goes_through_the_epochs(tmp_path):
    files = _write(tmp_path / "tokens", [list(range(20))])
    batches = Batches(files, [(0, 20)], 5, seed=0)
    one, cursor = batches.take(Cursor(0, 0), 3)
    two, _ = batches.take(cursor, 4)
    both, _ = Batches(files, [(0, 20)], 5, seed=0).take(Cursor(0, 0), 7)
    assert np.array_equal(np.concatenate([one.tokens, two.tokens]), both.tokens)


def test_without_borders_a_sequence_is_one_document():
    rows = [(np.arange(4), np.arange(4), np.array([0, 1, 0, 1]), np.array([0, 0, 1, 1]))]
    assert stack(rows).documents is not None
    plain = stack(rows, borders=False)
    assert plain.documents is None and plain.positions.tolist() == [[0, 1, 2, 3]]


def test_validation_is_the_last_share(tmp_path):
    files = _write(tmp_path / "one", [list(range(100))], 1000)
    assert split_validation(files, 0.1) == ([(0, 90)], [(90, 100)])
    files = _write(tmp_path / "many", [[1] * 10] * 10, 1000)
    training, validation = split_validation(files, 0.25)
    assert training == [(i, i + 10) for i in range(0, 80, 10)] and validation == [(80, 90), (90, 100)]


# ── tokenizers ─────────────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=30, deadline=None)
@given(text=st.text(st.characters(codec="utf-8"), min_size=1, max_size=40))
def test_characters_have_one_token_each(tmp_path_factory, text):
    folder = tmp_path_factory.mktemp("words")
    (folder / "text.txt").write_bytes(text.encode())
    made = Tokenizer.from_json_folder(train_characters([folder / "text.txt"], folder / "made"))
    ids = made.encode(text, add_special=False, parse_special=False)
    assert [made.token_bytes(i).decode() for i in ids] == list(text)
    assert made.decode_bytes(ids) == text.encode()


def test_bpe_is_the_trainer_of_tokenizers(tmp_path):
    """Its merges are those of `ByteLevelBPETokenizer`, and transformers reads the files."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import AutoTokenizer

    path = tmp_path / "text.txt"
    path.write_text("the cat sat on the mat, the cat's hat: 12 cats; ünïcödé \n\n" * 20, encoding="utf-8")
    folder = train_bpe([path], tmp_path / "made", 320)
    theirs = ByteLevelBPETokenizer()
    theirs.train([str(path)], vocab_size=320, special_tokens=["<|endoftext|>"], show_progress=False)
    ours = Tokenizer.from_json_folder(folder)
    text = "the cat's mat 12 ünï\n\n  hat"
    assert ours.encode(text) == theirs.encode(text).ids
    auto = AutoTokenizer.from_pretrained(folder)
    assert auto.encode(text) == ours.encode(text)
    assert auto.eos_token_id == ours.eos_ids[0]


@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=6), min_size=1, max_size=4))
def test_cuts_are_where_documents_begin(sizes):
    length = max(map(sum, sizes))
    documents = np.full((len(sizes), length), -1)
    for row, each in zip(documents, sizes, strict=True):
        row[: sum(each)] = np.repeat(np.arange(len(each)), each)
    cuts = document_cuts(documents)
    assert cuts[0] == 0 and cuts[-1] == documents.size and (np.diff(cuts) >= 0).all()
    numbers = documents + np.arange(len(sizes))[:, None] * 100  # one number for each document of the batch
    pieces = [numbers.reshape(-1)[a:b] for a, b in pairwise(cuts.tolist()) if a < b]
    assert all((piece == piece[0]).all() for piece in pieces)
    assert len({int(piece[0]) for piece in pieces}) == len(pieces)


# GPT-2's words, for text of ASCII and Latin letters.
WORDS = re.compile(r"'(?:s|t|re|ve|m|ll|d)| ?[^\W\d_]+| ?\d+| ?(?:[^\w\s]|_)+|\s+(?!\S)|\s+")


def _merges_by_definition(text: str, size: int) -> list[tuple[str, str]]:
    """Byte-level BPE as its definition says: merge the most frequent pair; of equal ones, that of the tokens
    that came first."""
    alphabet = sorted(BYTE_CHARACTERS)
    numbers = {END: 0, **{piece: at for at, piece in enumerate(alphabet, 1)}}
    words = Counter(to_alphabet(word.encode()) for word in WORDS.findall(text))
    split = {word: list(word) for word in words}
    merges: list[tuple[str, str]] = []
    while len(numbers) < size:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, count in words.items():
            for pair in pairwise(split[word]):
                pairs[pair] += count
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], numbers[pair[0]], numbers[pair[1]]))
        merges.append(best)
        numbers.setdefault("".join(best), len(numbers))
        for word, pieces in split.items():
            at, joined = 0, []
            while at < len(pieces):
                step = 2 if tuple(pieces[at : at + 2]) == best else 1
                joined.append("".join(pieces[at : at + step]))
                at += step
            split[word] = joined
    return merges


def test_bpe_has_the_merges_of_its_definition_and_of_the_library(tmp_path):
    from tokenizers import ByteLevelBPETokenizer

    text = TEXT + " ".join(f"The {n}th café isn't naïve; it's {n * n} miles away.\n" for n in range(150))
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    made = json.loads(
        (train_bpe([tmp_path / "text.txt"], tmp_path / "bpe", 400) / "tokenizer.json").read_text()
    )
    found = [tuple(pair) for pair in made["model"]["merges"]]
    assert len(found) > 100 and found == _merges_by_definition(text, 400)[: len(found)]
    library = ByteLevelBPETokenizer()
    library.train_from_iterator([text], vocab_size=400, min_frequency=0, special_tokens=[END])
    theirs = json.loads(library.to_str())["model"]["merges"]
    assert found == [tuple(pair) for pair in theirs]
