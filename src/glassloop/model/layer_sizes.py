"""Reads how the attention of layers differs in size where a file says so: heads, their width, and whose keys
and values they read (Gemma 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from glassloop.model.build import LayerSizes, Reach, sharing_layers
from glassloop.ops.tensor import Tensor
from glassloop.util.fields import Fields
from glassloop.util.shown import shown


def sizes_from_json(fields: Fields, base: LayerSizes, reaches: Sequence[Reach]) -> list[LayerSizes]:
    """Returns the sizes of each layer, given those that `config.json` has for all."""
    local = [window is not None for window, _ in reaches]
    value_is_key = fields.flag("attention_k_eq_v", False)
    full = base._replace(value_is_key=value_is_key)
    listed = fields.inner("per_layer_config")
    if listed is None:
        kv_heads = (
            fields.whole("num_global_key_value_heads", base.kv_heads) if value_is_key else base.kv_heads
        )
        full = full._replace(kv_heads=kv_heads, head_dim=full_head_dim(fields, base.head_dim))
    sources = _sources(fields, "num_kv_shared_layers", local)
    sizes = []
    for index, (is_local, source) in enumerate(zip(local, sources, strict=True)):
        size = (base if is_local else full)._replace(kv_from=source)
        own = None if listed is None else listed.inner(str(index))
        if own is not None:
            _only(own, ("head_dim", "num_key_value_heads"))
            kv_heads = own.whole("num_key_value_heads", size.kv_heads)
            size = size._replace(kv_heads=kv_heads, head_dim=own.whole("head_dim", size.head_dim))
        sizes.append(size)
    return sizes


def full_head_dim(fields: Fields, head_dim: int) -> int:
    """Returns the width of the heads of layers without a window."""
    listed = fields.inner("per_layer_config")
    if listed is None:
        return fields.whole("global_head_dim", head_dim)
    own = [listed.inner(key) for key in listed.values]
    return max([each.whole("head_dim", head_dim) for each in own if each is not None], default=head_dim)


def sizes_from_gguf(
    fields: Fields,
    base: Sequence[LayerSizes],
    reaches: Sequence[Reach],
    tensors: Mapping[str, Tensor] | None,
) -> list[LayerSizes]:
    """Returns the sizes of each layer, given the heads that GGUF metadata have. With `tensors`, values of
    layers that have no matrix for them are their keys."""
    local = [window is not None for window, _ in reaches]
    narrow = fields.whole("attention.key_length_swa", base[0].head_dim)
    if fields.whole("attention.value_length_swa", narrow) != narrow:
        raise fields.error("attention.value_length_swa", f"must equal attention.key_length_swa, {narrow}")
    sizes = []
    for index, source in enumerate(_sources(fields, "attention.shared_kv_layers", local)):
        size = base[index]._replace(kv_from=source)
        if local[index]:
            size = size._replace(head_dim=narrow)
        alone = tensors is not None and f"blk.{index}.attn_v.weight" not in tensors
        sizes.append(size._replace(value_is_key=alone and source is None))
    return sizes


def _sources(fields: Fields, key: str, local: Sequence[bool]) -> list[int | None]:
    shared = fields.get(key, 0)
    if type(shared) is not int or not 0 <= shared < len(local):
        raise fields.error(key, f"is {shown(shared)}; 0 to {len(local) - 1} is expected")
    try:
        return sharing_layers(local, shared)
    except ValueError as error:
        raise fields.error(key, f"is {shared}: {error}") from None


def _only(fields: Fields, names: Sequence[str]) -> None:
    for key, value in fields.values.items():
        if key not in names and value is not None:
            raise fields.error(key, f"differs between layers; only {' and '.join(names)} may")
