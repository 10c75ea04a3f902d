"""Finds each weight of a model among the tensors of a file, checks its shape, and converts it to our layout.

Every weight becomes [out, in], with rotary halves side by side, fused matrices split and norms as the plain
factor, so that the forward pass has one case. A tensor that is no weight of the model is an error too: file
and config do not belong together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from glassloop.errors import ModelError
from glassloop.model import expert_weights
from glassloop.model.config import AttentionConfig, ExpertsConfig, ModelConfig, Shapes
from glassloop.model.expert_families import GGUF_EXPERTS, ExpertPart
from glassloop.model.families import (
    FAMILIES,
    GGUF_FUSED_LAYER,
    GGUF_LAYER,
    GGUF_TOP,
    Bare,
    ModelFamily,
    WeightPart,
)
from glassloop.ops.tensor import Tensor
from glassloop.util.shown import printable

# The parts of models that see and hear.
_OTHER_PARTS = (
    r"(model\.)?(vision_tower|vision_model|visual|vision_embed_tokens|embed_vision|multi_modal_projector"
    r"|audio_tower|embed_audio)\."
)
# What checkpoints hold besides weights: old buffers and rotary tables.
_IGNORED = (
    r"(.*\.)?(rotary_emb\.inv_freq|attn\.(masked_)?bias|masked_bias|embed_positions\.weights|rope_freqs\.weight|rope_factors_(long|short)\.weight)$"
    r"|" + _OTHER_PARTS
)
_HF_PREFIXES = (
    "",
    "model.",
    "transformer.",
    "model.transformer.",
    "language_model.model.",
    "model.language_model.",
    "language_model.",
)


def family_of(config: ModelConfig) -> ModelFamily:
    return next(family for family in FAMILIES if family.name == config.family)


def hf_name(config: ModelConfig, name: str) -> tuple[str, WeightPart | None]:
    """Returns the name of one of our weights in a file for transformers, and which part of it it is."""
    family = family_of(config)
    prefix = "transformer." if family.transposed else "model."
    stem, _, suffix = name.rpartition(".")
    if not stem.startswith("layers."):
        theirs = family.top[stem]
        return ("" if stem == "head" else prefix) + f"{theirs}.{suffix}", None
    _, index, kind = stem.split(".", 2)
    entry = family.layer[kind]
    part = entry if isinstance(entry, WeightPart) else None
    pattern = part.name if part else entry
    assert isinstance(pattern, str)
    return f"{prefix}{_full_name(pattern, index, suffix)}", part


def _full_name(pattern: str, index: str, suffix: str) -> str:
    return pattern.format(i=index) + ("" if isinstance(pattern, Bare) else f".{suffix}")


class _Source(NamedTuple):
    """The tensors of one file, their names, and the function that converts one to our layout."""

    where: str
    tensors: Mapping[str, Tensor]
    top: Mapping[str, str]
    layer: Mapping[str, str | WeightPart | ExpertPart]
    prefixes: tuple[str, ...]
    adapt: Callable[[str, Tensor], Tensor]


def weights_from_gguf(
    where: str, family: ModelFamily, config: ModelConfig, tensors: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    def adapt(name: str, tensor: Tensor) -> Tensor:
        kind = name.split(".")[-2]
        return _turning_halves(name, tensor, config) if family.gguf_pairs and kind in ("q", "k") else tensor

    common = GGUF_FUSED_LAYER if "blk.0.attn_qkv.weight" in tensors else GGUF_LAYER
    layer: dict[str, str | WeightPart | ExpertPart] = {**common, **GGUF_EXPERTS, **family.gguf_layer}
    return _collect(_Source(where, tensors, {**GGUF_TOP, **family.gguf_top}, layer, ("",), adapt), config)


def weights_from_safetensors(
    where: str, family: ModelFamily, config: ModelConfig, tensors: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    def adapt(name: str, tensor: Tensor) -> Tensor:
        if family.norms_from_zero and name.endswith("_norm.weight"):
            return Tensor.of(tensor.name, tensor.float32() + np.float32(1))
        return (
            _turning_halves(name, tensor, config)
            if family.pairs and name.split(".")[-2] in ("q", "k")
            else tensor
        )

    if family.recurrent is not None:
        # Convolutions over single channels are stored as [channels, 1, width].
        tensors = {name: _kernel(tensor) if ".conv" in name else tensor for name, tensor in tensors.items()}
    if family.transposed:
        # Only the matrices of layers are stored as [in, out], not the embeddings.
        matrices = {name for name, tensor in tensors.items() if ".c_" in name and len(tensor.shape) == 2}
        tensors = {name: t.transposed() if name in matrices else t for name, t in tensors.items()}
    layer = {**family.layer, **(family.experts.layer if family.experts else {})}
    return _collect(_Source(where, tensors, family.top, layer, _HF_PREFIXES, adapt), config)


def _collect(source: _Source, config: ModelConfig) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = {}
    used: set[str] = set()
    shapes = config.shapes()
    for name, shape in shapes.items():
        theirs, tensor = _find(source, config, name, shapes)
        used.add(theirs)
        if tensor.shape != shape:
            raise ModelError(
                f"{source.where}: {theirs} has shape {tensor.shape}; its config makes {name} {shape}"
            )
        weights[name] = source.adapt(name, tensor)
    if config.tied:
        # Files often store the shared matrix a second time, under the head's name.
        used |= {prefix + source.top["head"] + ".weight" for prefix in source.prefixes}
    for name in source.tensors:
        if name not in used and not re.match(_IGNORED, name) and not _is_of_more_layers(name, config):
            raise ModelError(
                f"{source.where}: {printable(name)} has no place in a {config.family} model of this config"
            )
    return weights


def left_out(names: Iterable[str]) -> tuple[str, ...]:
    """Returns a line that says which parts of a model with more than text are not read, if it has any."""
    parts = sorted({found[2] for name in names if (found := re.match(_OTHER_PARTS, name))})
    return (f"only the language model is read; left out: {', '.join(parts)}",) if parts else ()


def _is_of_more_layers(name: str, config: ModelConfig) -> bool:
    """Returns whether a tensor is of a layer behind the last, of a family that has such layers."""
    layer = re.match(r"(?:model\.layers|blk)\.(\d+)\.", name) if family_of(config).more_layers else None
    return layer is not None and int(layer[1]) >= len(config.layers)


def _find(source: _Source, config: ModelConfig, name: str, shapes: Shapes) -> tuple[str, Tensor]:
    """Returns the file's name of one of our weights, and its tensor."""
    stem, _, suffix = name.rpartition(".")
    index, kind, number = "", stem, ""
    if stem.startswith("layers."):
        _, index, kind = stem.split(".", 2)
        kind, number = expert_weights.split_kind(kind)
    entry = source.layer[kind] if index else source.top[stem]
    if isinstance(entry, ExpertPart):
        wanted = expert_weights.name_of(entry, index, number, suffix)
    else:
        pattern = entry.name if isinstance(entry, WeightPart) else entry
        wanted = _full_name(pattern, index, suffix)
    for prefix in source.prefixes:
        theirs = prefix + wanted
        if theirs in source.tensors:
            tensor = source.tensors[theirs]
            if isinstance(entry, WeightPart):
                sizes = [shapes[f"layers.{index}.{each}.{suffix}"][0] for each in entry.among]
                heads = config.heads if entry.each_head else 1
                tensor = _part(source.where, tensor, entry, sizes, heads)
            elif isinstance(entry, ExpertPart):
                experts = config.layers[int(index)].feed_forward
                assert isinstance(experts, ExpertsConfig)
                count = experts.routing.experts
                tensor = expert_weights.take(source.where, tensor, entry, number, count, suffix)
            return theirs, tensor
    raise ModelError(f"{source.where}: {wanted} is missing ({name} of the model)")


