"""Token files: documents as token ids on disk, in shards, with a manifest. Training reads nothing else.

    manifest.json        format, counts, vocabulary size, sources, the SHA-256 of every shard
    tokens-00000.npy     token ids, uint16 or uint32
    ends-00000.npy       where each document ends within its shard, int64
    learned-00000.npy    whether the loss counts a token, bool; only where it does not count all of them
    tokenizer/           the tokenizer that made the ids, if there is one

Shards are memory-mapped, so that data may be larger than the memory. A document lies in one shard.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from glassloop.errors import GlassloopError
from glassloop.util.fields import Fields, json_object
from glassloop.util.files import read_at_most, sha256_of

FORMAT, VERSION = "glassloop tokens", 1
MANIFEST = "manifest.json"
_SHARD_TOKENS = 1 << 26
_MOST_MANIFEST = 64_000_000
_MOST_SHARDS = 1 << 20


class DataError(GlassloopError):
    """Training data that cannot be used. The message names the file and the line."""


class Shard(NamedTuple):
    tokens: NDArray[Any]
    ends: NDArray[np.int64]
    learned: NDArray[np.bool_] | None


class TokenWriter:
    """Writes documents to a folder, which appears when `finish` is called, whole or not at all."""

    def __init__(self, folder: Path, vocab_size: int, shard_tokens: int = _SHARD_TOKENS) -> None:
        self.folder = folder
        self._staging = folder.with_name(folder.name + ".part")
        shutil.rmtree(self._staging, ignore_errors=True)
        self._staging.mkdir(parents=True)
        self._vocab_size = vocab_size
        self._type = np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)
        self._shard_tokens = shard_tokens
        self._open: list[tuple[NDArray[Any], NDArray[np.bool_] | None]] = []
        self._open_tokens = 0
        self._shards: list[dict[str, Any]] = []
        self.tokens = self.documents = 0

    def add(self, ids: Sequence[int] | NDArray[Any], learned: Sequence[bool] | None = None) -> None:
        """Adds a document. `learned` says for each token whether the loss counts it; by default all do."""
        if not len(ids):
            return
        taken = np.asarray(ids)
        if taken.min() < 0 or taken.max() >= self._vocab_size:
            raise DataError(
                f"token ids are {taken.min()} to {taken.max()}; 0 to {self._vocab_size - 1} is expected"
            )
        if self._open and self._open_tokens + len(taken) > self._shard_tokens:
            self._write_shard()
        self._open.append((taken.astype(self._type), None if learned is None else np.array(learned, bool)))
        self._open_tokens += len(taken)
        self.tokens += len(taken)
        self.documents += 1

    def finish(
        self,
        *,
        sources: Sequence[dict[str, Any]] = (),
        tokenizer: Mapping[str, bytes] | None = None,
        eos_id: int | None = None,
    ) -> TokenFiles:
        if self._open:
            self._write_shard()
        for name, data in (tokenizer or {}).items():
            (self._staging / "tokenizer").mkdir(exist_ok=True)
            (self._staging / "tokenizer" / name).write_bytes(data)
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "vocab_size": self._vocab_size,
            "eos_id": eos_id,
            "tokens": self.tokens,
            "documents": self.documents,
            "sources": list(sources),
            "shards": self._shards,
        }
        (self._staging / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        shutil.rmtree(self.folder, ignore_errors=True)
        self._staging.rename(self.folder)
        return TokenFiles(self.folder)

    def _write_shard(self) -> None:
        number = len(self._shards)
        arrays: dict[str, NDArray[Any]] = {
            "tokens": np.concatenate([ids for ids, _ in self._open]),
            "ends": np.cumsum([len(ids) for ids, _ in self._open]).astype(np.int64),
        }
        if any(learned is not None for _, learned in self._open):
            arrays["learned"] = np.concatenate(
                [np.ones(len(ids), bool) if learned is None else learned for ids, learned in self._open]
            )
        entry: dict[str, Any] = {"count": len(arrays["tokens"]), "documents": len(self._open)}
        for kind, array in arrays.items():
            name = f"{kind}-{number:05}.npy"
            np.save(self._staging / name, array, allow_pickle=False)
            entry[kind] = {"file": name, "sha256": sha256_of(self._staging / name)}
        self._shards.append(entry)
        self._open, self._open_tokens = [], 0


class TokenFiles:
    """The documents of a folder of token files, read where they are needed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = _read_manifest(folder)
        fields = Fields(str(folder / MANIFEST), self.manifest, kind=DataError)
        self.vocab_size = fields.whole("vocab_size", most=1 << 24)
        self.eos_id: int | None = fields.get("eos_id")
        shards = self.manifest.get("shards")
        if not isinstance(shards, list) or not 0 < len(shards) <= _MOST_SHARDS:
            raise fields.error("shards", "must be a list of at least one shard")
        self.shards = [self._shard(number, entry) for number, entry in enumerate(shards)]
        sizes = [len(shard.tokens) for shard in self.shards]
        self._starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self.tokens = int(self._starts[-1])
        # Where each document ends, counted over all shards.
        self.ends: NDArray[np.int64] = np.concatenate(
            [shard.ends + start for shard, start in zip(self.shards, self._starts[:-1], strict=True)]
        )

    @property
    def documents(self) -> int:
        return len(self.ends)

    @property
    def tokenizer_folder(self) -> Path | None:
        folder = self.folder / "tokenizer"
        return folder if folder.is_dir() else None

    @cached_property
    def sha256(self) -> str:
        """The hash of all shards, which identifies the data."""
        named = [
            entry[kind]["sha256"]
            for entry in self.manifest["shards"]
            for kind in ("tokens", "ends", "learned")
            if kind in entry
        ]
        return hashlib.sha256("\n".join([str(self.vocab_size), *named]).encode()).hexdigest()

    def verify(self) -> None:
        """Reads every shard and raises a DataError if one has changed since it was written."""
        for entry in self.manifest["shards"]:
            for kind in ("tokens", "ends", "learned"):
                if kind in entry and sha256_of(self.folder / entry[kind]["file"]) != entry[kind]["sha256"]:
                    raise DataError(
                        f"{self.folder / entry[kind]['file']}: has another SHA-256 than its manifest"
                    )

    def read(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Returns tokens and whether each is learned. Both ends lie within one document."""
        number = int(np.searchsorted(self._starts, start, "right")) - 1
        shard, base = self.shards[number], int(self._starts[number])
        tokens = shard.tokens[start - base : stop - base].astype(np.int64)
        if shard.learned is None:
            return tokens, np.ones(len(tokens), bool)
        return tokens, np.array(shard.learned[start - base : stop - base])

    def _shard(self, number: int, entry: Any) -> Shard:
        where = f"{self.folder / MANIFEST}: shards[{number}]"
        if not isinstance(entry, dict):
            raise DataError(f"{where} is not an object")
        arrays = {
            kind: _load(self.folder, where, kind, entry.get(kind)) for kind in ("tokens", "ends", "learned")
        }
        tokens, ends, learned = arrays["tokens"], arrays["ends"], arrays["learned"]
        if tokens is None or ends is None or tokens.dtype not in (np.uint16, np.uint32):
            raise DataError(f"{where} needs tokens (uint16 or uint32) and ends")
        if ends.dtype != np.int64 or not len(ends) or ends[-1] != len(tokens) or (np.diff(ends) <= 0).any():
            raise DataError(f"{where}: ends must rise to the number of tokens, {len(tokens)}")
        if ends[0] <= 0:
            raise DataError(f"{where}: ends must begin above 0")
        if learned is not None and (learned.dtype != np.bool_ or len(learned) != len(tokens)):
            raise DataError(f"{where}: learned must have a bool for each token")
        if int(tokens.max()) >= self.vocab_size:
            raise DataError(f"{where}: has token id {tokens.max()}; below {self.vocab_size} is expected")
        return Shard(tokens, np.asarray(ends), learned)


def _load(folder: Path, where: str, kind: str, entry: Any) -> NDArray[Any] | None:
    if entry is None:
        return None
    name = entry.get("file") if isinstance(entry, dict) else None
    if not isinstance(name, str) or Path(name).name != name or not name.endswith(".npy"):
        raise DataError(f"{where}: {kind}.file must be the name of an .npy file in the same folder")
    if not isinstance(entry.get("sha256"), str):
        raise DataError(f"{where}: {kind}.sha256 is missing")
    try:
        array: NDArray[Any] = np.load(folder / name, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError(f"{folder / name}: cannot be read: {error}") from None
    if array.ndim != 1 or not array.size:
        raise DataError(f"{folder / name}: has shape {array.shape}; one axis is expected")
    return array


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    values = json_object(read_at_most(path, _MOST_MANIFEST, DataError), str(path), DataError)
    if values.get("format") != FORMAT:
        raise DataError(f"{path}: is not the manifest of token files")
    if values.get("version") != VERSION:
        raise DataError(f"{path}: version is {values.get('version')!r}; {VERSION} is expected")
    return values


def is_token_folder(path: Path) -> bool:
    return (path / MANIFEST).is_file()
