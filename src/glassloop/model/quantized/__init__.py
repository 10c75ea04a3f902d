"""Safetensors whose weights are quantized, as `config.json` says: one reader for each scheme.

A reader finds the tensors that make a matrix (codes, scales, zeros, …), checks them, and returns one tensor
for the matrix, in a packed format that holds it exactly if there is one, else in floats. It is computed when
it is used, one matrix at a time. What each scheme became is in the notes, which are shown on loading.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from glassloop.errors import ModelError
from glassloop.model.quantized.compressed import read_compressed
from glassloop.model.quantized.integers import read_awq, read_gptq, read_mlx
from glassloop.model.quantized.small_floats import read_fp8, read_gpt_oss, read_modelopt
from glassloop.model.quantized.source import FLOATS, Source
from glassloop.model.safetensors import read_entries, read_json
from glassloop.model.unsupported import UPSTREAM
from glassloop.ops.quant import F32, FORMAT_BY_DTYPE
from glassloop.ops.tensor import Tensor
from glassloop.util.fields import Fields
from glassloop.util.shown import printable, shown


class _Scheme(NamedTuple):
    title: str
    read: Callable[[Source, Fields], dict[str, Tensor]]


# `quant_method` in config.json → its reader. MLX has no name there: it writes "quantization" with bits.
_SCHEMES = {
    "awq": _Scheme("AWQ", read_awq),
    "gptq": _Scheme("GPTQ", read_gptq),
    "fp8": _Scheme("FP8", read_fp8),
    "fbgemm_fp8": _Scheme("FP8", read_fp8),
    "compressed-tensors": _Scheme("compressed-tensors", read_compressed),
    "modelopt": _Scheme("ModelOpt", read_modelopt),
    "mxfp4": _Scheme("MXFP4", read_gpt_oss),
    "mlx": _Scheme("MLX", read_mlx),
}
SCHEMES = ", ".join(sorted(_SCHEMES))
_MODELOPT = "hf_quant_config.json"


class Weights(NamedTuple):
    """The tensors of a folder, and what became of those that were quantized: in words, and the formats."""

    tensors: dict[str, Tensor]
    notes: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()


def read_weights(folder: Path, config: Mapping[str, Any]) -> Weights:
    """Returns all tensors of a model folder by name, quantized matrices as one tensor each."""
    shards = read_entries(folder)
    text_config = config.get("text_config")
    values = {**config, **text_config} if isinstance(text_config, dict) else config
    dtype = FORMAT_BY_DTYPE.get(str(values.get("dtype") or values.get("torch_dtype")), F32)
    source = Source(str(folder), shards, dtype)
    mappings = {name: shard.mapping for shard in shards for name in shard.entries}
    tensors = {
        name: Tensor(name, entry.shape, FLOATS[entry.kind], entry.data, mappings[name])
        for name, entry in source.entries.items()
        if entry.kind in FLOATS
    }
    options = _options(folder, values)
    if options is None:
        _refuse_unexplained(source)
        return Weights(tensors)
    method = options.get("quant_method")
    scheme = _SCHEMES.get(method) if isinstance(method, str) else None
    if scheme is None:
        raise options.error(
            "quant_method",
            f"is {shown(method)}; {SCHEMES} are read: get the unquantized safetensors or a GGUF file of"
            f" the same model, or {UPSTREAM}",
        )
    matrices = scheme.read(source, options)
    plain = {name: tensor for name, tensor in tensors.items() if name not in source.used}
    for name in matrices:
        if name in plain:
            raise source.error(name, "is there twice, quantized and not")
    formats = Counter(tensor.format.name for tensor in matrices.values())
    notes = (_note(scheme.title, *each) for each in formats.most_common())
    return Weights(plain | matrices, tuple(notes), tuple(sorted(formats)))


def _options(folder: Path, config: Mapping[str, Any]) -> Fields | None:
    """Returns how config.json (or ModelOpt's file beside it) says that the weights are quantized."""
    where = f"{folder / 'config.json'}: quantization_config"
    options = config.get("quantization_config")
    if options is None:
        options = config.get("quantization")  # as MLX calls it
    if options is None and (folder / _MODELOPT).is_file():
        options = read_json(folder / _MODELOPT).get("quantization")
        where = str(folder / _MODELOPT)
        if isinstance(options, dict):
            options = {**options, "quant_method": "modelopt"}
    if options is None:
        return None
    if not isinstance(options, dict):
        raise ModelError(f"{where} is {shown(options)}; an object is expected")
    if "quant_method" not in options and "bits" in options and "group_size" in options:
        options = {**options, "quant_method": "mlx"}
    return Fields(where, options)


def _refuse_unexplained(source: Source) -> None:
    """Raises if a matrix is in a type that only a quantization_config could explain."""
    for name, entry in source.entries.items():
        packed = entry.kind in ("F8_E4M3", "F8_E5M2", "I8", "U8", "I32", "U32")
        if packed and name.endswith((".weight", ".qweight", ".weight_packed")) and len(entry.shape) == 2:
            raise ModelError(
                f"{source.where}: {printable(name)} has dtype {entry.kind}, but config.json has no"
                " quantization_config that says how to read it; get the config.json of the same download"
            )


def _note(title: str, format: str, count: int) -> str:
    """Says what became of the matrices of a scheme."""
    how = "each value rounded to it once" if format in FLOATS else "which holds them exactly"
    return f"{count} {title} matrices are computed in {format}, {how}"
