"""Reads from `config.json` and GGUF metadata which layers have experts, and how a token chooses them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from glassloop.model.config import DenseConfig, ExpertsConfig, FeedForward
from glassloop.model.expert_families import ExpertFamily
from glassloop.model.unsupported import EXPERTS_JSON
from glassloop.ops.routing import Gating, Routing, Scores
from glassloop.ops.tensor import Tensor
from glassloop.util.fields import Fields
from glassloop.util.shown import shown

_CHOSEN_JSON = ("num_experts_per_tok", "moe_k", "moe_topk")
_LAYER_STEPS = ("decoder_sparse_step", "moe_layer_interval", "interleave_moe_layer_step")
# The numbers of `expert_gating_func`.
_GGUF_SCORES: Mapping[int, Scores] = {1: "softmax", 2: "sigmoid", 3: "chosen"}


def feed_forwards_from_json(
    fields: Fields, family: ExpertFamily, dense: DenseConfig, count: int
) -> list[FeedForward]:
    """Returns the feed-forward of each layer of a model with experts. Raises ValueError for numbers that do
    not fit each other."""
    routing = Routing(
        fields.whole(_first(fields, EXPERTS_JSON)),
        _same_for_all(fields, _first(fields, _CHOSEN_JSON)),
        family.scores,
        fields.flag("norm_topk_prob", False) if family.normalized is None else family.normalized,
        family.epsilon,
        fields.number("routed_scaling_factor", 1.0),
        fields.whole("n_group", 1),
        fields.whole("topk_group", 1),
        fields.number("router_jitter_noise") if family.scores == "mixer" else 0.0,
    )
    ffn_dim = fields.whole(_first(fields, family.ffn_dim))
    if family.shared_dim is not None:
        shared_dim = _count(fields, family.shared_dim)
    else:
        shared_dim = ffn_dim * (
            _count(fields, family.shared_count)
            if isinstance(family.shared_count, str)
            else family.shared_count
        )
    gating = family.gating
    if gating.limit is not None:
        limit = fields.number("swiglu_limit", gating.limit)
        gating = gating._replace(limit=limit, slope=fields.number("swiglu_alpha", gating.slope))
    experts = _experts(family, dense, routing, ffn_dim, shared_dim, family.choice_bias, gating)
    return [experts if has else dense for has in _layers_with_experts(fields, count)]


def feed_forwards_from_gguf(
    fields: Fields, family: ExpertFamily, dense: Sequence[DenseConfig], tensors: Mapping[str, Tensor]
) -> list[FeedForward]:
    """Returns the feed-forward of each layer of a model with experts, given those without."""
    with_experts = [
        any(f"blk.{index}.ffn_{name}.weight" in tensors for name in ("gate_inp", "down_exps"))
        for index in range(len(dense))
    ]
    if not any(with_experts):
        return list(dense)
    first = with_experts.index(True)
    scores = family.scores
    stated = fields.get("expert_gating_func")
    if stated is not None and scores != "mixer":
        if type(stated) is not int or stated not in _GGUF_SCORES:
            raise fields.error("expert_gating_func", f"is {shown(stated)}; 1 to 3 is expected")
        # Softmax over all, divided by the sum of the chosen, is softmax over the chosen.
        scores = scores if stated == 1 and scores == "chosen" else _GGUF_SCORES[stated]
    normalized = family.normalized
    if normalized is None:
        normalized = fields.flag("expert_weights_norm", family.gguf_normalized)
    routing = Routing(
        fields.whole("expert_count"),
        fields.whole("expert_used_count"),
        scores,
        normalized,
        family.epsilon,
        fields.number_or_none("expert_weights_scale") or 1.0,
        fields.whole("expert_group_count", 1),
        fields.whole("expert_group_used_count", 1),
        0.01 if scores == "mixer" else 0.0,
    )
    ffn_dim = fields.whole("expert_feed_forward_length", dense[first].ffn_dim)
    shared_dim = 0
    at = f"blk.{first}.ffn_down_shexp.weight"
    if at in tensors:
        shared_dim = tensors[at].shape[-1]
    choice_bias = family.choice_bias and f"blk.{first}.exp_probs_b.bias" in tensors
    experts = _experts(family, dense[first], routing, ffn_dim, shared_dim, choice_bias, family.gating)
    return [experts if has else each for has, each in zip(with_experts, dense, strict=True)]


def _experts(
    family: ExpertFamily,
    dense: DenseConfig,
    routing: Routing,
    ffn_dim: int,
    shared_dim: int,
    choice_bias: bool,
    gating: Gating,
) -> ExpertsConfig:
    return ExpertsConfig(
        ffn_dim,
        routing,
        gating._replace(activation=dense.activation),
        bias=family.bias,
        router_bias=family.router_bias,
        choice_bias=choice_bias,
        weigh_input=family.weigh_input,
        shared=DenseConfig(shared_dim, dense.activation) if shared_dim else None,
        shared_gate=family.shared_gate and bool(shared_dim),
    )


def _same_for_all(fields: Fields, key: str) -> int:
    """Returns a number that some files list for each layer."""
    value = fields.get(key)
    if not isinstance(value, list):
        return fields.whole(key)
    if len({*map(str, value)}) != 1 or type(value[0]) is not int or value[0] < 1:
        raise fields.error(key, f"is {shown(value)}; the same number for each layer is expected")
    return value[0]


def _first(fields: Fields, keys: Sequence[str]) -> str:
    """Returns the first of some keys that a file has, or the first of all."""
    return next((key for key in keys if fields.get(key) is not None), keys[0])


def _count(fields: Fields, key: str) -> int:
    """Returns a whole number that may be 0."""
    value = fields.get(key, 0)
    return 0 if value == 0 else fields.whole(key)


def _layers_with_experts(fields: Fields, count: int) -> list[bool]:
    listed = fields.get("moe_layers")
    if listed is not None:
        return _listed(fields, "moe_layers", count)
    kinds = fields.get("mlp_layer_types")
    if kinds is not None:
        if not isinstance(kinds, list) or len(kinds) != count or {*kinds} - {"sparse", "dense"}:
            raise fields.error("mlp_layer_types", f"must be a list of {count} names, sparse or dense")
        return [kind == "sparse" for kind in kinds]
    first = max(_count(fields, "first_k_dense_replace"), _count(fields, "moe_layer_start_index"))
    last: Any = fields.get("moe_layer_end_index", -1)
    if type(last) is not int or last < -1:
        raise fields.error("moe_layer_end_index", f"is {shown(last)}; -1 or a layer is expected")
    last = count - 1 if last == -1 else last
    step = fields.whole(_first(fields, _LAYER_STEPS), 1)
    dense = _listed(fields, "mlp_only_layers", count) if fields.get("mlp_only_layers") else [False] * count
    return [first <= index <= last and (index + 1) % step == 0 and not dense[index] for index in range(count)]


def _listed(fields: Fields, key: str, count: int) -> list[bool]:
    """Returns for each layer whether a list of layers has it."""
    layers = fields.get(key)
    if not isinstance(layers, list) or any(type(each) is not int or not 0 <= each < count for each in layers):
        raise fields.error(key, f"must be a list of layers from 0 to {count - 1}")
    return [index in layers for index in range(count)]