def _part(where: str, tensor: Tensor, part: WeightPart, sizes: Sequence[int], heads: int) -> Tensor:
    """Returns the rows of a fused matrix, which holds weights with these numbers of rows, that are one of
    ours."""
    if tensor.shape[0] != sum(sizes):
        rows = f"{' + '.join(map(str, sizes))} for {', '.join(part.among)}"
        raise ModelError(f"{where}: {tensor.name} has {tensor.shape[0]} rows; its config makes them {rows}")
    first = sum(sizes[: part.place])
    last = first + sizes[part.place]
    if not part.each_head:
        return tensor.rows(slice(first, last))
    order = np.arange(sum(sizes)).reshape(heads, -1)[:, first // heads : last // heads]
    return tensor.rows(order.reshape(-1))


def _kernel(tensor: Tensor) -> Tensor:
    """Returns the weights of a convolution over single channels as [channels, width]."""
    if len(tensor.shape) != 3 or tensor.shape[1] != 1:
        return tensor
    return tensor._replace(shape=(tensor.shape[0], tensor.shape[2]))


def _turning_halves(name: str, tensor: Tensor, config: ModelConfig) -> Tensor:
    """Reorders the rows of each head that turn from a0 b0 a1 b1 …, as some files store them, to
    a0 a1 … b0 b1 …"""
    mixer = config.layers[int(name.split(".")[1])].mixer
    assert isinstance(mixer, AttentionConfig), "only attention has queries and keys"
    turning = mixer.head_dim if mixer.rope is None else mixer.rope.dim
    rows = np.arange(tensor.shape[0]).reshape(-1, mixer.head_dim)
    pairs = rows[:, :turning].reshape(len(rows), -1, 2).swapaxes(1, 2).reshape(len(rows), -1)
    return tensor.rows(np.concatenate([pairs, rows[:, turning:]], 1).reshape(-1))
