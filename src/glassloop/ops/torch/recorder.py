"""Records the calls of one forward pass, in the form in which the kernels compute them.

A `TorchValue` stands for an array [rows, width] that does not exist yet. Products and norms are not recorded
when they are called but when they are used, since their use decides how: three products of one input that go
into attention become one, two that go into a gate become one with the gate in it, a product that is added to
the residual stream adds it itself, and a norm is written in half precision if a product reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from glassloop.ops.graph import Use, plan_buffers
from glassloop.ops.protocol import LowRank, QueryGrowth
from glassloop.ops.quant import Float32
from glassloop.ops.tensor import Tensor

if TYPE_CHECKING:
    import torch

    from glassloop.ops.torch.matrix import TorchMatrix


RANK_STEP = 16  # columns in which a sum over the rank of adapters is computed at a time


class TorchValue(NamedTuple):
    """The output of a call: an array [rows, width]."""

    id: int  # the number of the call
    width: int
    wanted: bool  # has the wanted rows only
    half: bool  # in half precision; else float32


class RecordedNorm(NamedTuple):
    """How rows or heads are normalized."""

    weight: torch.Tensor
    bias: torch.Tensor | None  # None: by root mean square; else a layer norm
    eps: float


@dataclass(eq=False)
class Normed:
    """A norm of x, which is computed in the precision in which it is used."""

    x: TorchValue
    norm: RecordedNorm
    made: dict[bool, TorchValue] = field(default_factory=dict)  # by `half`

    @property
    def width(self) -> int:
        return self.x.width


@dataclass(frozen=True, eq=False)
class Angles:
    """The rotation of heads by position: its frequencies, and the factor of cosines and sines."""

    frequencies: Float32
    factor: float
    growth: QueryGrowth | None = None


@dataclass(frozen=True, eq=False)
class Product:
    """A linear layer of x, perhaps split into heads, each of them normalized and rotated."""

    x: TorchValue | Normed
    matrix: TorchMatrix
    bias: torch.Tensor | None
    heads: int = 0  # 0: not split
    norm: RecordedNorm | None = None
    angles: Angles | None = None
    parts: Sequence[LowRank[Tensor] | None] | None = None  # what adapters add to it, by their numbers

    @property
    def width(self) -> int:
        return self.matrix.out


@dataclass(frozen=True, eq=False)
class SplitHeads:
    """Any other value split into heads, each of them normalized and rotated."""

    x: TorchValue | Normed
    width: int  # of all heads
    heads: int
    norm: RecordedNorm | None = None
    angles: Angles | None = None


Lazy = TorchValue | Normed | Product | SplitHeads


class TorchCall(NamedTuple):
    """One call of the forward pass; `kind` names a method of `Launcher`, which takes the settings."""

    kind: str
    out: TorchValue
    inputs: tuple[TorchValue, ...]
    settings: dict[str, Any]


class Buffer(NamedTuple):
    """What a buffer of the program needs for each row."""

    width: int
    wanted: bool
    half: bool


class TorchRecorder:
    """The calls of a forward pass, in order, and the buffers for their outputs."""

    def __init__(self) -> None:
        self.calls: list[TorchCall] = []

    def call(
        self,
        kind: str,
        width: int,
        *inputs: TorchValue,
        half: bool = False,
        wanted: bool = False,
        **settings: Any,
    ) -> TorchValue:
        """Records a call and returns its output, which has the wanted rows only if its input has."""
        out = TorchValue(len(self.calls), width, wanted or any(value.wanted for value in inputs), half)
        self.calls.append(TorchCall(kind, out, inputs, settings))
        return out

    def value(self, lazy: Lazy, half: bool = False) -> TorchValue:
        """Returns the array of a value, a norm or a product; `half` is the precision of a norm's output."""
        if isinstance(lazy, TorchValue):
            return lazy
        if isinstance(lazy, Normed):
            if half not in lazy.made:
                lazy.made[half] = self.call("norm", lazy.x.width, lazy.x, half=half, norm=lazy.norm)
            return lazy.made[half]
        plain = self.product([lazy]) if isinstance(lazy, Product) else self.value(lazy.x, half)
        if lazy.norm is None and lazy.angles is None:
            return plain
        return self.call("heads", plain.width, plain, half=True, product=lazy)

    def half(self, lazy: Lazy) -> TorchValue:
        """Returns a value in half precision, as products read it."""
        value = self.value(lazy, half=True)
        return value if value.half else self.call("cast", value.width, value, half=True)

    def product(
        self, products: Sequence[Product], residual: TorchValue | None = None, in_turn: bool = False
    ) -> TorchValue:
        """Records products of one input as one, with their outputs beside each other or, if `in_turn`, an
        output of each in turn. What adapters add is added before the residual."""
        x, width = self.half(products[0].x), sum(each.matrix.out for each in products)
        if not _is_adapted(products):
            inputs = [x] + ([] if residual is None else [residual])
            return self.call("linear", width, *inputs, products=products, in_turn=in_turn)
        plain = self.call("linear", width, x, products=products, in_turn=in_turn)
        narrow = self.call("down", len(products) * widest_rank(products), x, half=True, products=products)
        adapted = self.call("up", width, plain, narrow, products=products, in_turn=in_turn)
        return adapted if residual is None else self.call("add", width, residual, adapted)

    def gated(self, gate: Product, up: Product, activation: int) -> TorchValue:
        """Records activated(gate) * up, for two products of one input."""
        if _is_adapted([gate, up]):
            both = self.product([gate, up], in_turn=True)
            return self.call("gate", gate.matrix.out, both, half=True, activation=activation, both=True)
        x, width = self.half(gate.x), gate.matrix.out
        return self.call(
            "linear", width, x, half=True, products=[gate, up], gated=True, activation=activation
        )

    def plan(self, results: Sequence[TorchValue]) -> tuple[dict[int, int], list[Buffer]]:
        """Assigns a buffer to each value."""
        uses = [
            Use(
                [value.id for value in call.inputs],
                call.out.id,
                Buffer(call.out.width, call.out.wanted, call.out.half),
                call.inputs[0].id if call.kind == "up" else None,  # it adds to its first input, in place
            )
            for call in self.calls
        ]
        return plan_buffers(uses, {result.id for result in results})


def _is_adapted(products: Sequence[Product]) -> bool:
    return any(part is not None for product in products for part in product.parts or ())


def widest_rank(products: Sequence[Product]) -> int:
    """Returns the columns that each of some adapted products has between its two matrices: the largest rank
    of an adapter, as whole steps of a sum."""
    ranks = [part.down.shape[0] for product in products for part in product.parts or () if part is not None]
    return int(-(-max(ranks) // RANK_STEP) * RANK_STEP)
