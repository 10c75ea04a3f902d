"""Writes safetensors files: the inverse of `model/safetensors.py`.

The `safetensors` library wants all tensors as bytes in memory; here they are written one after the other, and
their SHA-256 goes into the metadata.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from glassloop.model.safetensors import TensorEntry
from glassloop.ops.tensor import Tensor
from glassloop.util.files import whole_file

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
