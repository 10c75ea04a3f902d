"""Text → token files: encodes documents with a tokenizer and writes them as shards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from glassloop.errors import TextError
from glassloop.text.tokenizer import Tokenizer
from glassloop.train.sources import Document, describe, find_files, read_documents
from glassloop.train.token_files import DataError, TokenFiles, TokenWriter

if TYPE_CHECKING:
    from collections.abc import Iterator

_SECONDS = 2.0  # between two reports
Encoded = tuple[list[int] | NDArray[np.uint32], list[bool] | None]


def prepare_tokens(
    data: Sequence[str | Path],
    folder: Path,
    tokenizer: Tokenizer,
    *,
    vocab_size: int | None = None,
    longest: int | None = None,
    remedy: str = "",
    tokenizer_files: Mapping[str, bytes] | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> TokenFiles:
    """Encodes files and folders, and writes token files. A document of more than `longest` tokens is an
    error, which ends with `remedy`. `tokenizer_files` are written beside them, so that training needs nothing
    else."""
    files = find_files(data)
    writer = TokenWriter(folder, vocab_size or tokenizer.vocab_size)
    reported = _ReportedDocuments(report)
    for document in read_documents(files):
        try:
            ids, learned = encode(document._replace(pieces=reported.while_read(document.pieces)), tokenizer)
        except TextError as error:
            raise DataError(f"{document.where}: {error}") from None
        if longest is not None and len(ids) > longest:
            raise DataError(
                f"{document.where}: has {len(ids)} tokens; at most {longest} fit into a sequence{remedy}"
            )
        writer.add(ids, learned)
        reported.documents += 1
        reported.now_and_then()
    eos = tokenizer.eos_ids[0] if tokenizer.eos_ids else None
    return writer.finish(
        sources=[describe(path) for path in files], tokenizer=tokenizer_files or {}, eos_id=eos
    )


class _ReportedDocuments:
    """Reports how much has been read, when a few seconds have passed since the last time."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._last = monotonic()
        self._characters = self.documents = 0

    def while_read(self, pieces: Iterator[str] | Sequence[str]) -> Iterator[str]:
        """Yields the pieces of a text, which may be long."""
        for piece in pieces:
            yield piece
            self._characters += len(piece)
            self.now_and_then()

    def now_and_then(self) -> None:
        now = monotonic()
        if now - self._last >= _SECONDS:
            self._last = now
            texts = f", {self._characters:,} characters of text" if self._characters else ""
            self._report(f"encoding: {self.documents:,} documents{texts}")


def encode(document: Document, tokenizer: Tokenizer) -> Encoded:
    """Returns the tokens of a document, and for each whether the loss counts it (None: all)."""
    if document.messages is not None:
        return _encode_chat(document, tokenizer)
    before = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
    text = _encode_pieces(document.pieces, tokenizer)
    end = list(tokenizer.eos_ids[:1])
    if document.completion is None:
        return np.concatenate([np.array(before, np.uint32), text, np.array(end, np.uint32)]), None
    prompt = [*before, *text.tolist()]
    answer = tokenizer.encode(document.completion, add_special=False, parse_special=False)
    return [*prompt, *answer, *end], [False] * len(prompt) + [True] * (len(answer) + len(end))


def _encode_pieces(pieces: Iterator[str] | Sequence[str], tokenizer: Tokenizer) -> NDArray[np.uint32]:
    """Returns the tokens of a text. They are kept as 32-bit numbers: a text may be long."""
    encode = partial(tokenizer.encode, add_special=False, parse_special=False)
    encoded = [np.array(encode(piece), np.uint32) for piece in pieces]
    return np.concatenate(encoded) if encoded else np.zeros(0, np.uint32)


def _encode_chat(document: Document, tokenizer: Tokenizer) -> Encoded:
    """Renders a chat with the model's template. The loss counts what the assistant says, up to and with the
    token that ends its turn."""
    messages = document.messages
    assert messages is not None
    ids = tokenizer.encode_chat(messages, add_generation_prompt=False)
    learned = [False] * len(ids)
    for place, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = tokenizer.encode_chat(messages[:place], add_generation_prompt=True) if place else []
        after = tokenizer.encode_chat(messages[: place + 1], add_generation_prompt=False)
        if ids[: len(before)] != before or ids[: len(after)] != after:
            raise DataError(
                f"{document.where}: the chat template writes messages[{place}] in another way when more"
                " messages follow, so its tokens cannot be found"
            )
        ends = [at for at in range(len(before), len(after)) if ids[at] in tokenizer.eos_ids]
        stop = ends[0] + 1 if ends else len(after)
        learned[len(before) : stop] = [True] * (stop - len(before))
    return ids, learned
