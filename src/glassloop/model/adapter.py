"""Adapters: low-rank additions to the matrices of a model (LoRA), which act on some rows of a batch.

Two forms are read. PEFT's layout is a folder with `adapter_config.json` and `adapter_model.safetensors`. The
8-bit form is one safetensors file, which can also hold a vector that is added to the embeddings of the rows
on which the adapter acts: such an adapter fills masked rows. Both are untrusted: every value is checked.

In the 8-bit form a matrix `layers.0.q` has three tensors: `.down` [rank, in] and `.up` [out, rank] in int8,
and `.scale` [rank] in float16. The values of `down` are code * scale of the row; those of `up` are
code * 2^-14. Scaling a column of `up` and dividing the row of `down` by the same number changes nothing, so
one scale for both is enough, and the values are those of Q8_0 with no further rounding.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from glassloop.errors import ModelError
from glassloop.model.config import ModelConfig
from glassloop.model.safetensors import Contents, TensorEntry, read_contents, read_file, read_json
from glassloop.model.weight_names import hf_name
from glassloop.ops.quant import FORMATS, Float32
from glassloop.ops.tensor import Tensor
from glassloop.util.fields import Fields, json_object
from glassloop.util.files import sha256_of
from glassloop.util.shown import printable, shown

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."  # of all names in a file of PEFT
MARK, VERSION = "glassloop adapter", "1"
UP_SCALE = 2.0**-14  # of the codes of `up`: the smallest normal float16
_MOST_RANK = 4096
_Q8_0 = FORMATS["Q8_0"]


@dataclass(frozen=True)
class Adapter:
    """Adds `scale * up @ (down @ x)` to the product of each of its matrices with `x`."""

    name: str
    sha256: str  # of its files
    rank: int
    scale: float
    matrices: Mapping[str, tuple[Tensor, Tensor]]  # "layers.0.q" → down [rank, in], up [out, rank]
    embedding: Float32 | None  # [dim], added to the embedding of the rows on which the adapter acts
    mask_token: int | None  # the token that masked rows carry; None if the adapter is not made for them
    metadata: Mapping[str, Any]  # what else its file says, such as the recipe of its training

    def check_shapes(self, config: ModelConfig, adaptable: Collection[str]) -> None:
        """Raises unless each matrix adds to one of the linear layers `adaptable` and has its size."""
        shapes = config.shapes()
        for name, (down, up) in self.matrices.items():
            out, into = shapes.get(f"{name}.weight", (0, 0))
            if name not in adaptable or down.shape != (self.rank, into):
                raise ModelError(f"adapter {self.name}: {name}.down {down.shape} does not fit the model")
            if up.shape != (out, self.rank):
                raise ModelError(f"adapter {self.name}: {name}.up {up.shape} does not fit the model")
        if self.embedding is not None and self.embedding.shape != (config.dim,):
            raise ModelError(f"adapter {self.name}: the embedding does not fit the model")

    def delta(self, name: str) -> Float32:
        """Returns what the adapter adds to a matrix: [out, in]."""
        down, up = self.matrices[name]
        return np.asarray(up.float32() @ down.float32() * np.float32(self.scale), np.float32)


def read_adapter(path: str | Path, config: ModelConfig, name: str | None = None) -> Adapter:
    """Returns the adapter in a folder of PEFT or a file of the 8-bit form, for a model with this config.

    Raises a ModelError if it does more than LoRA (DoRA, biases, other modules) or does not fit the model.
    """
    path = Path(path)
    if path.name in (WEIGHTS, CONFIG):
        path = path.parent
    try:
        return _peft(path, config, name) if path.is_dir() else _eight_bit(path, config, name)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from None


def _peft(folder: Path, config: ModelConfig, name: str | None) -> Adapter:
    where = folder / CONFIG
    values = read_json(where)
    fields = Fields(str(where), values)
    for key, only in (("peft_type", "LORA"), ("bias", "none"), ("use_dora", False)):
        if fields.get(key, only) != only:
            raise fields.error(key, f"is {shown(fields.get(key))}; only {only!r} is supported")
    for key in ("rank_pattern", "alpha_pattern", "modules_to_save", "layer_replication"):
        if fields.get(key):
            raise fields.error(key, "is not supported")
    rank, alpha = fields.whole("r", most=_MOST_RANK), fields.number("lora_alpha")
    scale = alpha / (rank**0.5 if fields.flag("use_rslora", False) else rank)
    tensors = read_file(folder / WEIGHTS)
    matrices: dict[str, tuple[Tensor, Tensor]] = {}
    used: set[str] = set()
    for ours, shape in config.shapes().items():
        theirs, part = hf_name(config, ours)
        names = [f"{PREFIX}{theirs.removesuffix('.weight')}.lora_{x}.weight" for x in "AB"]
        if part is not None or len(shape) != 2 or names[0] not in tensors:
            continue
        down, up = (tensors.get(each) for each in names)
        if down is None or up is None or down.shape != (rank, shape[1]) or up.shape != (shape[0], rank):
            raise ModelError(f"{folder / WEIGHTS}: {names[0]} does not fit {ours} {shape} with rank {rank}")
        for tensor in (down, up):
            _check_finite(folder / WEIGHTS, tensor.name, tensor.float32())
        matrices[ours.removesuffix(".weight")] = down, up
        used.update(names)
    for each in tensors:
        if each not in used:
            raise ModelError(
                f"{folder / WEIGHTS}: {printable(each)} has no place in this {config.family} model"
            )
    if not matrices:
        raise ModelError(f"{folder / WEIGHTS}: has no adapter")
    lines = [f"{sha256_of(folder / file)}  {file}\n" for file in (CONFIG, WEIGHTS)]
    sha256 = hashlib.sha256("".join(lines).encode()).hexdigest()
    return Adapter(name or folder.name, sha256, rank, scale, matrices, None, None, values)


def _eight_bit(path: Path, config: ModelConfig, name: str | None) -> Adapter:
    contents = read_contents(path)
    described = contents.metadata
    if described.get("format") != MARK or not isinstance(described.get("adapter"), str):
        raise ModelError(
            f"{path}: is not an adapter; a folder of PEFT or a file with format {MARK!r} is expected"
        )
    if described.get("version") != VERSION:
        raise ModelError(f"{path}: has version {shown(described.get('version'))}; {VERSION!r} is expected")
    values = json_object(described["adapter"], f"{path}: adapter", ModelError)
    fields = Fields(f"{path}: adapter", values)
    stated_name = fields.get("name", path.stem)
    if not isinstance(stated_name, str):
        raise fields.error("name", f"is {shown(stated_name)}; a text is expected")
    rank, scale = fields.whole("rank", most=_MOST_RANK), fields.number("scale")
    mask = fields.get("mask_token")
    if mask is not None and (type(mask) is not int or not 0 <= mask < config.vocab_size):
        raise fields.error("mask_token", f"is {shown(mask)}; a token below {config.vocab_size} is expected")
    left = dict(contents.entries)
    embedding = None
    if "embedding" in left:
        embedding = _numbers(path, left, "embedding", "F32", (config.dim,)).copy()
    matrices: dict[str, tuple[Tensor, Tensor]] = {}
    for ours, shape in config.shapes().items():
        stem = ours.removesuffix(".weight")
        if f"{stem}.down" in left and len(shape) == 2:
            matrices[stem] = _pair(path, left, stem, rank, shape, contents)
    for each in left:
        raise ModelError(f"{path}: {printable(each)} has no place in this {config.family} model")
    if not matrices:
        raise ModelError(f"{path}: has no adapter")
    return Adapter(name or stated_name, sha256_of(path), rank, scale, matrices, embedding, mask, values)


def _pair(
    path: Path, left: dict[str, TensorEntry], stem: str, rank: int, shape: tuple[int, ...], contents: Contents
) -> tuple[Tensor, Tensor]:
    """Returns the two matrices of an adapter for one matrix of the model, and removes them from `left`."""
    scale = _numbers(path, left, f"{stem}.scale", "F16", (rank,))
    down = _codes(path, left, f"{stem}.down", (rank, shape[1]))
    up = _codes(path, left, f"{stem}.up", (shape[0], rank))
    steady = np.full(shape[0], UP_SCALE, np.float32)
    return _tensor(f"{stem}.down", down, scale), _tensor(f"{stem}.up", up, steady)


def _tensor(name: str, codes: np.ndarray, scale: Float32) -> Tensor:
    """Returns int8 codes with a scale for each row as a tensor: Q8_0, or F32 if a row is no whole number of
    blocks. `scale` has values that float16 can hold."""
    rows, width = codes.shape
    if width % _Q8_0.block_values:
        return Tensor.of(name, codes.astype(np.float32) * scale[:, None])
    blocks = codes.reshape(-1, _Q8_0.block_values).view(np.uint8)
    repeated = np.repeat(scale.astype("<f2"), width // _Q8_0.block_values)
    data = np.concatenate([repeated[:, None].view(np.uint8), blocks], axis=1)
    return Tensor(name, (rows, width), _Q8_0, data.reshape(-1))


def _take(
    path: Path, left: dict[str, TensorEntry], name: str, kind: str, shape: tuple[int, ...]
) -> TensorEntry:
    entry = left.pop(name, None)
    if entry is None:
        raise ModelError(f"{path}: {name} is missing")
    if entry.kind != kind or entry.shape != shape:
        raise ModelError(f"{path}: {name} is {entry.kind} {entry.shape}; {kind} {shape} is expected")
    return entry


def _codes(path: Path, left: dict[str, TensorEntry], name: str, shape: tuple[int, int]) -> np.ndarray:
    return np.ascontiguousarray(_take(path, left, name, "I8", shape).data).view(np.int8).reshape(shape)


def _numbers(
    path: Path, left: dict[str, TensorEntry], name: str, kind: str, shape: tuple[int, ...]
) -> Float32:
    entry = _take(path, left, name, kind, shape)
    values = Tensor(name, entry.shape, FORMATS[entry.kind], np.ascontiguousarray(entry.data)).float32()
    _check_finite(path, name, values)
    return values


def _check_finite(path: Path, name: str, values: Float32) -> None:
    if not np.isfinite(values).all():
        raise ModelError(f"{path}: {printable(name)} has values that are not finite")
