"""Makes a tokenizer from text: byte-level BPE, trained by the `tokenizers` library, or one token for each
character. Either is written as a folder that Glassloop and transformers read.

Both know `<|endoftext|>`, which ends a document. A character tokenizer is a byte-level BPE too: its merges
join the bytes of a character, and no others.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from glassloop.errors import GlassloopError
from glassloop.text.alphabet import BYTE_CHARACTERS, to_alphabet
from glassloop.train.sources import find_files, read_documents
from glassloop.util.check import check_count

END = "<|endoftext|>"
_MOST_CHARACTERS = 100_000


def train_bpe(data: Sequence[str | Path], folder: Path, vocab_size: int = 8192) -> Path:
    """Trains a BPE of `vocab_size` tokens and writes it to a folder. Words are cut as GPT-2 cuts them."""
    from tokenizers import Tokenizer, models, trainers

    from glassloop.text.pretokenizers import GPT2

    check_count("vocab_size", vocab_size, len(BYTE_CHARACTERS) + 1, 1 << 20)
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = GPT2.build()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END],
        initial_alphabet=sorted(BYTE_CHARACTERS),
        show_progress=False,
    )
    backend.train_from_iterator(_texts(data), trainer)
    return _write(backend, folder)


def train_characters(data: Sequence[str | Path], folder: Path) -> Path:
    """Writes a tokenizer with one token for each character of the data."""
    from tokenizers import Tokenizer, models

    from glassloop.text.pretokenizers import GPT2

    characters: set[str] = set()
    for text in _texts(data):
        characters |= set(text)
        if len(characters) > _MOST_CHARACTERS:
            raise GlassloopError.about("data", f"has more than {_MOST_CHARACTERS} different characters")
    vocab: dict[str, int] = {END: 0}
    merges: dict[tuple[str, str], None] = {}
    for character in sorted(characters):
        spelled = to_alphabet(character.encode())
        for piece in (*spelled, spelled):
            vocab.setdefault(piece, len(vocab))
        for size in range(1, len(spelled)):
            merges[spelled[:size], spelled[size]] = None
            vocab.setdefault(spelled[: size + 1], len(vocab))
    backend = Tokenizer(models.BPE(vocab=vocab, merges=list(merges)))
    backend.pre_tokenizer = GPT2.build()
    return _write(backend, folder)


def _texts(data: Sequence[str | Path]) -> Iterator[str]:
    """Yields all text of files and folders."""
    for document in read_documents(find_files(data)):
        yield from document.pieces
        if document.completion is not None:
            yield document.completion
        for message in document.messages or ():
            if isinstance(message.get("content"), str):
                yield message["content"]


def _write(backend: Any, folder: Path) -> Path:
    from tokenizers import AddedToken, decoders

    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(END, special=True, normalized=False)])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(backend.to_str(pretty=True), encoding="utf-8")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "add_bos_token": False,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    return folder
