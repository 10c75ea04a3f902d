"""Writes a model as a folder that `LLM` and transformers load: config.json, safetensors, tokenizer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from glassloop.errors import GlassloopError
from glassloop.model.config import ModelConfig
from glassloop.model.safetensors import SINGLE
from glassloop.ops.quant import FORMATS, Float32
from glassloop.ops.tensor import Tensor
from glassloop.train.hf_layout import hf_config, hf_tensors
from glassloop.train.write_safetensors import write_safetensors
from glassloop.util.check import one_of, require
from glassloop.util.files import read_at_most, sha256_of, write_text

TYPES = {name: format.dtype for name, format in FORMATS.items() if format.dtype}
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
)
_MOST_BYTES = 256_000_000


def write_model_folder(
    folder: Path,
    config: ModelConfig,
    weights: Mapping[str, Float32],
    tokenizer: Mapping[str, bytes],
    *,
    ends: tuple[int, ...] = (),
    bos_id: int | None = None,
    format: str = "F32",
) -> str:
    """Writes the model and returns the SHA-256 of its weights file. The folder appears when it is whole, and
    replaces one that a model was written to before."""
    require("format", format, one_of(*TYPES))
    ids = {"bos_token_id": bos_id, "eos_token_id": list(ends) if len(ends) > 1 else next(iter(ends), None)}
    values = hf_config(config, {"dtype": TYPES[format], **ids})
    staging = folder.with_name(folder.name + ".part")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    write_text(staging / "config.json", json.dumps(values, indent=1) + "\n")
    for name, data in tokenizer.items():
        (staging / name).write_bytes(data)
    tensors = [
        Tensor.of(name, array).stored_as(FORMATS[format])
        for name, array in hf_tensors(config, weights).items()
    ]
    write_safetensors(staging / SINGLE, tensors, {"format": "pt"})
    sha256 = sha256_of(staging / SINGLE)
    if folder.exists():
        if not (folder / "config.json").exists():
            shutil.rmtree(staging)
            raise GlassloopError(f"{folder}: exists and is not a model; another folder is expected")
        shutil.rmtree(folder)
    staging.rename(folder)
    return sha256


def tokenizer_files(folder: Path) -> dict[str, bytes]:
    """Returns the files of a folder that belong to its tokenizer."""
    return {
        name: read_at_most(folder / name, _MOST_BYTES, GlassloopError)
        for name in _TOKENIZER_FILES
        if (folder / name).is_file()
    }
