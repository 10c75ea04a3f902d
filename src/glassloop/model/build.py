"""Builds a ModelConfig from the kinds of layers that a file describes and what is fixed for its family.

Both readers end here (`config_hf.py`, `config_gguf.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from glassloop.errors import ModelError
from glassloop.model.config import AttentionConfig, FeedForward, LayerConfig, Mixer, ModelConfig, NormConfig
from glassloop.model.families import ModelFamily
from glassloop.model.rope import Rope

Reach = tuple[int | None, Rope | None]  # a layer's window, and its rotary positions


class Factors(NamedTuple):
    """What files multiply with."""

    embedding: float = 1.0
    residual: float = 1.0
    logits: float = 1.0


class LayerSizes(NamedTuple):
    """What may differ in size between the layers of a model."""

    heads: int
    kv_heads: int
    head_dim: int
    value_is_key: bool = False
    kv_from: int | None = None  # the layer whose keys and values this one reads


def build_config(
    family: ModelFamily,
    *,
    mixer: AttentionConfig,  # of the layers with attention
    feed_forwards: Sequence[FeedForward],  # of each layer
    norm: NormConfig,
    reaches: Sequence[Reach],  # of each layer
    sizes: Sequence[LayerSizes] | None = None,  # of each layer, where a file lists them
    others: Mapping[int, Mixer] = MappingProxyType({}),  # by layer: a mixer in place of `mixer`
    vocab_size: int,
    dim: int,
    context: int,
    tied: bool,
    logit_softcap: float | None,
    factors: Factors = Factors(),  # it cannot change
    mask_token: int | None = None,
) -> ModelConfig:
    if sizes is None:
        sizes = [LayerSizes(mixer.heads, mixer.kv_heads, mixer.head_dim)] * len(reaches)
    kinds = list(zip(reaches, sizes, feed_forwards, strict=True))
    layers = {
        ((window, rope), size, feed_forward): LayerConfig(
            replace(mixer, **size._asdict(), window=window, rope=rope),
            feed_forward,
            norm,
            family.norm_place,
            family.parallel,
            factors.residual,
            family.stream_scale,
        )
        for (window, rope), size, feed_forward in set(kinds)
    }
    chosen = [layers[kind] for kind in kinds]
    for index, other in others.items():
        chosen[index] = replace(chosen[index], mixer=other)
    return ModelConfig(
        family=family.name,
        vocab_size=vocab_size,
        dim=dim,
        context=context,
        layers=tuple(chosen),
        final_norm=norm if family.final_norm else None,
        positions=family.positions,
        position_offset=family.position_offset,
        embedding_scale=dim**0.5 if family.scaled_embedding else factors.embedding,
        tied=tied,
        logit_softcap=logit_softcap,
        logit_scale=1 / factors.logits if family.logit_divisor else factors.logits,
        mask_token=mask_token,
        masks_shifted=family.masked == "next",
    )


def reaches_of(
    window: int | None, local: Sequence[bool], turned: Sequence[bool], full_rope: Rope, local_rope: Rope
) -> list[Reach]:
    """Returns the reach of each layer: `local` layers see a window, `turned` ones have rotary positions."""
    kinds = {True: (window, local_rope), False: (None, full_rope)}
    return [
        (kinds[is_local][0], kinds[is_local][1] if is_turned else None)
        for is_local, is_turned in zip(local, turned, strict=True)
    ]


@contextmanager
def config_errors(where: str) -> Iterator[None]:
    """Turns the ValueError of a config into a ModelError that names the file."""
    try:
        yield
    except ValueError as error:
        raise ModelError(f"{where}: {error}") from None


def sharing_layers(local: Sequence[bool], shared: int) -> list[int | None]:
    """Returns for each layer the one whose keys and values it reads, if the last `shared` layers have none of
    their own: the last layer before them with the same reach."""
    own = len(local) - shared
    last = {is_local: index for index, is_local in enumerate(local[:own])}
    if not all(is_local in last for is_local in local[own:]):
        raise ValueError(f"no layer before the last {shared} keeps keys and values of their kind")
    return [None] * own + [last[is_local] for is_local in local[own:]]
