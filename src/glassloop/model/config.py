"""What a model is made of, as data: the description that the forward pass follows.

A model is a list of layers; a layer is a mixer and a feed-forward, each of one kind. A kind is a class here,
which says the shapes of its weights, and a class in `model/layers`, which computes with them. The readers
of `config.json` and GGUF metadata (`config_hf.py`, `config_gguf.py`) fill the description in. Each class
checks its own numbers, so that a config that lies is refused before anything is allocated for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Literal

from glassloop.model.rope import PartScaling, Rope
from glassloop.ops.kv_cache import CacheSpec, Place
from glassloop.ops.protocol import Activation, QueryGrowth
from glassloop.ops.routing import PLAIN_GATING, Gating, Routing
from glassloop.ops.state_cache import StateSpec

# Far above any model that exists, far below what would hang or exhaust a machine.
_MOST = {
    "vocab_size": 1 << 24,
    "dim": 1 << 20,
    "ffn_dim": 1 << 22,
    "heads": 1 << 14,
    "kv_heads": 1 << 14,
    "head_dim": 1 << 14,
    "context": 1 << 24,
    "window": 1 << 24,
    "channels": 1 << 20,
    "width": 16,
}
MOST_LAYERS = 4096
_MOST_SINUSOIDS = 1 << 24  # numbers in a table that no file holds: 64 MiB

UNROUNDED = ("router.weight", "shared_gate.weight")  # weights that stay floats: what they decide would change

Shapes = dict[str, tuple[int, ...]]  # the name of a weight → its shape


class _Checked:
    """A config that raises ValueError for a number out of bounds; the message names the field."""

    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]  # every subclass is a dataclass
            value, most = getattr(self, field.name), _MOST.get(field.name)
            if most is not None and value is not None and not 0 < value <= most:
                raise ValueError(f"{field.name} is {value}; 1 to {most} is expected")
            if isinstance(value, float) and not 0 < value < 1e9:
                raise ValueError(f"{field.name} is {value}; a positive number is expected")


@dataclass(frozen=True)
class NormConfig(_Checked):
    eps: float
    kind: Literal["rms", "layer"] = "rms"
    bias: bool = True  # of a layer norm

    def shapes(self, name: str, dim: int) -> Shapes:
        parts = ("weight", "bias") if self.kind == "layer" and self.bias else ("weight",)
        return {f"{name}.{part}": (dim,) for part in parts}


@dataclass(frozen=True)
class AttentionConfig(_Checked):
    """A mixer in which each token attends to the tokens before it in its branch."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None  # how many positions a token sees, its own included; None: all
    rope: Rope | None = None  # None: positions do not turn queries and keys
    growth: QueryGrowth | None = None  # of the queries, with their position
    qk_norm: NormConfig | None = None
    qk_norm_of: Literal["heads", "rows"] = "heads"  # rows: one norm over all heads of a token
    qk_norm_last: bool = False  # after the rotation
    v_norm: bool = False  # of each head of the values, by `qk_norm` without a weight
    value_is_key: bool = False  # values are what keys are before their norm
    kv_from: int | None = None  # the layer whose keys and values this one reads; None: its own
    qkv_bias: bool = False
    out_bias: bool = False
    softcap: float | None = None
    output_gate: bool = False  # what attention returns is multiplied by the sigmoid of a product of its own
    sinks: bool = False  # each head has the score of one more key, whose value is zero

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.heads % self.kv_heads:
            raise ValueError(f"heads is {self.heads}, not a multiple of kv_heads {self.kv_heads}")
        rope = self.rope
        if self.growth is not None and rope is not None and rope.dim != self.head_dim:
            raise ValueError(
                f"rope turns {rope.dim} of {self.head_dim} dims; all are expected if queries grow"
            )
        if rope is not None and (rope.dim % 2 or not 0 < rope.dim <= self.head_dim or rope.base <= 1):
            raise ValueError(
                f"rope turns {rope.dim} of {self.head_dim} dims with base {rope.base}; an even number within"
                " the head and a base above 1 are expected"
            )

    @property
    def query_rope(self) -> Rope | None:
        """How queries turn, and grow with their position."""
        if self.growth is None:
            return self.rope
        return (self.rope or Rope(10_000.0, self.head_dim, PartScaling(0)))._replace(growth=self.growth)

    @property
    def cache(self) -> CacheSpec:
        """What the layer keeps of each token. Layers with equal specs share their pages."""
        return CacheSpec(1, self.kv_heads, self.head_dim, self.window)

    def shapes(self, dim: int) -> Shapes:
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        whole = self.qk_norm_of == "rows"
        shapes = _linear("q", q, dim, self.qkv_bias)
        if self.kv_from is None:
            shapes |= _linear("k", kv, dim, self.qkv_bias)
            shapes |= {} if self.value_is_key else _linear("v", kv, dim, self.qkv_bias)
        shapes |= _linear("o", dim, q, self.out_bias)
        if self.qk_norm is not None:
            shapes |= self.qk_norm.shapes("q_norm", q if whole else self.head_dim)
        if self.qk_norm is not None and self.kv_from is None:
            shapes |= self.qk_norm.shapes("k_norm", kv if whole else self.head_dim)
        if self.output_gate:
            shapes |= _linear("out_gate", q, dim, self.qkv_bias)
        if self.sinks:
            shapes["sinks.weight"] = (self.heads,)
        return shapes


