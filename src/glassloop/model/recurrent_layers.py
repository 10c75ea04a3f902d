"""Reads which layers of a model are recurrent, and their sizes, from `config.json` or GGUF metadata."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from glassloop.model.config import Mixer, ShortConvConfig
from glassloop.model.families import ModelFamily
from glassloop.util.fields import Fields
from glassloop.util.shown import shown

OtherMixers = dict[int, Mixer]  # by layer: the mixer that it has instead of attention


def recurrent_from_json(fields: Fields, family: ModelFamily, dim: int, count: int) -> OtherMixers:
    """Returns the mixers of the layers that have no attention."""
    if family.recurrent is None:
        return {}
    layers = _recurrent_layers(fields, family.recurrent_type, count)
    mixer = ShortConvConfig(dim, fields.whole("conv_L_cache", 3), fields.flag("conv_bias", False))
    return dict.fromkeys(layers, mixer)


def recurrent_from_gguf(fields: Fields, family: ModelFamily, dim: int, count: int) -> OtherMixers:
    """Returns the mixers of the layers that have no attention."""
    if family.recurrent is None:
        return {}
    kv_heads = fields.get("attention.head_count_kv")
    if not isinstance(kv_heads, np.ndarray) or len(kv_heads) != count:
        raise fields.error(
            "attention.head_count_kv", f"must be a list of {count} numbers, one for each layer"
        )
    layers = [index for index, heads in enumerate(kv_heads.tolist()) if heads == 0]
    return dict.fromkeys(layers, ShortConvConfig(dim, fields.whole("shortconv.l_cache", 3)))


def lfm2_ffn_dim(fields: Fields) -> int:
    """Returns the width of the feed-forward of LFM2, which config.json states before it is adjusted."""
    size = fields.whole("block_ff_dim", fields.get("intermediate_size"))
    if not fields.flag("block_auto_adjust_ff_dim", True):
        return size
    size = int(2 * size / 3)
    multiplier = fields.number_or_none("block_ffn_dim_multiplier")
    if multiplier is None:
        return size
    multiple = fields.whole("block_multiple_of", 256)
    return -(-int(multiplier * size) // multiple) * multiple


def _recurrent_layers(fields: Fields, name: str, count: int) -> Sequence[int]:
    """Returns which layers have the type `name`; all others have attention."""
    types = fields.get("layer_types")
    if types is None and isinstance(fields.get("full_attn_idxs"), list):
        attention = fields.get("full_attn_idxs")
        types = ["full_attention" if index in attention else name for index in range(count)]
    if not isinstance(types, list) or len(types) != count:
        raise fields.error("layer_types", f"must be a list of {count} names, one for each layer")
    for each in types:
        if each not in (name, "full_attention"):
            raise fields.error("layer_types", f"has {shown(each)}; {name} or full_attention is expected")
    return [index for index, each in enumerate(types) if each == name]
