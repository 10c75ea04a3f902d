"""A model in training: the forward pass over the op set with gradients, its parameters, and the loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from glassloop.model.config import ModelConfig
from glassloop.model.layers.parts import ForwardStep
from glassloop.model.layers.sublayer import Sublayer
from glassloop.model.transformer import Transformer
from glassloop.ops.protocol import Array
from glassloop.ops.tensor import Tensor
from glassloop.train.cross_entropy import head_cross_entropy
from glassloop.train.gradient_ops import SequenceBatch, TrainOps, as_ops, tensor_of, weight_of

if TYPE_CHECKING:
    from collections.abc import Iterator

# Logits that are computed at once. With more, the loss goes through the rows in pieces, so that the memory
# for logits stays below about 2 GiB.
_MOST_LOGITS = 1 << 27
_MOST_LAYERS = 8  # that are compiled together


class Network:
    """The weights of a model as torch parameters, and the loss of a batch.

    `parameters` has what is trained, by our names for the weights (`layers.0.q.weight`).
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, Tensor],
        *,
        device: str = "cpu",
        dtype: Any = torch.float32,
        dropout: float = 0.0,
        bf16: bool = False,
        compile: bool = False,
    ) -> None:
        """`compile` compiles the layers with torch.compile for training. Validation and samples, whose shapes
        vary, run as they are."""
        self.config = config
        self.device = device
        self.ops = TrainOps(device, dtype, dropout)
        self.bf16 = bf16
        self._compile = compile
        named = {name: tensor._replace(name=name) for name, tensor in weights.items()}
        self.transformer = Transformer(config, named, as_ops(self.ops))
        if compile:
            self.transformer.layers = _compiled_groups(self.transformer.layers)
        if config.positions == "sinusoidal":  # a table that is computed, not trained
            self.ops.matrices.pop("position_embedding.weight").weight.requires_grad_(False)
        self.parameters: dict[str, torch.Tensor] = {
            name: self.ops.matrices[name].weight if name in self.ops.matrices else self.ops.vectors[name]
            for name in config.shapes()
        }
        self.weights = dict(self.parameters)  # all weights, also when only an adapter is trained

    def freeze(self) -> Network:
        """Trains none of the weights from now on. Returns the network itself."""
        for weight in self.weights.values():
            weight.requires_grad_(False)
        self.parameters = {}
        return self

    @property
    def takes_cuts(self) -> bool:
        """Whether `SequenceBatch.cuts` is used: the flash kernel of a GPU computes each document alone."""
        fits = all(
            mixer.softcap is None and mixer.head_dim % 8 == 0 and mixer.head_dim <= 256
            for mixer in self.config.attention_layers
        )
        return self.device.startswith("cuda") and self.bf16 and fits

    @property
    def size(self) -> int:
        """The number of weights."""
        return sum(weight.numel() for weight in self.weights.values())

    @contextmanager
    def training(self) -> Iterator[None]:
        """Applies dropout inside the block."""
        self.ops.training = True
        try:
            yield
        finally:
            self.ops.training = False

    def logits(self, batch: SequenceBatch) -> torch.Tensor:
        """Returns the logits of the wanted rows: [wanted, vocabulary]."""
        with self.precision():
            return self.transformer.logits(self._hidden(batch))

    def loss(self, batch: SequenceBatch, targets: torch.Tensor) -> torch.Tensor:
        """Returns the sum of the cross-entropies of the wanted rows. `targets` has the token that comes after
        each of them."""
        with self.precision():
            hidden = self._hidden(batch)
            if len(hidden) * self.config.vocab_size <= _MOST_LOGITS:
                return self._cross_entropy(hidden, targets)
            if not torch.is_grad_enabled():
                rows = max(1, _MOST_LOGITS // self.config.vocab_size)
                return sum(
                    self._cross_entropy(hidden[at : at + rows], targets[at : at + rows])
                    for at in range(0, len(hidden), rows)
                )
            return head_cross_entropy(
                hidden,
                weight_of(self.transformer.head),
                targets,
                self.config.logit_softcap,
                dtype=torch.bfloat16 if self.bf16 else self.ops.dtype,
                # Compiled code does not keep the logits in float32 beside those in bfloat16.
                most_logits=_MOST_LOGITS * (4 if self._compile and self.bf16 else 1),
                compiled=self._compile,
            )

    def distillation(
        self, batch: SequenceBatch, targets: torch.Tensor, teacher: Network, share: float
    ) -> torch.Tensor:
        """Returns the sum of KL(teacher ‖ model) over the rows that have a target, times `share`, and of the
        cross-entropies of the targets, times the rest."""
        with self.precision():
            hidden = self._hidden(batch)
            with torch.no_grad():
                theirs = teacher._hidden(batch)
            rows = max(1, _MOST_LOGITS // (2 * self.config.vocab_size))
            total = hidden.new_zeros((), dtype=torch.float32)
            for at in range(0, len(hidden), rows):
                piece = hidden[at : at + rows], theirs[at : at + rows], targets[at : at + rows]
                total = total + checkpoint(self._divergence, *piece, teacher, share, use_reentrant=False)
            return total

    def _divergence(
        self,
        hidden: torch.Tensor,
        theirs: torch.Tensor,
        targets: torch.Tensor,
        teacher: Network,
        share: float,
    ) -> torch.Tensor:
        logprobs = F.log_softmax(self._logits(hidden).float(), dim=-1)
        with torch.no_grad():
            wanted = F.log_softmax(teacher._logits(theirs).float(), dim=-1)
        divergence = (wanted.exp() * (wanted - logprobs)).sum(-1)
        counted = (targets >= 0).to(divergence.dtype)
        total = (divergence * counted).sum() * share
        return total + F.nll_loss(logprobs, targets, reduction="sum") * (1 - share) if share < 1 else total

    def _hidden(self, batch: SequenceBatch) -> torch.Tensor:
        batch.make_masks({mixer.window for mixer in self.config.attention_layers})
        # `SequenceBatch` is this op set's batch.
        return tensor_of(self.transformer.hidden(batch, ()))  # type: ignore[arg-type]

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return tensor_of(self.transformer.logits(cast(Array, hidden)))

    def _cross_entropy(self, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = self._logits(hidden)
        if logits.dtype is not torch.float64:
            logits = logits.float()
        return F.cross_entropy(logits, targets, reduction="sum")

    def precision(self) -> AbstractContextManager[None]:
        """Computes products in bfloat16 inside the block, if the network does."""
        if not self.bf16:
            return nullcontext()
        autocast: AbstractContextManager[None] = torch.autocast(self.device.split(":")[0], torch.bfloat16)
        return autocast


class _Compiled:
    """Sublayers that are compiled together for training. Groups of one shape share the compiled code, which
    takes seconds to make; a whole large model would take minutes."""

    def __init__(self, sublayers: Sequence[Sublayer]) -> None:
        self._sublayers = tuple(sublayers)

    def forward(self, x: torch.Tensor, step: ForwardStep) -> torch.Tensor:
        run = _compiled_forward() if step.ops.training else _forward  # type: ignore[attr-defined]
        return run(self._sublayers, x, step) if self._sublayers else x


Layers = list[tuple[Sublayer, ...]]


def _compiled_groups(layers: Layers) -> Layers:
    """Returns layers in groups; the first sublayer of each group computes the whole group."""
    size = _group_size(len(layers))
    groups: Layers = []
    for at in range(0, len(layers), size):
        group = [sublayer for layer in layers[at : at + size] for sublayer in layer]
        groups.append((_Compiled(group), _Compiled(())))  # type: ignore[arg-type]
    return groups


def _group_size(layers: int) -> int:
    """Returns how many layers are compiled together: groups of equal size, if they are not too small."""
    size = max(each for each in range(1, _MOST_LAYERS + 1) if layers % each == 0)
    return size if 2 * size > min(layers, _MOST_LAYERS) else _MOST_LAYERS


def _forward(sublayers: Sequence[Sublayer], x: torch.Tensor, step: ForwardStep) -> torch.Tensor:
    for sublayer in sublayers:
        x = sublayer.forward(x, step)
    return x


@cache
def _compiled_forward() -> Callable[[Sequence[Sublayer], torch.Tensor, ForwardStep], torch.Tensor]:
    compiled: Callable[[Sequence[Sublayer], torch.Tensor, ForwardStep], torch.Tensor] = torch.compile(
        _forward, dynamic=False
    )
    return compiled
