"""Checks a model's files from end to end, as `glassloop models check` does: what they claim to be, whether
every weight is a number, whether the tokenizer can be used, and whether the model computes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from glassloop.errors import ModelError
from glassloop.model.cache import Branches
from glassloop.model.loader import ModelFiles, model_path
from glassloop.model.survey import survey
from glassloop.ops import choose_ops
from glassloop.ops.memory import format_bytes
from glassloop.ops.protocol import Ops
from glassloop.ops.tensor import Tensor
from glassloop.ops.weight_memory import memory_line
from glassloop.util.shown import printable

_TEXT = "Water boils at 100 °C."
_MOST_VALUES = 1 << 24  # that are read at a time, 64 MB as float32


class Finding(NamedTuple):
    """One thing that was checked, and what was found."""

    what: str
    found: str


def check_model(path: Path, ops: str | None = None) -> Iterator[Finding]:
    """Yields what was found after each check, the quick ones first. Raises an error that says what is wrong
    at the first thing that is."""
    path = model_path(path)
    stated = survey(path)
    yield Finding("format", stated.line)
    yield Finding("family", stated.family)
    files = ModelFiles(path)
    config, tensors = files.config, files.tensors.values()
    for note in files.notes:
        yield Finding("left out" if note in files.left_out else "quantized", note)
    yield Finding("op sets", memory_line(files.weights.values()))
    differ = len({(mixer.heads, mixer.kv_heads) for mixer in config.attention_layers}) > 1
    heads = f"{config.heads} heads, {config.kv_heads} of keys and values{' in the first' if differ else ''}"
    recurrent = len(config.layers) - len(config.attention_layers)
    layers = f"{len(config.layers)} layers{f' ({recurrent} recurrent)' if recurrent else ''}"
    sizes = f"{layers}, width {config.dim:,}, {heads}, context {config.context:,}"
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
    op_set = choose_ops(ops)
    yield Finding("memory", _memory(files, op_set))
    model = files.transformer(op_set)
    (logits,) = Branches(model, len(ids)).forward([(0, 0, ids)])
    if not np.isfinite(logits).all():
        raise ModelError(f"{files.path}: the logits after {_TEXT!r} are not finite")
    likeliest = tokenizer.piece(int(np.argmax(logits)))
    yield Finding("computes", f"with {model.ops.description}; after {_TEXT!r} {likeliest!r} is the likeliest")


def _memory(files: ModelFiles, ops: Ops) -> str:
    """Returns what the model takes on an op set, and what is free there."""
    needed, context = files.memory(ops), files.config.context
    whole = f"up to {format_bytes(needed.cache(context))} for a full context ({context:,} tokens)"
    weights = format_bytes(needed.weights)
    return f"{weights} for weights, {whole}; with {ops.name} ops; {ops.free_memory()}"


def _check_finite(path: Path, tensor: Tensor) -> None:
    """Raises if a weight is infinite or not a number."""
    tensor = tensor._replace()  # one that is computed is computed once, not for each part
    rows = tensor.shape[0] if len(tensor.shape) > 1 else 1
    step = max(1, _MOST_VALUES * rows // max(1, tensor.size)) if rows > 1 else 1
    for first in range(0, rows, step):
        part = tensor.rows(slice(first, first + step)) if rows > 1 else tensor
        if not np.isfinite(part.float32()).all():
            raise ModelError(f"{path}: {printable(tensor.name)} has values that are not finite")
    tensor.release()
