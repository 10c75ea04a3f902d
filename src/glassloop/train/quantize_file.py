"""Writes a model as one GGUF file with quantized weights, `glassloop models convert`: tensor by tensor, each
compared with what it was written from, and the whole file read back by the reader.
"""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from glassloop.errors import GlassloopError, ModelError
from glassloop.model.gguf_parts import open_gguf
from glassloop.model.loader import ModelFiles
from glassloop.model.registry import fetch
from glassloop.ops.memory import format_bytes
from glassloop.ops.quant import F32, FORMATS, Bytes, Float32, Format, dequantize
from glassloop.ops.tensor import Tensor
from glassloop.train.gguf_file import gguf_parts, write_tensors
from glassloop.util.check import one_of, require

# Each name that --weights takes, with the format of matrices, and that of the embedding and the head, which
# need more bits.
_FORMATS = (
    *(("q8_0", "Q8_0", "Q8_0"), ("q6_k", "Q6_K", "Q6_K"), ("q5_k", "Q5_K", "Q6_K"), ("q4_k", "Q4_K", "Q6_K")),
    *(("q4_0", "Q4_0", "Q8_0"), ("q4_1", "Q4_1", "Q8_0"), ("iq4_nl", "IQ4_NL", "Q8_0")),
    *(("mxfp4", "MXFP4", "Q8_0"), ("f16", "F16", "F16"), ("bf16", "BF16", "BF16"), ("f32", "F32", "F32")),
)
WEIGHTS = {name: (plain, wide) for name, plain, wide in _FORMATS if plain in FORMATS}  # what is read, too
_WIDE_TENSORS = ("token_embd.weight", "output.weight")
_SPARE = 1 << 20  # bytes for the header


class TensorReport(NamedTuple):
    """What became of one tensor. The error is the root of the mean square of all differences, divided by
    that of the values."""

    name: str
    shape: tuple[int, ...]
    format: str
    size: int  # bytes
    error: float
    largest: float  # difference


Progress = Callable[[int, int, str], None]  # numbers done, numbers in all, the tensor that is done


def convert(model: str, out: Path, weights: str, progress: Progress | None = None) -> list[TensorReport]:
    """Writes a model to a new `.gguf` file and returns what became of each tensor."""
    require("weights", weights, one_of(*WEIGHTS))
    if out.suffix != ".gguf":
        raise GlassloopError(f"{out}: a path that ends in .gguf is expected")
    if out.exists():
        raise GlassloopError(f"{out}: is there already; remove it, or choose another name")
    if not out.parent.is_dir():
        raise GlassloopError(f"{out}: the folder {out.parent} does not exist")
    files = ModelFiles(fetch(model))

    def values_of(name: str) -> Float32:
        return files.weights[name].float32()

    metadata, tensors = gguf_parts(out, files, values_of, _format_of(*WEIGHTS[weights]))
    title = files.metadata.get("general.name")
    metadata["general.name"] = title if isinstance(title, str) else files.path.stem
    needed = sum(tensor.format.size_of(tensor.size) for tensor in tensors) + _SPARE
    if (free := shutil.disk_usage(out.parent).free) < needed:
        raise GlassloopError(f"{out}: needs {format_bytes(needed)} of disk; {format_bytes(free)} is free")
    return _write(out, files, metadata, tensors, values_of, progress)


def _format_of(name: str, wide: str) -> Callable[[str, tuple[int, ...]], Format]:
    """Returns the rule that gives each tensor its format: the one asked for, or the next that its rows
    fit."""

    def format_of(tensor: str, shape: tuple[int, ...]) -> Format:
        if len(shape) != 2 or tensor.startswith("position_"):
            return F32
        for each in (wide if tensor in _WIDE_TENSORS else name, "Q8_0"):
            if shape[1] % FORMATS[each].block_values == 0:
                return FORMATS[each]
        return FORMATS["F16"]

    return format_of


def _write(
    out: Path,
    files: ModelFiles,
    metadata: dict[str, object],
    tensors: list[Tensor],
    values_of: Callable[[str], Float32],
    progress: Progress | None,
) -> list[TensorReport]:
    exact = {tensor.name: tensor for tensor in gguf_parts(out, files, values_of, lambda *_: F32)[1]}
    total, done = sum(tensor.size for tensor in tensors), 0
    reports: list[TensorReport] = []
    sums: dict[str, int] = {}

    def written(tensor: Tensor, data: Bytes) -> None:
        nonlocal done
        sums[tensor.name] = zlib.crc32(data.tobytes())
        reports.append(_report(tensor, exact[tensor.name].data.view(np.float32), data))
        done += tensor.size
        if progress is not None:
            progress(done, total, tensor.name)

    write_tensors(out, metadata, tensors, written)
    try:
        _read_back(out, files, sums)
    except GlassloopError:
        out.unlink(missing_ok=True)
        raise
    return reports


def _report(tensor: Tensor, values: Float32, data: Bytes) -> TensorReport:
    difference = dequantize(tensor.format, data) - values
    norm = float(np.sqrt(np.square(values, dtype=np.float64).mean()))
    error = float(np.sqrt(np.square(difference, dtype=np.float64).mean()))
    if not np.isfinite(error):
        raise ModelError(f"{tensor.name}: has values that {tensor.format.name} cannot hold")
    largest = float(np.abs(difference).max(initial=0))
    relative = error / norm if norm else 0.0
    return TensorReport(tensor.name, tensor.shape, tensor.format.name, len(data), relative, largest)


def _read_back(out: Path, files: ModelFiles, sums: dict[str, int]) -> None:
    """Raises unless the reader finds in the file what was written, and the same model."""
    read = open_gguf(out).tensors
    wrong = [
        name for name, crc in sums.items() if name not in read or zlib.crc32(read[name].data.tobytes()) != crc
    ]
    if wrong or len(read) != len(sums):
        raise ModelError(
            f"{out}: {wrong[0] if wrong else 'a tensor'} is not what was written; is the disk sound?"
        )
    ModelFiles(out)
