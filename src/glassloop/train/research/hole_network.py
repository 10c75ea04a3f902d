"""A model with a gated adapter in training. The adapter acts on masked rows alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, cast

import numpy as np
import torch

from glassloop.model.adapter import Adapter
from glassloop.model.config import ModelConfig
from glassloop.model.layers.parts import ForwardStep
from glassloop.model.layers.sublayer import Sublayer
from glassloop.model.transformer import Transformer
from glassloop.ops.protocol import Array
from glassloop.ops.quant import Float32
from glassloop.ops.tensor import Tensor
from glassloop.train.cross_entropy import head_cross_entropy
from glassloop.train.gradient_ops import TrainedLowRank, as_ops, tensor_of, weight_of
from glassloop.train.lora import target_names
from glassloop.train.research.masked_ops import MaskedBatch, MaskedOps, Two

_VECTOR = "embedding"
Layers = Sequence[Any]  # sublayers, plain or compiled
# Logits that exist at once: 1 GiB of float32.
_MOST_LOGITS = 1 << 28


class HoleNetwork:
    """The frozen weights of a model, and an adapter as one flat parameter: for each target matrix `down`
    [rank, in] and `up` [out, rank], and the vector that is added to the embeddings of masked rows."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, Tensor],
        *,
        rank: int,
        scale: float,
        mask_token: int,
        targets: Sequence[str],
        seed: int = 0,
        device: str = "cpu",
        dtype: Any = torch.float32,
        compile: bool = False,
    ) -> None:
        """`compile` compiles the layers for the shapes of training; other shapes run as they are."""
        self.config = config
        self.device = device
        self.rank = rank
        self.scale = scale
        self.mask_token = mask_token
        self.ops = MaskedOps(device, dtype)
        named = {name: tensor._replace(name=name) for name, tensor in weights.items()}
        self.transformer = Transformer(config, named, as_ops(self.ops))
        self._plain = self.transformer.layers
        self._layers: Layers = self._plain
        if compile:
            self._layers = [(_Compiled(mixer), _Compiled(dense)) for mixer, dense in self._plain]
        self.stems = target_names(config, tuple(targets))
        shapes: dict[str, tuple[int, ...]] = {}
        for stem in self.stems:
            out, into = config.shapes()[f"{stem}.weight"]
            shapes |= {f"{stem}.down": (rank, into), f"{stem}.up": (out, rank)}
        self._shapes = shapes | {_VECTOR: (config.dim,)}
        self.flat = torch.from_numpy(self._first(seed)).to(device).requires_grad_()

    def _first(self, seed: int) -> Float32:
        """Returns the values before training: as in LoRA, `up` is zero, so the model begins unchanged."""
        random = np.random.default_rng(seed)
        parts = []
        for name, shape in self._shapes.items():
            bound = shape[-1] ** -0.5 if name.endswith(".down") else 0.0
            parts.append(random.uniform(-bound, bound, shape).astype(np.float32).reshape(-1))
        return np.concatenate(parts)

    def arrays(self) -> dict[str, Float32]:
        """Returns the parts of the adapter by name: `layers.0.q.down`, …, `embedding`."""
        return {name: part.numpy() for name, part in self._parts(self.flat.detach().cpu()).items()}

    def matrices(self) -> tuple[dict[str, tuple[Float32, Float32]], Float32]:
        """Returns `down` and `up` of each target matrix, and the vector of masked rows."""
        arrays = self.arrays()
        pairs = {stem: (arrays[f"{stem}.down"], arrays[f"{stem}.up"]) for stem in self.stems}
        return pairs, arrays[_VECTOR]

    def take(self, adapter: Adapter) -> None:
        """Replaces the adapter in training by one that was read, of the same rank and matrices."""
        values = {}
        for stem in self.stems:
            values[f"{stem}.down"], values[f"{stem}.up"] = (t.float32() for t in adapter.matrices[stem])
        assert adapter.embedding is not None and adapter.scale == self.scale
        values[_VECTOR] = adapter.embedding
        flat = np.concatenate([values[name].reshape(-1) for name in self._shapes])
        with torch.no_grad():
            self.flat.copy_(torch.from_numpy(flat))

    def logits(self, batch: MaskedBatch) -> torch.Tensor:
        """Returns the logits of the masked rows, or of the clean rows that the batch wants."""
        return self.transformer.logits(self._hidden(batch))

    def loss(self, batch: MaskedBatch, targets: torch.Tensor) -> torch.Tensor:
        """Returns the mean cross-entropy of the masked rows."""
        self.transformer.layers = self._layers  # type: ignore[assignment]  # they have the same method
        try:
            hidden = self._hidden(batch)
        finally:
            self.transformer.layers = self._plain
        total = head_cross_entropy(
            hidden,
            weight_of(self.transformer.head),
            targets,
            self.config.logit_softcap,
            dtype=self.ops.dtype,
            most_logits=_MOST_LOGITS,
        )
        return total / len(hidden)

    def stop_compiling(self) -> Layers:
        """Uses the layers as they are from now on. Returns the compiled ones."""
        compiled, self._layers = self._layers, self._plain
        return compiled

    def use_compiled(self, layers: Layers) -> None:
        self._layers = layers

    def _hidden(self, batch: MaskedBatch) -> torch.Tensor:
        parts = self._parts(self.flat.to(self.ops.dtype))
        for stem in self.stems:
            pair = parts[f"{stem}.down"], parts[f"{stem}.up"]
            self.ops.matrices[f"{stem}.weight"].adapter = TrainedLowRank(*pair, self.scale, dropout=0.0)
        # The vector is added to the scaled embedding; the op set adds it before the scale.
        self.ops.mask_vector = parts[_VECTOR] / self.config.embedding_scale
        return tensor_of(self.transformer.hidden(batch, ()))  # type: ignore[arg-type]  # this op set's batch

    def _parts(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        sizes = [int(np.prod(shape)) for shape in self._shapes.values()]
        pieces = flat.split(sizes)
        return {
            name: piece.view(shape) for (name, shape), piece in zip(self._shapes.items(), pieces, strict=True)
        }


class _Compiled:
    """A sublayer that is compiled. All layers share the compiled code."""

    def __init__(self, sublayer: Sublayer) -> None:
        self._sublayer = sublayer

    def forward(self, x: Two, step: ForwardStep) -> Two:
        output: Two = _compiled_forward()(self._sublayer, x, step)
        return output


def _forward(sublayer: Sublayer, x: Two, step: ForwardStep) -> Two:
    return cast(Two, sublayer.forward(cast(Array, x), step))


@cache
def _compiled_forward() -> Callable[[Sublayer, Two, ForwardStep], Two]:
    compiled: Callable[[Sublayer, Two, ForwardStep], Two] = torch.compile(_forward, dynamic=False)
    return compiled