@dataclass(frozen=True)
class DenseConfig(_Checked):
    """A feed-forward in which every token goes through the same two or, if gated, three matrices."""

    ffn_dim: int
    activation: Activation = "silu"
    gated: bool = True
    bias: bool = False

    def shapes(self, dim: int) -> Shapes:
        shapes = _linear("gate", self.ffn_dim, dim, self.bias) if self.gated else {}
        return (
            shapes
            | _linear("up", self.ffn_dim, dim, self.bias)
            | _linear("down", dim, self.ffn_dim, self.bias)
        )


@dataclass(frozen=True)
class ExpertsConfig(_Checked):
    """A feed-forward in which each token goes through a few of many experts, which a router chooses."""

    ffn_dim: int  # of each expert
    routing: Routing
    gating: Gating = PLAIN_GATING
    bias: bool = False  # of the experts
    router_bias: bool = False
    choice_bias: bool = False
    weigh_input: bool = False  # the weight of an expert is a factor of its input, not of its output
    shared: DenseConfig | None = None  # through which every token goes too
    shared_gate: bool = False  # and whose output each token multiplies with a number of its own

    def __post_init__(self) -> None:
        super().__post_init__()
        self.routing.check()
        if self.shared_gate and (self.shared is None or not self.shared.gated or self.shared.bias):
            raise ValueError("a gate of the shared expert is expected with a gated shared expert alone")

    def shapes(self, dim: int) -> Shapes:
        shapes = _linear("router", self.routing.experts, dim, self.router_bias)
        if self.choice_bias:
            shapes["choice.bias"] = (self.routing.experts,)
        each = DenseConfig(self.ffn_dim, bias=self.bias).shapes(dim)
        for number in range(self.routing.experts):
            shapes |= {f"experts.{number}.{name}": shape for name, shape in each.items()}
        if self.shared is not None:
            shapes |= {f"shared.{name}": shape for name, shape in self.shared.shapes(dim).items()}
        return shapes | (_linear("shared_gate", 1, dim, False) if self.shared_gate else {})


@dataclass(frozen=True)
class ShortConvConfig(_Checked):
    """A mixer in which each channel of a token is a weighted sum of that of the last few tokens, gated before
    and after: LFM2's."""

    channels: int
    width: int  # of the convolution, in tokens
    bias: bool = False
    kv_from: None = None  # it reads no keys

    @property
    def cache(self) -> StateSpec:
        """What the layer keeps: of a token its channels, at a border those of the tokens before it."""
        return StateSpec(1, (self.width - 1) * self.channels, self.channels)

    def shapes(self, dim: int) -> Shapes:
        shapes: Shapes = {"conv.weight": (self.channels, self.width)}
        if self.bias:
            shapes["conv.bias"] = (self.channels,)
        for name in ("conv_before", "conv_after", "conv_in"):
            shapes |= _linear(name, self.channels, dim, self.bias)
        return shapes | _linear("conv_out", dim, self.channels, self.bias)


Mixer = AttentionConfig | ShortConvConfig
FeedForward = DenseConfig | ExpertsConfig
# pre: of what goes into a sublayer. post: of the sum after it. output: of what a sublayer returns.
# sandwich: of its input and of its output.
NormPlace = Literal["pre", "post", "output", "sandwich"]


@dataclass(frozen=True)
class LayerConfig:
    mixer: Mixer
    feed_forward: FeedForward
    norm: NormConfig
    norm_place: NormPlace = "pre"
    parallel: bool = False  # mixer and feed-forward read the same norm, and both are added
    residual_scale: float = 1.0  # of what a sublayer adds
    stream_scale: bool = False  # the residual stream is multiplied by a number at the end of the layer

    def __post_init__(self) -> None:
        if self.parallel and self.norm_place != "pre":
            raise ValueError(f"norm_place is {self.norm_place!r}; 'pre' is expected of a parallel layer")
        if not 0 < self.residual_scale < 1e9:
            raise ValueError(f"residual_scale is {self.residual_scale}; a positive number is expected")

    def shapes(self, dim: int) -> Shapes:
        shapes = self._norms("attn", dim) | self.mixer.shapes(dim)
        shapes |= {} if self.parallel else self._norms("ffn", dim)
        shapes |= self.feed_forward.shapes(dim)
        return shapes | ({"stream_scale.weight": (1,)} if self.stream_scale else {})

    def _norms(self, sublayer: str, dim: int) -> Shapes:
        shapes = {} if self.norm_place == "output" else self.norm.shapes(f"{sublayer}_norm", dim)
        if self.norm_place in ("output", "sandwich"):
            shapes |= self.norm.shapes(f"{sublayer}_post_norm", dim)
        return shapes


