"""Reads training data: text files, JSONL files and folders of both, one document at a time.

A text file is one document, given out in pieces so that it may be larger than the memory. A line of a JSONL
file is a document: `{"text": …}`, `{"messages": […]}` (a chat) or `{"prompt": …, "completion": …}`. Files may
be compressed (.gz, .xz). What is wrong is reported with the file and the line.
"""

from __future__ import annotations

import codecs
import gzip
import hashlib
import lzma
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from glassloop.errors import TextError
from glassloop.text.chat import check_messages
from glassloop.train.token_files import DataError
from glassloop.util.check import ValueRule, require
from glassloop.util.fields import json_object

TEXT_SUFFIXES = (".txt", ".md", ".text")
LINES_SUFFIXES = (".jsonl", ".ndjson")
_PACKED = {".gz": gzip.open, ".xz": lzma.open}
_PIECE = 1 << 20  # bytes of a text file that are encoded at once
_LONGEST_LINE = 64 << 20


class Document(NamedTuple):
    """A text in one or several pieces, a chat, or a prompt with its completion."""

    where: str  # the file and the line, for messages
    pieces: Iterator[str] | Sequence[str] = ()
    messages: list[dict[str, Any]] | None = None
    completion: str | None = None  # the loss counts only this; `pieces` is the prompt


def find_files(paths: Sequence[str | Path]) -> list[Path]:
    """Returns the files of a list of files and folders. Those of a folder are sorted by name."""
    files: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            inside = sorted(each for each in path.rglob("*") if each.is_file() and _kind(each))
            if not inside:
                suffixes = ", ".join((*TEXT_SUFFIXES, *LINES_SUFFIXES))
                raise DataError(f"{path}: the folder has no file that ends in {suffixes}")
            files += inside
        elif path.is_file():
            files.append(path)
        else:
            raise DataError(f"{path}: there is no such file or folder")
    if not files:
        raise DataError("data is missing; a text file, a JSONL file or a folder is expected")
    return files


def has_text_files(files: Sequence[Path]) -> bool:
    """Whether one of the files is a document by itself, of any length."""
    return any(_kind(path) != "lines" for path in files)


def size_in_bytes(files: Sequence[Path]) -> int:
    """Returns about how many bytes of text some files have; packed files have some three times their size."""
    return sum(path.stat().st_size * (3 if path.suffix in _PACKED else 1) for path in files)


def read_documents(files: Sequence[Path]) -> Iterator[Document]:
    """Yields the documents of all files. A text's pieces must be taken before the next document."""
    for path in files:
        if _kind(path) == "lines":
            yield from _read_lines(path)
        else:
            yield Document(str(path), _read_text(path))


def describe(path: Path) -> dict[str, Any]:
    """Returns name, size and SHA-256 of a file, for the manifest."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"name": path.name, "bytes": path.stat().st_size, "sha256": digest}


def _kind(path: Path) -> str | None:
    suffixes = [suffix for suffix in path.suffixes[-2:] if suffix not in _PACKED]
    if suffixes and suffixes[-1] in LINES_SUFFIXES:
        return "lines"
    return "text" if suffixes and suffixes[-1] in TEXT_SUFFIXES else None


def _open(path: Path) -> IO[bytes]:
    opener = _PACKED.get(path.suffix)
    return opener(path, "rb") if opener else path.open("rb")  # type: ignore[operator]


def _read_text(path: Path) -> Iterator[str]:
    """Yields a text file in pieces that end with a line where there is one."""
    decode = codecs.getincrementaldecoder("utf-8")()
    at, kept, empty = 0, "", True
    try:
        with _open(path) as file:
            while data := file.read(_PIECE):
                kept += decode.decode(data)
                at += len(data)
                cut = kept.rfind("\n") + 1 or len(kept)
                if kept[:cut]:
                    empty = False
                    yield kept[:cut]
                kept = kept[cut:]
            kept += decode.decode(b"", final=True)
    except UnicodeDecodeError as error:
        place = at - len(decode.getstate()[0]) + error.start
        raise DataError(f"{path}: byte {place} is not UTF-8 text") from None
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise DataError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if kept:
        yield kept
    elif empty:
        raise DataError(f"{path}: is empty; text is expected")


def _read_lines(path: Path) -> Iterator[Document]:
    number = documents = 0
    try:
        with _open(path) as file:
            while line := file.readline(_LONGEST_LINE + 1):
                number += 1
                where = f"{path}, line {number}"
                if len(line) > _LONGEST_LINE:
                    raise DataError(f"{where}: is longer than {_LONGEST_LINE} bytes")
                if line.strip():
                    documents += 1
                    yield _document(where, line)
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise DataError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not documents:
        raise DataError(f"{path}: is empty; a JSON object in each line is expected")


_TEXT = ValueRule("a text", lambda it: isinstance(it, str) and bool(it))


def _document(where: str, line: bytes) -> Document:
    try:
        values = json_object(line.decode(), where, DataError)
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: byte {error.start} is not UTF-8 text") from None
    if "messages" in values:
        try:
            messages = check_messages(values["messages"])
        except TextError as error:
            raise DataError(f"{where}: {error}") from None
        if not any(message["role"] == "assistant" for message in messages):
            raise DataError(f"{where}: messages has no answer of the assistant to learn")
        return Document(where, messages=messages)
    for names in (("text",), ("prompt", "completion")):
        if names[0] in values:
            for name in names:
                require(f"{where}: {name}", values.get(name), _TEXT, DataError)
            return Document(where, [values[names[0]]], completion=values.get("completion"))
    raise DataError(f"{where}: has none of text, messages, prompt and completion")
