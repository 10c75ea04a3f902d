"""A drafter: one transformer layer that guesses the next tokens of a model from what the model has computed.

It reads the residual stream of the model after a few layers (the features of a row) and makes them into one
vector, the state. A step of a chain takes the state and the next token, which is known by then, attends to
the states of all rows so far, and returns the next state and logits over the tokens that the model writes
most often. The next step takes that state in place of one that the model has computed. This is the idea of
EAGLE-3 (Li et al., 2025); here the keys and values come from states of the model alone, so that they lie in
its own pages as those of one more layer, and a chain writes none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from hashlib import sha256
from pathlib import Path

import numpy as np

from glassloop.errors import ModelError
from glassloop.model.config import AttentionConfig, ModelConfig, Shapes
from glassloop.ops.batch import Int32
from glassloop.ops.protocol import Array, Ops
from glassloop.ops.tensor import Tensor

ARCHITECTURE = "glassloop-drafter"
_FILES = Path(__file__).parent / "drafters"
_NORMS = ("token_norm", "kv_norm", "attn_norm", "ffn_norm", "head_norm")


@dataclass(frozen=True)
class DrafterConfig:
    """The sizes of a drafter for a model."""

    features: tuple[int, ...]  # the numbers of layers after which the residual stream is read
    vocab_size: int  # tokens that can be drafted
    ffn_dim: int

    def check(self, config: ModelConfig) -> None:
        """Raises ValueError unless a drafter of these sizes fits the model."""
        if not self.features or any(not 0 <= each <= len(config.layers) for each in self.features):
            raise ValueError(
                f"features are {self.features}; layers from 0 to {len(config.layers)} are expected"
            )
        if not 0 < self.vocab_size <= config.vocab_size:
            raise ValueError(f"vocab_size is {self.vocab_size}; 1 to {config.vocab_size} is expected")
        if config.is_recurrent:
            raise ValueError("the model has recurrent layers; a drafter needs layers with attention alone")
        if len({layer.mixer.cache for layer in config.layers}) > 1:
            raise ValueError(
                "the layers of the model keep different windows; layers with one cache are expected"
            )

    def shapes(self, config: ModelConfig) -> Shapes:
        """Returns the shapes of the weights by name."""
        dim, mixer = config.dim, _mixer(config)
        q, kv = mixer.heads * mixer.head_dim, mixer.kv_heads * mixer.head_dim
        shapes: Shapes = {}
        for number in range(len(self.features)):
            shapes |= {f"feature.{number}.norm": (dim,), f"feature.{number}.weight": (dim, dim)}
        shapes |= dict.fromkeys(_NORMS, (dim,))
        return shapes | {
            "token.weight": (dim, dim),
            "q.weight": (q, dim),
            "k.weight": (kv, dim),
            "v.weight": (kv, dim),
            "o.weight": (dim, q),
            "gate.weight": (self.ffn_dim, dim),
            "up.weight": (self.ffn_dim, dim),
            "down.weight": (dim, self.ffn_dim),
            "head.weight": (self.vocab_size, dim),
        }


def _mixer(config: ModelConfig) -> AttentionConfig:
    """Returns the attention that the drafter's layer has the shape of: that of the model's last layer."""
    return config.attention_layers[-1]


class Drafter:
    """The weights of a drafter on an op set, and its computation."""

    def __init__(
        self, config: DrafterConfig, model: ModelConfig, weights: Mapping[str, Tensor], ops: Ops
    ) -> None:
        self.config = config
        self.mixer = _mixer(model)
        self.ops = ops
        self._eps = model.layers[-1].norm.eps
        shapes = config.shapes(model)
        self._matrices = {name: ops.matrix(weights[name]) for name in shapes if len(shapes[name]) == 2}
        self._vectors = {name: ops.vector(weights[name]) for name in shapes if len(shapes[name]) == 1}

    def state(self, features: Sequence[Array]) -> Array:
        """Returns the state of each row: the sum of its projected features. [rows, dim]"""
        projected = [
            self._linear(f"feature.{number}.weight", self._norm(f"feature.{number}.norm", feature))
            for number, feature in enumerate(features)
        ]
        return reduce(self.ops.add, projected)

    def keys_and_values(self, state: Array, angles: Array | None) -> tuple[Array, Array]:
        """Returns what the chain attends to of each row. [rows, kv heads, head dim]"""
        ops, mixer = self.ops, self.mixer
        x = self._norm("kv_norm", state)
        k = ops.split_heads(self._linear("k.weight", x), mixer.kv_heads)
        v = ops.split_heads(self._linear("v.weight", x), mixer.kv_heads)
        return (k if angles is None else ops.rotate(k, angles)), v

    def step(
        self, state: Array, embedded: Array, angles: Array | None, attend: Callable[[Array], Array]
    ) -> Array:
        """Returns the next state, [rows, dim]. `embedded` has the embeddings of the tokens that follow the
        rows; `attend` lets queries, [rows, heads, head dim], see the rows up to theirs. All steps of a chain
        have the position of the row that it begins at."""
        ops, mixer = self.ops, self.mixer
        x = ops.add(state, self._linear("token.weight", self._norm("token_norm", embedded)))
        q = ops.split_heads(self._linear("q.weight", self._norm("attn_norm", x)), mixer.heads)
        x = ops.add(x, self._linear("o.weight", attend(q if angles is None else ops.rotate(q, angles))))
        h = self._norm("ffn_norm", x)
        h = ops.gate(self._linear("gate.weight", h), self._linear("up.weight", h), "silu")
        return ops.add(x, self._linear("down.weight", h))

    def hidden(self, state: Array) -> Array:
        """Returns what the head reads. [rows, dim]"""
        return self._norm("head_norm", state)

    def logits(self, state: Array) -> Array:
        """Returns the logits of the token that follows the one that a step took. [rows, drafted tokens]"""
        return self._linear("head.weight", self.hidden(state))

    def _linear(self, name: str, x: Array) -> Array:
        return self.ops.linear(x, self._matrices[name], None)

    def _norm(self, name: str, x: Array) -> Array:
        return self.ops.rms_norm(x, self._vectors[name], self._eps)


@dataclass(frozen=True)
class DrafterFile:
    """A drafter as it is stored: a GGUF file."""

    path: Path
    config: DrafterConfig
    tokens: Int32  # [drafted tokens], the token that each row of the head stands for
    weights: Mapping[str, Tensor]


def model_key(weights: Mapping[str, Tensor]) -> str:
    """Returns a name for a model that is the same for all formats of its matrices: a hash of the weights of
    its last norm, which files store unrounded."""
    norm = weights["final_norm.weight"].float32()
    return sha256(np.ascontiguousarray(norm, "<f4").tobytes()).hexdigest()[:16]


def find_drafter(config: ModelConfig, weights: Mapping[str, Tensor]) -> DrafterFile | None:
    """Returns the drafter for a model that comes with the package, if there is one."""
    if config.final_norm is None:
        return None
    path = _FILES / f"drafter-{model_key(weights)}.gguf"
    return read_drafter(path, config) if path.exists() else None


def is_drafter(name: str | Path) -> bool:
    """Returns whether this is the file of a drafter, not that of a model."""
    path = Path(name)
    if path.suffix != ".gguf" or not path.is_file():
        return False
    with path.open("rb") as file:  # the architecture is the first entry of the metadata
        return ARCHITECTURE.encode() in file.read(256)


def read_drafter(path: Path, config: ModelConfig) -> DrafterFile:
    """Opens the file of a drafter and checks that it fits the model."""
    from glassloop.model.gguf import GGUFFile  # not every model comes as GGUF

    file = GGUFFile(path)

    def error(what: str) -> ModelError:
        return ModelError(f"{path}: {what}")

    if file.metadata.get("general.architecture") != ARCHITECTURE:
        raise error(f"general.architecture is not {ARCHITECTURE!r}; this is not a drafter")
    tokens, features = file.metadata.get("drafter.tokens"), file.metadata.get("drafter.features")
    for name, numbers in (("drafter.tokens", tokens), ("drafter.features", features)):
        if not isinstance(numbers, np.ndarray) or numbers.dtype != np.int32 or not numbers.size:
            raise error(f"{name} must be a list of 32-bit integers")
    ffn_dim = file.metadata.get("drafter.ffn_dim")
    if not isinstance(ffn_dim, int) or not 0 < ffn_dim <= 1 << 22:
        raise error("drafter.ffn_dim must be a positive number")
    assert isinstance(tokens, np.ndarray) and isinstance(features, np.ndarray)
    if tokens.min() < 0 or tokens.max() >= config.vocab_size or (np.diff(tokens) <= 0).any():
        raise error(f"drafter.tokens must rise within 0 to {config.vocab_size - 1}, the tokens of the model")
    sizes = DrafterConfig(tuple(features.tolist()), len(tokens), ffn_dim)
    try:
        sizes.check(config)
    except ValueError as wrong:
        raise error(str(wrong)) from None
    for name, shape in sizes.shapes(config).items():
        tensor = file.tensors.get(name)
        if tensor is None or tensor.shape != shape:
            raise error(
                f"{name} has the shape {None if tensor is None else tensor.shape}; {shape} is expected"
            )
    return DrafterFile(path, sizes, np.ascontiguousarray(tokens), file.tensors)
