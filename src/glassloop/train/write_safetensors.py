"""Writes safetensors files: the inverse of `model/safetensors.py`. A file appears whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np

from glassloop.errors import GlassloopError
from glassloop.model.safetensors import TensorEntry
from glassloop.ops.tensor import Tensor

_NAMES = {"F32": "F32", "F16": "F16", "BF16": "BF16"}


def write_safetensors(path: Path, tensors: Iterable[Tensor], metadata: Mapping[str, str]) -> str:
    """Writes tensors (F32, F16, BF16) with metadata, and returns the SHA-256 of their bytes, which the
    metadata has too, as `sha256`."""
    entries = {
        tensor.name: TensorEntry(_NAMES[tensor.format.name], tensor.shape, tensor.data) for tensor in tensors
    }
    return write_entries(path, entries, metadata)


def write_entries(path: Path, entries: Mapping[str, TensorEntry], metadata: Mapping[str, str]) -> str:
    """Writes tensors of any type, as `write_safetensors` does."""
    digest = hashlib.sha256()
    header: dict[str, object] = {}
    at = 0
    for name, (kind, shape, data) in entries.items():
        digest.update(np.ascontiguousarray(data).data)
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    sha256 = digest.hexdigest()
    raw = json.dumps({"__metadata__": {**metadata, "sha256": sha256}, **header}).encode()
    raw += b" " * (-len(raw) % 8)
    with whole_file(path) as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        for entry in entries.values():
            file.write(np.ascontiguousarray(entry.data).data)
    return sha256


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Opens a file for writing that takes its name, and replaces an older one, when it is complete and on
    the disk."""
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise GlassloopError(f"cannot write {path}: {error.strerror or error}") from error


def _sync_folder(folder: Path) -> None:
    """Makes a renaming durable, where the system allows folders to be opened."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
