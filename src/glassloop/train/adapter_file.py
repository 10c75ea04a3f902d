"""Writes an adapter as one file in 8 bits, the form that `model/adapter.py` reads and describes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from glassloop.errors import GlassloopError
from glassloop.model.adapter import MARK, UP_SCALE, VERSION
from glassloop.model.safetensors import TensorEntry
from glassloop.ops.quant import Float32
from glassloop.ops.tensor import Tensor
from glassloop.train.write_safetensors import write_entries
from glassloop.util.files import sha256_of

_MOST_CODE = np.float32(127)


def write_adapter_file(
    path: Path,
    matrices: Mapping[str, tuple[Float32, Float32]],
    scale: float,
    *,
    name: str,
    embedding: Float32 | None = None,
    mask_token: int | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> str:
    """Writes `down` [rank, in] and `up` [out, rank] of each matrix (`layers.0.q`), rounded to 8 bits, and
    returns the SHA-256 of the file."""
    if not matrices:
        raise GlassloopError.about("matrices", "is empty; at least one matrix is expected")
    ranks = {down.shape[0] for down, _ in matrices.values()} | {up.shape[1] for _, up in matrices.values()}
    if len(ranks) != 1:
        raise GlassloopError.about("matrices", f"have ranks {sorted(ranks)}; a single rank is expected")
    entries: dict[str, TensorEntry] = {}
    for stem, (down, up) in matrices.items():
        # The largest code of each column of `up` is 127, so what it is scaled by moves into `down`.
        tops = _tops(up, 0)
        codes = _codes(up, tops)
        moved = down * (tops / (_MOST_CODE * np.float32(UP_SCALE)))[:, None]
        factors = (_tops(moved, 1) / _MOST_CODE).astype(np.float16)
        if not np.isfinite(factors).all():
            raise GlassloopError(f"{path}: {stem} is too large for 8 bits with a float16 scale")
        rows = _codes(moved, factors.astype(np.float32)[:, None] * _MOST_CODE)
        entries[f"{stem}.down"] = TensorEntry("I8", rows.shape, rows.reshape(-1).view(np.uint8))
        entries[f"{stem}.scale"] = TensorEntry("F16", factors.shape, factors.astype("<f2").view(np.uint8))
        entries[f"{stem}.up"] = TensorEntry("I8", codes.shape, codes.reshape(-1).view(np.uint8))
    if embedding is not None:
        added = Tensor.of("embedding", embedding)
        entries["embedding"] = TensorEntry("F32", added.shape, added.data)
    described = {"name": name, "rank": ranks.pop(), "scale": scale, "mask_token": mask_token}
    adapter = json.dumps({**(metadata or {}), **described})
    write_entries(path, entries, {"format": MARK, "version": VERSION, "adapter": adapter})
    return sha256_of(path)


def _tops(values: Float32, axis: int) -> Float32:
    largest: Float32 = np.abs(values).max(axis=axis)
    return largest


def _codes(values: Float32, tops: Float32) -> np.ndarray:
    """Returns values as codes from -127 to 127, where `tops` are the values of code 127."""
    inverse = np.divide(_MOST_CODE, tops, out=np.zeros_like(tops), where=tops != 0)
    return np.ascontiguousarray(np.rint(values * inverse).clip(-127, 127).astype(np.int8))
