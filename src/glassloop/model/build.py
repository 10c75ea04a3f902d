"""Builds a ModelConfig from what a file says and what is fixed for its family.

Both readers end here (`config_hf.py`, `config_gguf.py`): this is where a family's data becomes kinds of
mixers and feed-forwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from glassloop.errors import ModelError
from glassloop.model.config import AttentionConfig, DenseConfig, LayerConfig, ModelConfig, NormConfig
from glassloop.model.families import ModelFamily
from glassloop.model.rope import Rope
from glassloop.ops.protocol import Activation


class LayerSettings(NamedTuple):
    """How far back a layer sees, and how it knows positions. Families vary these from layer to layer."""

    window: int | None = None
    rope: Rope | None = None


def build_config(
    where: str,
    family: ModelFamily,
    *,
    layer_settings: Sequence[LayerSettings],  # of each layer
    vocab_size: int,
    dim: int,
    ffn_dim: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    context: int,
    attention_scale: float,
    norm_eps: float,
    activation: Activation,
    qkv_bias: bool,
    out_bias: bool,
    ffn_bias: bool,
    tied: bool,
    attention_softcap: float | None,
    logit_softcap: float | None,
) -> ModelConfig:
    """Returns the config. A number out of bounds is a ModelError that names the file and the field."""
    try:
        norm = NormConfig(norm_eps, family.norm)
        attention = AttentionConfig(
            heads,
            kv_heads,
            head_dim,
            attention_scale,
            qk_norm=norm if family.qk_norm else None,
            qkv_bias=family.qkv_bias or qkv_bias,
            out_bias=family.other_biases or out_bias,
            softcap=attention_softcap,
        )
        dense = DenseConfig(ffn_dim, activation, family.gated, family.other_biases or ffn_bias)
        layers = {
            settings: LayerConfig(replace(attention, **settings._asdict()), dense, norm, family.norm_place)
            for settings in set(layer_settings)
        }
        return ModelConfig(
            family=family.name,
            vocab_size=vocab_size,
            dim=dim,
            context=context,
            layers=tuple(layers[settings] for settings in layer_settings),
            final_norm=norm if family.final_norm else None,
            positions=family.positions,
            position_offset=family.position_offset,
            embedding_scale=dim**0.5 if family.scaled_embedding else 1.0,
            tied=tied,
            logit_softcap=logit_softcap,
        )
    except ValueError as error:
        raise ModelError(f"{where}: {error}") from None
