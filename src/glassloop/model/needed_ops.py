"""Which operations of an op set a model needs. An op set for a new device may lack some; a model that needs
one of them is refused before its weights are loaded."""

from __future__ import annotations

from collections.abc import Iterator

from glassloop.model.config import (
    DenseConfig,
    ExpertsConfig,
    FeedForward,
    LayerConfig,
    ModelConfig,
    NormConfig,
    ShortConvConfig,
)
from glassloop.ops.protocol import Ops, check_has


def check_ops(config: ModelConfig, ops: Ops) -> None:
    """Raises if the op set lacks an operation that the model needs."""
    check_has(ops, needed_ops(config), f"a model of the family {config.family}")


def needed_ops(config: ModelConfig) -> list[str]:
    """Returns the operations of a forward pass: names of methods of `Ops`, after a colon what kind of it."""
    needed = {"embed", "linear", "head", "add", "take"}
    needed |= {name for layer in config.layers for name in _of_layer(layer)}
    needed |= {_of_norm(config.final_norm)} if config.final_norm is not None else set()
    scales = [config.embedding_scale, config.logit_scale, *(each.residual_scale for each in config.layers)]
    if any(scale != 1.0 for scale in scales) or any(layer.stream_scale for layer in config.layers):
        needed.add("scale")
    needed |= {"softcap"} if config.logit_softcap is not None else set()
    return sorted(needed)


def _of_norm(norm: NormConfig) -> str:
    return "layer_norm" if norm.kind == "layer" else "rms_norm"


def _of_layer(layer: LayerConfig) -> Iterator[str]:
    mixer = layer.mixer
    yield _of_norm(layer.norm)
    yield from _of_feed_forward(layer.feed_forward)
    if isinstance(mixer, ShortConvConfig):
        yield from ("conv", "gate:none")
        return
    yield from ("split_heads", "attention")
    if mixer.qk_norm is not None:
        yield _of_norm(mixer.qk_norm)
    if mixer.rope is not None:
        yield from ("angles", "rotate")
    if mixer.window is not None:
        yield "attention:window"
    if mixer.softcap is not None:
        yield "attention:softcap"
    if mixer.kv_from is not None:
        yield "attend"
    if mixer.sinks:
        yield "attention:sinks"
    if mixer.output_gate:
        yield "gate:sigmoid"


def _of_feed_forward(feed_forward: FeedForward) -> Iterator[str]:
    match feed_forward:
        case DenseConfig():
            yield f"{'gate' if feed_forward.gated else 'activate'}:{feed_forward.activation}"
        case ExpertsConfig():
            yield from (f"route:{feed_forward.routing.scores}", f"experts:{feed_forward.gating.activation}")
            if feed_forward.shared is not None:
                yield from _of_feed_forward(feed_forward.shared)
