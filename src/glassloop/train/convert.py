"""Writes a model in another format: safetensors in a folder, or GGUF, with an adapter merged into it."""

from __future__ import annotations

from pathlib import Path

from glassloop.errors import GlassloopError
from glassloop.model.loader import ModelFiles
from glassloop.model.registry import fetch
from glassloop.train.gguf_file import write_gguf
from glassloop.train.lora import merged
from glassloop.train.model_folder import TYPES, tokenizer_files, write_model_folder
from glassloop.util.check import one_of, require

GGUF_FORMATS = {"f32": "F32", "f16": "F16", "bf16": "BF16", "q8": "Q8_0", "q4": "Q4_1"}


def export(model: str, out: Path, format: str = "f32", adapter: str | None = None) -> Path:
    """Writes a model to a new folder (f32, f16, bf16) or a `.gguf` file (also q8 and q4). An adapter is
    merged into the weights first. Returns the path."""
    require("format", format, one_of(*GGUF_FORMATS))
    name = GGUF_FORMATS[format]
    files = ModelFiles(fetch(model))
    weights = {name: tensor.float32() for name, tensor in files.weights.items()}
    if adapter is not None:
        weights = merged(files.config, weights, Path(adapter))
    if out.suffix == ".gguf":
        return write_gguf(out, files, weights, name)
    if name not in TYPES:
        raise GlassloopError.about("format", f"is {format!r}, which only GGUF has: a path that ends in .gguf")
    tokenizer = files.tokenizer()
    if files.path.is_dir():
        written = tokenizer_files(files.path)
    else:
        written = {name: text.encode() for name, text in tokenizer.json_files().items()}
    write_model_folder(
        out,
        files.config,
        weights,
        written,
        ends=tokenizer.eos_ids,
        bos_id=tokenizer.bos_id,
        format=name,
    )
    return out
