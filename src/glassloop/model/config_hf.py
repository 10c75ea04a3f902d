"""Reads `config.json` into a ModelConfig. Both spellings of rotary positions are read: `rope_theta` with
`rope_scaling`, as most published files have it, and the newer `rope_parameters`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from glassloop.model.build import Factors, LayerSizes, Reach, build_config, config_errors, reaches_of
from glassloop.model.config import (
    MOST_LAYERS,
    AttentionConfig,
    DenseConfig,
    FeedForward,
    ModelConfig,
    NormConfig,
)
from glassloop.model.config_experts import feed_forwards_from_json
from glassloop.model.families import FAMILY_BY_TYPE, ModelFamily
from glassloop.model.layer_sizes import full_head_dim, sizes_from_json
from glassloop.model.recurrent_layers import lfm2_ffn_dim, recurrent_from_json
from glassloop.model.rope import (
    LinearScaling,
    Llama3Scaling,
    PartScaling,
    Rope,
    Scaling,
    YarnScaling,
    long_scaling,
)
from glassloop.model.unsupported import experts_of, mixture_of_experts, unknown_family
from glassloop.ops.exact import log_of
from glassloop.ops.protocol import Activation, QueryGrowth
from glassloop.util.fields import Fields
from glassloop.util.shown import shown


def config_from_json(where: str, values: Mapping[str, Any]) -> tuple[ModelFamily, ModelConfig]:
    if isinstance(values.get("text_config"), dict):
        # A model with more than text: its language part has a config of its own.
        values = {**values, **values["text_config"]}
    fields = Fields(where, values)
    model_type = fields.get("model_type")
    family = FAMILY_BY_TYPE.get(model_type) if isinstance(model_type, str) else None
    if family is None:
        raise fields.error("model_type", unknown_family(model_type))
    if (experts := experts_of(values)) and family.experts is None:
        raise fields.error(experts[0], mixture_of_experts(experts[1]))
    # A window of null says that there is none; any other null, that the default applies.
    stated = {k: v for k, v in values.items() if v is not None or k == "sliding_window"}
    fields = Fields(where, {**family.defaults, **stated})
    for key, accepted in family.only:
        several = accepted if isinstance(accepted, tuple) else (accepted,)
        if fields.get(key, several[0]) not in several:
            raise fields.error(key, f"is {shown(fields.get(key))}; only {several[0]!r} is supported")

    keys = family.keys
    dim = fields.whole(keys["dim"])
    heads = fields.whole(keys["heads"])
    if keys["head_dim"] not in fields.values and dim % heads:
        raise fields.error(keys["heads"], f"is {heads}, which does not divide {keys['dim']} {dim}")
    head_dim = fields.whole(keys["head_dim"], dim // heads)
    context = fields.whole(keys["context"])
    default_eps = 1e-5 if "n_embd" in keys.values() else 1e-6
    reaches = _reaches(fields, family, head_dim, context)
    with config_errors(where):
        eps = family.norm_eps or fields.number(keys["norm_eps"], default_eps)
        norm = NormConfig(eps, family.norm, family.norm_bias)
        has_norm = fields.flag("use_qk_norm", False) if family.qk_norm is None else family.qk_norm
        attention = AttentionConfig(
            heads,
            fields.whole(keys["kv_heads"], heads),
            head_dim,
            scale=family.scale
            or _factor(fields, family, "scale", fields.number("query_pre_attn_scalar", head_dim) ** -0.5),
            growth=_growth(fields),
            qk_norm=norm if has_norm else None,
            qk_norm_of=family.qk_norm_of,
            qk_norm_last=family.qk_norm_last,
            v_norm=family.v_norm,
            qkv_bias=family.qkv_bias or fields.flag(keys["qkv_bias"], False),
            out_bias=family.other_biases or fields.flag(keys["out_bias"], False),
            softcap=fields.number_or_none("attn_logit_softcapping"),
            output_gate=family.output_gate,
            sinks=family.sinks,
        )
        dense = DenseConfig(
            lfm2_ffn_dim(fields) if family.name == "lfm2" else fields.whole(keys["ffn_dim"], 4 * dim),
            _activation(fields, family),
            family.gated,
            bias=family.other_biases or fields.flag(keys["ffn_bias"], False),
        )
        sizes = sizes_from_json(fields, LayerSizes(heads, attention.kv_heads, head_dim), reaches)
        # Layers without keys of their own may have twice the feed-forward instead.
        times = 2 if fields.flag("use_double_wide_mlp", False) else 1
        wide = replace(dense, ffn_dim=times * dense.ffn_dim)
        feed_forwards: list[FeedForward] = [dense if size.kv_from is None else wide for size in sizes]
        if family.experts is not None:
            feed_forwards = feed_forwards_from_json(fields, family.experts, dense, len(reaches))
        return family, build_config(
            family,
            mixer=attention,
            feed_forwards=feed_forwards,
            norm=norm,
            reaches=reaches,
            sizes=sizes,
            others=recurrent_from_json(fields, family, dim, len(reaches)),
            vocab_size=fields.whole(keys["vocab_size"]),
            dim=dim,
            context=context,
            tied=fields.flag("tie_word_embeddings", False),
            logit_softcap=fields.number_or_none("final_logit_softcapping"),
            factors=Factors(
                *(
                    _factor(fields, family, name)
                    for name in ("embedding_scale", "residual_scale", "logit_scale")
                )
            ),
            mask_token=None if family.masked is None else _mask_token(fields),
        )


def _factor(fields: Fields, family: ModelFamily, name: str, default: float = 1.0) -> float:
    """Returns a factor that only some families have."""
    key = family.keys.get(name)
    return default if key is None else fields.number(key, default)


def _growth(fields: Fields) -> QueryGrowth | None:
    """Returns how queries grow with their position."""
    rope = fields.inner("rope_parameters")
    if rope is None or rope.get("llama_4_scaling_beta") is None:
        return None
    return QueryGrowth(rope.number("llama_4_scaling_beta"), rope.whole("original_max_position_embeddings"))


def _mask_token(fields: Fields) -> int:
    token = fields.get("mask_token_id")
    if type(token) is not int or token < 0:
        raise fields.error("mask_token_id", f"is {shown(token)}; the token of a masked place is expected")
    return token


def _activation(fields: Fields, family: ModelFamily) -> Activation:
    key = family.keys["activation"]
    name = fields.get(key, "silu")
    if not isinstance(name, str) or name not in family.activations:
        raise fields.error(key, f"is {shown(name)}; one of {', '.join(family.activations)} is expected")
    return family.activations[name]


def _reaches(fields: Fields, family: ModelFamily, head_dim: int, context: int) -> list[Reach]:
    count = fields.whole(family.keys["layers"], most=MOST_LAYERS)
    if family.positions != "rotary":
        return [(None, None)] * count
    full_rope, local_rope = _ropes(fields, family, head_dim, context)
    window = fields.whole_or_none("sliding_window") if fields.flag("use_sliding_window", True) else None
    local = _local_layers(fields, family, count) if window is not None else [False] * count
    turned = _turned_layers(fields, family, count)
    if family.nope_beside_windows and window is not None:
        turned = local
    return reaches_of(window, local, turned, full_rope, local_rope)


def _local_layers(fields: Fields, family: ModelFamily, count: int) -> list[bool]:
    """Returns for each layer whether it sees only its window."""
    types = fields.get("layer_types")
    if types is not None:
        if not isinstance(types, list) or len(types) != count:
            raise fields.error("layer_types", f"must be a list of {count} names, one for each layer")
        for name in types:
            if name not in ("full_attention", "sliding_attention"):
                raise fields.error(
                    "layer_types", f"has {shown(name)}; full_attention or sliding_attention is expected"
                )
        return [name == "sliding_attention" for name in types]
    if family.full_every is not None:
        every = fields.whole("sliding_window_pattern", family.full_every)
        return [(index + 1) % every != 0 for index in range(count)]
    first = fields.get("max_window_layers", 0)
    if type(first) is not int:
        raise fields.error("max_window_layers", f"is {shown(first)}; a whole number is expected")
    return [index >= first for index in range(count)]


def _turned_layers(fields: Fields, family: ModelFamily, count: int) -> list[bool]:
    """Returns for each layer whether it has rotary positions."""
    if family.nope_every is None:
        return [True] * count
    turned = fields.get("no_rope_layers")  # 1 where a layer has positions, in spite of its name
    if turned is not None:
        if not isinstance(turned, list) or len(turned) != count:
            raise fields.error("no_rope_layers", f"must be a list of {count} numbers, one for each layer")
        return [bool(flag) for flag in turned]
    every = fields.whole("no_rope_layer_interval", family.nope_every)
    return [(index + 1) % every != 0 for index in range(count)]


def _ropes(fields: Fields, family: ModelFamily, head_dim: int, context: int) -> tuple[Rope, Rope]:
    """Returns the rotary positions of layers that see everything, and of layers with a window."""
    base = fields.number("rope_theta", 10_000.0)
    share = _share(fields, 1.0)
    parameters = fields.inner("rope_parameters")
    if parameters is not None and isinstance(parameters.get("full_attention"), dict):
        full, local = parameters.inner("full_attention"), parameters.inner("sliding_attention")
    else:
        full = parameters or fields.inner("rope_scaling")
        local = full if family.local_rope_base is None else None
    local_base = fields.number("rope_local_base_freq", family.local_rope_base or base)
    original = fields.whole_or_none("original_max_position_embeddings")
    full_rope, local_rope = (
        _rope(each, its_base, share, its_head_dim, context, original)
        for each, its_base, its_head_dim in (
            (full, base, full_head_dim(fields, head_dim)),
            (local, local_base, head_dim),
        )
    )
    return full_rope, local_rope._replace(scaling=None) if family.plain_windows else local_rope


def _rope(
    fields: Fields | None, base: float, share: float, head_dim: int, context: int, original: int | None
) -> Rope:
    if fields is None:
        return Rope(base, int(head_dim * share))
    base = fields.number("rope_theta", base)
    share = _share(fields, share)
    if fields.get("rope_type") == "proportional" and fields.get("factor", 1.0) == 1.0:
        return Rope(base, head_dim, PartScaling(int(share * head_dim // 2)))
    dim = int(head_dim * share)
    if fields.get("alpha") and fields.get("rope_type", fields.get("type")) == "dynamic" and dim > 2:
        return Rope(base * fields.number("alpha") ** (dim / (dim - 2)), dim)
    return Rope(base, dim, _scaling(fields, context, dim, original))


def _share(fields: Fields, default: float) -> float:
    """Returns the fraction of each head that turns."""
    share = fields.number("partial_rotary_factor", default)
    turning, head_dim = fields.whole_or_none("rotary_dim"), fields.whole_or_none("head_dim")
    if turning is not None and head_dim is not None:
        share = turning / head_dim
    if share > 1:
        raise fields.error("partial_rotary_factor", f"is {share}; at most 1 is expected")
    return share


def _scaling(fields: Fields, context: int, dim: int, original: int | None) -> Scaling | None:
    kind = fields.get("rope_type", fields.get("type", "default"))
    match kind:
        case "default":
            return None
        case "linear":
            return LinearScaling(fields.number("factor"))
        case "llama3":
            low, high = fields.number("low_freq_factor"), fields.number("high_freq_factor")
            if low >= high:
                raise fields.error(
                    "low_freq_factor", f"is {low}; less than high_freq_factor {high} is expected"
                )
            return Llama3Scaling(
                fields.number("factor"), low, high, fields.whole("original_max_position_embeddings", context)
            )
        case "yarn":
            return YarnScaling(
                fields.number("factor"),
                fields.whole("original_max_position_embeddings", context),
                beta_fast=fields.number("beta_fast", 32.0),
                beta_slow=fields.number("beta_slow", 1.0),
                attention_factor=_yarn_sharpness(fields),
                truncate=fields.flag("truncate", True),
            )
        case "longrope" | "su":
            original = fields.whole("original_max_position_embeddings", original or context)
            long, short = (_listed(fields, name, dim // 2) for name in ("long_factor", "short_factor"))
            factor = fields.number("factor", context / original)
            return long_scaling(
                long, short, context, original, factor, fields.number_or_none("attention_factor")
            )
    expected = "default, linear, llama3, yarn or longrope is expected"
    raise fields.error("rope_type", f"is {shown(kind)}; {expected}")


def _listed(fields: Fields, key: str, count: int) -> tuple[float, ...]:
    """Returns a list of positive numbers, one for each pair of dimensions."""
    values = fields.get(key)
    numbers = isinstance(values, list) and all(
        isinstance(each, int | float) and 0 < each < 1e9 for each in values
    )
    if not numbers or len(values) != count:
        raise fields.error(
            key, f"must be a list of {count} positive numbers, one for each pair of dimensions"
        )
    return tuple(map(float, values))


def _yarn_sharpness(fields: Fields) -> float | None:
    """Returns the factor of cosines and sines, or None for YaRN's own rule. If a file gives both `mscale` and
    `mscale_all_dim`, it is the ratio of what they make."""
    factor = fields.number_or_none("attention_factor")
    above, below = fields.get("mscale"), fields.get("mscale_all_dim")
    if factor is not None or not above or not below:
        return factor
    grown = 0.1 * log_of(max(fields.number("factor"), 1.0))
    return (grown * fields.number("mscale") + 1) / (grown * fields.number("mscale_all_dim") + 1)
