"""The operations that a forward pass is made of. `model/transformer.py` calls these and no others.

Op sets implement this protocol: `reference` (NumPy, the specification), `native` (C) and `torch` (GPU).
Arrays go in and arrays come out. Which type they have, and in which form a matrix is kept, is up to the op
set; `host` converts an array to NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from glassloop.errors import ModelError
from glassloop.ops.activations import Activation as Activation
from glassloop.ops.batch import Batch
from glassloop.ops.kv_cache import CacheSpec, Pages, Place
from glassloop.ops.memory import FreeMemory
from glassloop.ops.quant import Float32, Format
from glassloop.ops.routing import Expert, Gating, Router, Routing
from glassloop.ops.rows import RowOps
from glassloop.ops.state_cache import StatePages, StateSpec
from glassloop.ops.tensor import Tensor


class Array:
    """Rows of activations, or a vector of weights, of some op set. Only the op set itself knows what it is:
    `choose_ops` hides that from the type checker, so that no array is taken for a matrix or looked into."""


class Matrix:
    """A weight matrix in the form in which some op set multiplies with it; hidden as an `Array` is."""


Output = TypeVar("Output")
M = TypeVar("M")
Forward = Callable[
    [Batch, Sequence[Pages]], Output
]  # a computation over the forward pass, and what it returns


class LowRank(NamedTuple, Generic[M]):
    """What an adapter adds to the product with one matrix [out, in]: scale * up(down(x))."""

    down: M  # [rank, in]
    up: M  # [out, rank]
    scale: float


class QueryGrowth(NamedTuple):
    """How queries grow with their position: by 1 + rate * log(1 + position // step)."""

    rate: float
    step: int


class Ops(Protocol):
    name: str
    step_rows: int  # most rows of one step of the engine
    rows_beside: int  # prompt rows per step while any task is decoding
    most_running: int  # requests that run at once, by default
    # Operations that the op set does not have: names of methods below, or a kind of one ("gate:gelu",
    # "attention:window"). `tests/ops/conformance.py` skips them, and models that need one are refused.
    lacks: frozenset[str]

    @property
    def description(self) -> str:
        """The name and, if results depend on it, the arithmetic or the machine: "native arithmetic 2"."""

    @property
    def rows(self) -> RowOps:
        """The functions over rows of logits, which `program` returns, and the chooser."""

    def host(self, array: Array) -> Float32:
        """Returns an array that a program has returned as a NumPy array."""

    def seconds(self, results: Array) -> float | None:
        """Waits until a device has computed results that a program returned early, and returns how many
        seconds that took. None if the call of the program has computed them."""

    def program(
        self, compute: Forward[Output], sizes: Sequence[int] = (), adapted: bool = False
    ) -> Forward[Output]:
        """Returns the same computation, prepared to run many times. An op set may record its calls once.

        `compute` returns an array of the wanted rows or a list of such arrays; so does the program. `sizes`
        are the numbers of rows that batches usually have; an op set may prepare for these, and must run any
        other. If `adapted`, the batches have adapters; else they have none.
        """

    def free_memory(self) -> FreeMemory:
        """Returns how much memory is free for weights, keys and values."""

    def matrix_bytes(self, shape: tuple[int, ...], format: Format) -> int:
        """Returns about how many bytes `matrix` takes for a tensor that a file has in this format."""

    def cache_memory(self) -> int:
        """Returns how many bytes a cache takes by default: a share of the memory that is free."""

    def page_bytes(self, spec: CacheSpec) -> int:
        """Returns the bytes of one page of a group of layers."""

    def cache(self, specs: Sequence[CacheSpec], memory: int) -> list[Pages]:
        """Allocates a cache of at most `memory` bytes. Returns the pool of pages that each group of layers
        uses, which is the same for all: a page belongs to the group whose page table has it."""

    def states(self, spec: StateSpec, states: int, rows: int) -> StatePages:
        """Allocates slots for so many states and rows of recurrent layers, the last pool of a cache."""

    def matrix(self, tensor: Tensor) -> Matrix:
        """Returns a weight matrix [out, in] in the form in which this op set multiplies with it. The tensor
        is released once its values have been copied."""

    def vector(self, tensor: Tensor) -> Array:
        """Returns the weight of a norm or of a convolution, or a bias."""

    def low_rank(self, down: Tensor, up: Tensor, scale: float) -> LowRank[Matrix]:
        """Returns the part of an adapter for one matrix, in the form in which `adapt` reads it."""

    def embed(self, table: Matrix, ids: Sequence[int]) -> Array:
        """Rows `ids` of a table: [rows, dim]."""

    def linear(self, x: Array, weight: Matrix, bias: Array | None) -> Array:
        """x @ weight.T + bias: [rows, out]."""

    def head(self, x: Array, weight: Matrix) -> Array:
        """The same as `linear` without a bias, for the logits. An op set that rounds its inputs rounds these
        more finely: a third of the error that 8-bit activations cause in the probabilities arises here, in a
        fifth of the work.
        """

    def adapt(
        self, y: Array, x: Array, adapters: Sequence[int], parts: Sequence[LowRank[Matrix] | None]
    ) -> Array:
        """y + scale * up(down(x)): [rows, out], where `parts[a]` is what adapter `a` of a row adds to the
        product y of x with one matrix. A row whose part is None keeps the bits of y. `y` is not used again.
        """

    def rms_norm(self, x: Array, weight: Array, eps: float) -> Array:
        """Normalizes over the last axis."""

    def layer_norm(self, x: Array, weight: Array, bias: Array, eps: float) -> Array:
        """Normalizes over the last axis."""

    def split_heads(self, x: Array, heads: int) -> Array:
        """[rows, heads * head dim] to [rows, heads, head dim]."""

    def angles(
        self, positions: Sequence[int], frequencies: Float32, factor: float, growth: QueryGrowth | None = None
    ) -> Array:
        """Cosines and sines of `positions * frequencies`, each times `factor` and what it grows by at the
        position, for `rotate`."""

    def rotate(self, x: Array, angles: Array) -> Array:
        """Rotates each pair (i, i + half) of the leading dimensions of each head by its angle."""

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
        sinks: Array | None = None,
    ) -> Array:
        """Writes k and v to their pages, then lets each row attend to its branch: [rows, heads * head dim].

        A row sees the slots up to its own, or as many as `batch.reach` says. With a window, a row sees
        itself, the `window - 1` slots before it, and what is within its reach after it. `sinks` are the
        scores of one more key for each head, whose value is zero: [heads].
        """

    def attend(
        self,
        q: Array,
        kv_heads: int,
        batch: Batch,
        pages: Sequence[Pages],
        place: Place,
        scale: float,
        window: int | None,
        softcap: float | None,
        sinks: Array | None = None,
    ) -> Array:
        """The second half of `attention`, over keys and values that an earlier layer has written."""

    def conv(
        self,
        x: Array,
        kernel: Array,
        bias: Array | None,
        kind: Activation,
        batch: Batch,
        pages: Sequence[Pages],
        place: Place,
    ) -> Array:
        """activation(Σ kernel[m] * x[t - width + 1 + m] + bias), channel by channel: [rows, channels].

        The kernel is [width, channels]. Rows before the first position of a branch are 0. What later rows
        need of these is kept in slots.
        """

    def activate(self, x: Array, kind: Activation) -> Array: ...

    def gate(self, gate: Array, up: Array, kind: Activation) -> Array:
        """activate(gate) * up."""

    def route(self, x: Array, router: Router, routing: Routing) -> Array:
        """Chooses the experts of each row: routes [rows, 2 * chosen], which `ops/expert_choice.py` defines.
        The logits are products in float32, and `x` is not rounded for them."""

    def experts(
        self, x: Array, routes: Array, experts: Sequence[Expert], gating: Gating, weigh_input: bool
    ) -> Array:
        """The sum over the experts of a row, by ascending number, of weight * expert(x), or with
        `weigh_input` of expert(weight * x): [rows, dim]. `routes` is what `route` returned for these rows."""

    def add(self, x: Array, y: Array) -> Array: ...

    def scale(self, x: Array, factor: float) -> Array: ...

    def softcap(self, x: Array, cap: float) -> Array:
        """cap * tanh(x / cap)."""

    def take(self, x: Array, rows: Sequence[int]) -> Array: ...


def check_has(ops: Ops, needed: Iterable[str], what: str) -> None:
    """Raises if the op set lacks one of the operations that are needed for `what`."""
    for name in needed:
        if name in ops.lacks or name.partition(":")[0] in ops.lacks:
            raise ModelError(
                f"{what} needs the operation {name}, which the op set {ops.name} lacks;"
                " choose another one: ops='native' or ops='reference'"
            )
