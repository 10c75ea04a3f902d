"""The operations that a forward pass is made of. `model/transformer.py` calls these and nothing else.

Two op sets answer to this protocol: `reference` (NumPy, the specification) and `native` (C).
Arrays go in and arrays come out; the type of an array is the op set's own business, and so is the form in
which it keeps a matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

from glassloop.ops.batch import Batch
from glassloop.ops.quant import Float32
from glassloop.ops.tensor import Tensor

Activation = Literal["gelu", "gelu_tanh", "silu", "relu"]
Array = Any
Matrix = Any
Pages = Any
Forward = Callable[[Batch, Sequence[Pages]], Array]
Place = tuple[int, int]  # a group of layers with the same window, and a layer's number in it


class Ops(Protocol):
    name: str

    def program(self, compute: Forward) -> Forward:
        """The same computation, made ready to run many times. An op set may record its calls once.

        It gives an array of the wanted rows, or a list of such arrays: then the program gives a list too.
        """

    def pages(self, count: int, layers: int, kv_heads: int, head_dim: int) -> Pages:
        """Room for the keys and values of `count` pages of tokens in a group of layers.

        It has `page_bytes`, `copy(source, target)` copies a page, and `read_keys(place, span)` gives the keys
        of a branch as attention sees them, [length, kv heads, head dim] in float32.
        """

    def matrix(self, tensor: Tensor) -> Matrix:
        """A weight matrix [out, in], in the form in which this op set multiplies with it. The tensor is
        released when its values have been taken over."""

    def vector(self, tensor: Tensor) -> Array:
        """A norm's weight or a bias."""

    def embed(self, table: Matrix, ids: Sequence[int]) -> Array:
        """Rows `ids` of a table: [rows, dim]."""

    def linear(self, x: Array, weight: Matrix, bias: Array | None) -> Array:
        """x @ weight.T + bias: [rows, out]."""

    def head(self, x: Array, weight: Matrix) -> Array:
        """As `linear`, for the logits. An op set that rounds its inputs rounds these more finely: a third of
        all that 8-bit activations do to the probabilities happens here, in a fifth of the work.
        """

    def rms_norm(self, x: Array, weight: Array, eps: float) -> Array:
        """Over the last axis."""

    def layer_norm(self, x: Array, weight: Array, bias: Array, eps: float) -> Array:
        """Over the last axis."""

    def split_heads(self, x: Array, heads: int) -> Array:
        """[rows, heads * head dim] to [rows, heads, head dim]."""

    def angles(self, positions: Sequence[int], frequencies: Float32, factor: float) -> Array:
        """Cosines and sines of `positions * frequencies`, each times `factor`: what `rotate` turns by."""

    def rotate(self, x: Array, angles: Array) -> Array:
        """Turn pair (i, i + half) of the leading dims of each head by its angle."""

    def attention(
        self,
        q: Array,
        k: Array,
        v: Array,
        batch: Batch,
        pages: Sequence[Pages],
        place: Place,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> Array:
        """Write k and v to their pages, then let each row attend to its branch: [rows, heads * head dim].

        With a window a row sees itself and the `window - 1` positions before it.
        """

    def activate(self, x: Array, kind: Activation) -> Array: ...

    def gate(self, gate: Array, up: Array, kind: Activation) -> Array:
        """activate(gate) * up."""

    def add(self, x: Array, y: Array) -> Array: ...

    def scale(self, x: Array, factor: float) -> Array: ...

    def softcap(self, x: Array, cap: float) -> Array:
        """cap * tanh(x / cap)."""

    def take(self, x: Array, rows: Sequence[int]) -> Array: ...
