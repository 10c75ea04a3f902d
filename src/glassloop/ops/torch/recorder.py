"""Records the calls of one forward pass, in the form in which the kernels compute them.

A `Value` stands for an array [rows, width] that does not exist yet. Products and norms are not recorded when
they are called but when they are used, since their use decides how: three products of one input that go into
attention become one, two that go into a gate become one with the gate in it, a product that is added to the
residual stream adds it itself, and a norm is written in half precision if a product reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Value(NamedTuple):
    id: int
    width: int
    wanted: bool  # has the wanted rows only
    half: bool  # in half precision; else float32


@dataclass(eq=False)
class Normed:
    x: Value
    weight: Any
    bias: Any | None
    eps: float
    made: dict[bool, Value] = field(default_factory=dict)  # by `half`


@dataclass(eq=False)
class Angles:
    """Cosines and sines by position: [positions, half of the rotated width]."""

    frequencies: Any
    factor: float


@dataclass(frozen=True, eq=False)
class Product:
    """A linear layer of x, perhaps split into heads, each of them normalized and rotated."""

    x: Value | Normed
    matrix: Any
    bias: Any | None
    heads: int = 0  # 0: not split
    norm: Normed | None = None  # without x
    angles: Angles | None = None


Lazy = Value | Normed | Product


@dataclass
class Call:
    kind: str
    out: Value
    inputs: tuple[Value, ...]
    settings: dict[str, Any]


class Buffer(NamedTuple):
    """What a buffer of the program needs for each row."""

    width: int
    wanted: bool
    half: bool


class Recorder:
    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._values = 0

    def call(
        self,
        kind: str,
        width: int,
        *inputs: Value,
        half: bool = False,
        wanted: bool | None = None,
        **settings: Any,
    ) -> Value:
        """Records a call and returns its output."""
        has_wanted = inputs[0].wanted if wanted is None and inputs else bool(wanted)
        out = Value(self._values, width, has_wanted, half)
        self._values += 1
        self.calls.append(Call(kind, out, inputs, settings))
        return out

    def value(self, lazy: Lazy, half: bool = False) -> Value:
        """Returns the array of a value, a norm or a product; the precision is that of a norm's output."""
        if isinstance(lazy, Value):
            return lazy
        if isinstance(lazy, Normed):
            if half not in lazy.made:
                about = {"weight": lazy.weight, "bias": lazy.bias, "eps": lazy.eps}
                lazy.made[half] = self.call("norm", lazy.x.width, lazy.x, half=half, **about)
            return lazy.made[half]
        made = self.product([lazy])
        if lazy.norm is None and lazy.angles is None:
            return made
        return self.call("heads", made.width, made, half=True, about=lazy)

    def half(self, lazy: Lazy) -> Value:
        """Returns a value in half precision, as products read it."""
        value = self.value(lazy, half=True)
        return value if value.half else self.call("cast", value.width, value, half=True)

    def product(self, products: Sequence[Product], residual: Value | None = None) -> Value:
        """Records products of one input as one, with their outputs beside each other."""
        x = self.half(products[0].x)
        matrices = [each.matrix for each in products]
        width = sum(matrix.out for matrix in matrices)
        inputs = (x,) if residual is None else (x, residual)
        biases = [each.bias for each in products]
        return self.call("linear", width, *inputs, matrices=matrices, biases=biases)

    def gated(self, gate: Product, up: Product, activation: int) -> Value:
        """Records activated(gate) * up, for two products of one input."""
        about = {
            "matrices": [gate.matrix, up.matrix],
            "biases": [gate.bias, up.bias],
            "activation": activation,
        }
        return self.call("linear", gate.matrix.out, self.half(gate.x), half=True, gated=True, **about)

    def lay_out(self, results: Sequence[Value]) -> tuple[dict[int, int], list[Buffer]]:
        """Assigns a buffer to each value. A buffer is used again after the last read of its value; a result has
        a buffer to itself."""
        kept = {result.id for result in results}
        last = {value.id: index for index, call in enumerate(self.calls) for value in call.inputs}
        homes: dict[int, int] = {}
        buffers: list[Buffer] = []
        free: list[int] = []
        for index, call in enumerate(self.calls):
            needed = Buffer(call.out.width, call.out.wanted, call.out.half)
            fits = [home for home in free if buffers[home] == needed and call.out.id not in kept]
            if fits:
                free.remove(fits[0])
            else:
                buffers.append(needed)
            homes[call.out.id] = fits[0] if fits else len(buffers) - 1
            for used in {value.id for value in call.inputs}:
                if last[used] == index and used not in kept:
                    free.append(homes[used])
        return homes, buffers
