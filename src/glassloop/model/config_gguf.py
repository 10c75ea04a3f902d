"""Reads GGUF metadata into a ModelConfig. The names of the tensors tell what it leaves open: biases, and
whether the language head is a matrix of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from glassloop.model.build import Factors, LayerSizes, Reach, build_config, config_errors, reaches_of
from glassloop.model.config import (
    MOST_LAYERS,
    AttentionConfig,
    DenseConfig,
    FeedForward,
    ModelConfig,
    NormConfig,
)
from glassloop.model.config_experts import feed_forwards_from_gguf
from glassloop.model.families import FAMILY_BY_TYPE, GGUF_WITH_EXPERTS, ModelFamily
from glassloop.model.layer_sizes import sizes_from_gguf
from glassloop.model.recurrent_layers import recurrent_from_gguf
from glassloop.model.rope import LinearScaling, ListedScaling, Rope, Scaling, YarnScaling, long_scaling
from glassloop.model.unsupported import EXPERTS_GGUF, mixture_of_experts, unknown_family
from glassloop.ops.exact import log_of
from glassloop.ops.protocol import QueryGrowth
from glassloop.ops.tensor import Tensor
from glassloop.util.fields import Fields
from glassloop.util.shown import shown


def config_from_gguf(
    where: str, metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> tuple[ModelFamily, ModelConfig]:
    architecture = metadata.get("general.architecture")
    family = FAMILY_BY_TYPE.get(architecture) if isinstance(architecture, str) else None
    fields = Fields(where, metadata, prefix=f"{architecture}.")
    if family is None:
        raise Fields(where, {}).error("general.architecture", unknown_family(architecture))
    experts = fields.get(EXPERTS_GGUF)
    if type(experts) is int and experts > 1:
        family = GGUF_WITH_EXPERTS.get(family.name, family)
        if family.experts is None:
            raise fields.error(EXPERTS_GGUF, mixture_of_experts(experts))

    count = fields.whole("block_count", most=MOST_LAYERS)
    if family.more_layers:
        count = max(count - (fields.whole_or_none("nextn_predict_layers") or 0), 1)
    dim = fields.whole("embedding_length")
    others = recurrent_from_gguf(fields, family, dim, count)
    heads = _of_each_layer(fields, "attention.head_count", count)
    kv_heads = _of_each_layer(fields, "attention.head_count_kv", count, heads, others)
    ffn_dims = _of_each_layer(fields, "feed_forward_length", count)
    head_dim = fields.whole("attention.key_length", max(dim // heads[0], 1))
    if fields.whole("attention.value_length", head_dim) != head_dim:
        raise fields.error("attention.value_length", f"must equal attention.key_length, {head_dim}")
    wide = family.gguf_wide_scale_layers == count
    eps = f"attention.layer_norm_{'' if family.norm == 'layer' else 'rms_'}epsilon"
    qkv_bias = "blk.0.attn_q.bias" in tensors or "blk.0.attn_qkv.bias" in tensors
    reaches = _reaches(fields, family, tensors, count, head_dim)
    sizes = [LayerSizes(*each, head_dim) for each in zip(heads, kv_heads, strict=True)]
    with config_errors(where):
        norm = NormConfig(family.norm_eps or fields.number(eps), family.norm, family.norm_bias)
        has_norm = "blk.0.attn_q_norm.weight" in tensors if family.qk_norm is None else family.qk_norm
        attention = AttentionConfig(
            heads[0],
            kv_heads[0],
            head_dim,
            scale=family.scale
            or fields.number("attention.scale", (dim / heads[0] if wide else head_dim) ** -0.5),
            growth=_growth(fields),
            qk_norm=norm if has_norm else None,
            qk_norm_of=family.qk_norm_of,
            qk_norm_last=family.qk_norm_last,
            v_norm=family.v_norm,
            qkv_bias=family.qkv_bias or qkv_bias,
            out_bias=family.other_biases or "blk.0.attn_output.bias" in tensors,
            softcap=fields.number_or_none("attn_logit_softcapping"),
            output_gate=family.output_gate,
            sinks=family.sinks,
        )
        bias = family.other_biases or "blk.0.ffn_up.bias" in tensors
        dense = {dim: DenseConfig(dim, family.gguf_activation, family.gated, bias) for dim in ffn_dims}
        feed_forwards: list[FeedForward] = [dense[dim] for dim in ffn_dims]
        if family.experts is not None:
            feed_forwards = feed_forwards_from_gguf(
                fields, family.experts, [dense[dim] for dim in ffn_dims], tensors
            )
        return family, build_config(
            family,
            mixer=attention,
            feed_forwards=feed_forwards,
            norm=norm,
            reaches=reaches,
            others=others,
            sizes=sizes_from_gguf(fields, sizes, reaches, tensors if family.v_norm else None),
            vocab_size=fields.whole("vocab_size", _rows(tensors, "token_embd.weight")),
            dim=dim,
            context=fields.whole("context_length"),
            tied="output.weight" not in tensors,
            logit_softcap=fields.number_or_none("final_logit_softcapping"),
            factors=Factors(
                *(fields.number(f"{name}_scale", 1.0) for name in ("embedding", "residual", "logit"))
            ),
        )


def _growth(fields: Fields) -> QueryGrowth | None:
    """Returns how queries grow with their position."""
    rate = fields.number_or_none("attention.temperature_scale")
    if rate is None:
        return None
    step = fields.whole("attention.temperature_length", fields.get("rope.scaling.original_context_length"))
    return QueryGrowth(rate, step)


def _rows(tensors: Mapping[str, Tensor], name: str) -> int | None:
    return tensors[name].shape[0] if name in tensors else None


def _of_each_layer(
    fields: Fields,
    key: str,
    count: int,
    defaults: Sequence[int] | None = None,
    others: Collection[int] = (),
) -> Sequence[int]:
    """Returns a number for each layer: some files list them all, others have one for all layers. Of `others`
    the number does not matter; they get that of the first layer that is none of them."""
    value = fields.get(key)
    if not isinstance(value, np.ndarray):
        return defaults if value is None and defaults else [fields.whole(key)] * count
    if len(value) != count:
        raise fields.error(key, f"has {len(value)} values; one for each of {count} layers is expected")
    numbers = value.tolist()
    counted = [number for index, number in enumerate(numbers) if index not in others]
    numbers = [counted[0] if index in others and counted else each for index, each in enumerate(numbers)]
    each = (Fields(fields.where, {fields.prefix + key: number}, fields.prefix) for number in numbers)
    return [layer.whole(key) for layer in each]


def _reaches(
    fields: Fields, family: ModelFamily, tensors: Mapping[str, Tensor], count: int, head_dim: int
) -> list[Reach]:
    if family.positions != "rotary":
        return [(None, None)] * count
    turning = fields.whole("rope.dimension_count", head_dim)
    scaling = _scaling(fields, family, tensors, turning)
    rope = Rope(fields.number("rope.freq_base", 10_000.0), turning, scaling)
    local_base = fields.number("rope.freq_base_swa", family.local_rope_base or rope.base)
    plain = family.local_rope_base is not None or family.plain_windows
    local_dim = fields.whole("rope.dimension_count_swa", fields.whole("attention.key_length_swa", rope.dim))
    local_rope = Rope(local_base, local_dim, None if plain else scaling)
    window = fields.whole_or_none("attention.sliding_window")
    local = _local_layers(fields, family, count) if window is not None else [False] * count
    turned = [family.nope_every is None or (index + 1) % family.nope_every != 0 for index in range(count)]
    if family.nope_beside_windows and window is not None:
        turned = local
    return reaches_of(window, local, turned, rope, local_rope)


def _local_layers(fields: Fields, family: ModelFamily, count: int) -> list[bool]:
    pattern = fields.get("attention.sliding_window_pattern")
    if isinstance(pattern, np.ndarray):
        if len(pattern) != count:
            raise fields.error(
                "attention.sliding_window_pattern", f"has {len(pattern)} entries for {count} layers"
            )
        return [bool(local) for local in pattern]
    if family.full_every is None:
        return [True] * count
    every = fields.whole("attention.sliding_window_pattern", family.full_every)
    return [(index + 1) % every != 0 for index in range(count)]


def _scaling(
    fields: Fields, family: ModelFamily, tensors: Mapping[str, Tensor], turning: int
) -> Scaling | None:
    if "rope_freqs.weight" in tensors:
        return ListedScaling(_divisors(fields, tensors, "rope_freqs.weight", turning // 2))
    context = fields.whole("context_length")
    if "rope_factors_long.weight" in tensors:
        names = ("rope_factors_long.weight", "rope_factors_short.weight")
        original = fields.whole("rope.scaling.original_context_length", context)
        long, short = (_divisors(fields, tensors, name, turning // 2) for name in names)
        return long_scaling(
            long,
            short,
            context,
            original,
            context / original,
            fields.number_or_none("rope.scaling.attn_factor"),
        )
    kind = fields.get("rope.scaling.type", "none" if fields.get("rope.scale_linear") is None else "linear")
    match kind if isinstance(kind, str) else None:
        case "none":
            return None
        case "linear":
            return LinearScaling(fields.number("rope.scaling.factor", fields.get("rope.scale_linear")))
        case "yarn":
            return YarnScaling(
                fields.number("rope.scaling.factor"),
                fields.whole("rope.scaling.original_context_length", fields.get("context_length")),
                beta_fast=fields.number("rope.scaling.yarn_beta_fast", 32.0),
                beta_slow=fields.number("rope.scaling.yarn_beta_slow", 1.0),
                attention_factor=_yarn_sharpness(fields),
                truncate=family.gguf_yarn_truncates,
            )
    raise fields.error("rope.scaling.type", f"is {shown(kind)}; none, linear or yarn is expected")


def _yarn_sharpness(fields: Fields) -> float | None:
    """Returns the factor of cosines and sines, or None for YaRN's own rule."""
    factor, rate = (
        fields.number_or_none("rope.scaling.attn_factor"),
        fields.get("rope.scaling.yarn_log_multiplier"),
    )
    if factor is not None or not rate:
        return factor
    grown = 0.1 * log_of(max(fields.number("rope.scaling.factor"), 1.0))
    return (grown + 1) / (grown * fields.number("rope.scaling.yarn_log_multiplier") + 1)


def _divisors(fields: Fields, tensors: Mapping[str, Tensor], name: str, count: int) -> tuple[float, ...]:
    """Returns the numbers that a file lists to divide the frequencies by."""
    found = tensors[name].float32().reshape(-1) if name in tensors else np.zeros(0)
    if len(found) != count or not (np.isfinite(found) & (found > 0)).all():
        raise Fields(fields.where, {}).error(
            name, f"must hold {count} positive numbers, one for each pair of dimensions"
        )
    return tuple(found.tolist())