@dataclass(frozen=True)
class ModelConfig(_Checked):
    family: str
    vocab_size: int
    dim: int
    context: int
    layers: tuple[LayerConfig, ...]
    final_norm: NormConfig | None
    # Positions that are added to the embeddings; rotary ones belong to the mixer.
    positions: Literal["rotary", "learned", "sinusoidal"] = "rotary"
    position_offset: int = 0
    embedding_scale: float = 1.0
    tied: bool = False  # the embedding is the language head too
    logit_softcap: float | None = None
    logit_scale: float = 1.0
    # The token of a masked place, in a model that was trained on whole masked texts; its rows see everything.
    mask_token: int | None = None
    masks_shifted: bool = False  # the logits of its rows are about the next position, not about their own

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mask_token is not None and not 0 <= self.mask_token < self.vocab_size:
            raise ValueError(f"mask_token is {self.mask_token}; 0 to {self.vocab_size - 1} is expected")
        if not 0 < len(self.layers) <= MOST_LAYERS:
            raise ValueError(f"layers is {len(self.layers)}; 1 to {MOST_LAYERS} is expected")
        if not self.attention_layers:
            raise ValueError("no layer has attention; at least one is expected")
        if self.mask_token is not None and self.is_recurrent:
            raise ValueError("mask_token is set; a model with recurrent layers cannot fill masks")
        for index, layer in enumerate(self.layers):
            self._check_shared(index, layer.mixer)
        positions = self.context + self.position_offset
        if self.positions == "sinusoidal" and positions * self.dim > _MOST_SINUSOIDS:
            most = max(_MOST_SINUSOIDS // self.dim - self.position_offset, 1)
            raise ValueError(f"context is {self.context}; 1 to {most} is expected for sinusoidal positions")

    def _check_shared(self, index: int, mixer: Mixer) -> None:
        """Raises if a layer reads keys and values that are not there, or not of its shape."""
        source = mixer.kv_from
        if source is None:
            return
        keeps = self.layers[source].mixer.kv_from is None if 0 <= source < index else False
        if not keeps:
            raise ValueError(f"layer {index} reads the keys of layer {source}, which keeps none before it")
        if self.layers[source].mixer.cache != mixer.cache:
            raise ValueError(f"layer {index} reads the keys of layer {source}, whose heads or window differ")

    @property
    def caches(self) -> list[CacheSpec | StateSpec]:
        """What each layer keeps that does not read the keys and values of another one."""
        return [layer.mixer.cache for layer in self.layers if layer.mixer.kv_from is None]

    def places_of_layers(self, places: Sequence[Place]) -> list[Place]:
        """Returns the place of each layer's keys and values, and those beyond, given those of `caches` and
        beyond."""
        left = iter(places)
        of_layers: list[Place] = []
        for layer in self.layers:
            source = layer.mixer.kv_from
            of_layers.append(next(left) if source is None else of_layers[source])
        return [*of_layers, *left]

    @property
    def attention(self) -> AttentionConfig:
        """The first layer with attention: in most models all such layers are alike."""
        return self.attention_layers[0]

    @cached_property
    def attention_layers(self) -> list[AttentionConfig]:
        """The mixers of the layers with attention, of which every model has one."""
        return [layer.mixer for layer in self.layers if isinstance(layer.mixer, AttentionConfig)]

    @property
    def is_recurrent(self) -> bool:
        """Whether some layers keep a state of the text before, so that each token is seen by all later
        ones only through that."""
        return len(self.attention_layers) < len(self.layers)

    @property
    def ropes(self) -> list[Rope]:
        """The rotary positions that there are."""
        mixers = self.attention_layers
        ropes = dict.fromkeys(rope for mixer in mixers for rope in (mixer.rope, mixer.query_rope))
        return [rope for rope in ropes if rope is not None]

    # The sizes of the first layer of its kind.

    @property
    def heads(self) -> int:
        return self.attention.heads

    @property
    def kv_heads(self) -> int:
        return self.attention.kv_heads

    @property
    def head_dim(self) -> int:
        return self.attention.head_dim

    @property
    def ffn_dim(self) -> int:
        return self.layers[0].feed_forward.ffn_dim

    def shapes(self) -> Shapes:
        """Returns every weight that this model has, by our name for it, with its shape."""
        shapes: Shapes = {"token_embedding.weight": (self.vocab_size, self.dim)}
        if self.positions == "learned":
            shapes["position_embedding.weight"] = (self.context + self.position_offset, self.dim)
        for index, layer in enumerate(self.layers):
            shapes |= {f"layers.{index}.{name}": shape for name, shape in layer.shapes(self.dim).items()}
        if self.final_norm is not None:
            shapes |= self.final_norm.shapes("final_norm", self.dim)
        if not self.tied:
            shapes["head.weight"] = (self.vocab_size, self.dim)
        return shapes


def _linear(name: str, out: int, into: int, bias: bool) -> Shapes:
    return {f"{name}.weight": (out, into)} | ({f"{name}.bias": (out,)} if bias else {})
