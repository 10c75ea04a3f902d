"""Checks a model's files from end to end, as `glassloop models check` does: what they claim to be, whether
every weight is a number, whether the tokenizer can be used, and whether the model computes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from glassloop.errors import ModelError
from glassloop.model.cache import Branches
from glassloop.model.loader import ModelFiles
from glassloop.ops import choose_ops
from glassloop.ops.tensor import Tensor
from glassloop.shown import printable

_TEXT = "Water boils at 100 °C."
_MOST_VALUES = 1 << 24  # that are read at a time, 64 MB as float32


class Finding(NamedTuple):
    """One thing that was checked, and what was found."""

    what: str
    found: str


def check_model(path: Path, ops: str | None = None) -> Iterator[Finding]:
    """Yields what was found after each check, the quick ones first. Raises an error that says what is wrong
    at the first thing that is."""
    files = ModelFiles(path)
    config, tensors = files.config, files.tensors.values()
    types = Counter(tensor.format.name for tensor in tensors)
    kinds = ", ".join(f"{name} {count}" for name, count in types.most_common())
    yield Finding(
        "format", f"{'safetensors' if files.path.is_dir() else 'GGUF'}, {len(tensors)} tensors ({kinds})"
    )
    heads = f"{config.heads} heads, {config.kv_heads} of keys and values"
    sizes = f"{len(config.layers)} layers, width {config.dim:,}, {heads}, context {config.context:,}"
    yield Finding("model", f"{config.family}: {sizes}")
    tokenizer = files.tokenizer()
    ids = tokenizer.encode(_TEXT)
    chat = "no chat template"
    if tokenizer.can_chat:
        count = len(tokenizer.encode_chat([{"role": "user", "content": _TEXT}]))
        chat = f"{count} as a message of a chat"
    yield Finding("tokenizer", f"{tokenizer.vocab_size:,} tokens; {_TEXT!r} has {len(ids)}, {chat}")
    for tensor in tensors:
        _check_finite(files.path, tensor)
    yield Finding("weights", f"{sum(tensor.size for tensor in tensors):,} numbers, all finite")
    model = files.transformer(choose_ops(ops))
    (logits,) = Branches(model, len(ids)).forward([(0, 0, ids)])
    if not np.isfinite(logits).all():
        raise ModelError(f"{files.path}: the logits after {_TEXT!r} are not finite")
    likeliest = tokenizer.piece(int(np.argmax(logits)))
    yield Finding("computes", f"with {model.ops.description}; after {_TEXT!r} {likeliest!r} is the likeliest")


def _check_finite(path: Path, tensor: Tensor) -> None:
    """Raises if a weight is infinite or not a number."""
    rows = tensor.shape[0] if len(tensor.shape) > 1 else 1
    step = max(1, _MOST_VALUES * rows // max(1, tensor.size)) if rows > 1 else 1
    for first in range(0, rows, step):
        part = tensor.rows(slice(first, first + step)) if rows > 1 else tensor
        if not np.isfinite(part.float32()).all():
            raise ModelError(f"{path}: {printable(tensor.name)} has values that are not finite")
    tensor.release()
