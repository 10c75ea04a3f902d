"""The adapters that a model has loaded, and programs over its forward pass with and without them.

A row of a batch names its adapter by a number; 0 is none. Batches without adapters run a program that knows
nothing of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol
from weakref import WeakMethod, ref

import numpy as np

from glassloop.ops.batch import Batch, BatchError
from glassloop.ops.kv_cache import Pages
from glassloop.ops.protocol import Forward, LowRank, Matrix, Ops, Output
from glassloop.ops.tensor import Tensor

if TYPE_CHECKING:
    from glassloop.model.adapter import Adapter


class AdapterTable(NamedTuple):
    """The loaded adapters by number, in the form in which an op set reads them."""

    loaded: tuple[Adapter | None, ...] = (None,)
    parts: Mapping[str, Sequence[LowRank[Matrix] | None]] = {}  # by linear layer, then by number
    embedding: Matrix | None = None  # [numbers, dim], added to the embedding of a row

    def with_adapter(self, adapter: Adapter, dim: int, ops: Ops) -> tuple[AdapterTable, int]:
        """Returns the table with one more adapter, and its number: the first that is free."""
        loaded = [*self.loaded, None]
        number = loaded.index(None, 1)  # 0 is no adapter
        loaded[number] = adapter
        return self._loading(tuple(loaded if loaded[-1] is not None else loaded[:-1]), dim, ops), number

    def without(self, number: int, dim: int, ops: Ops) -> AdapterTable:
        """Returns the table without an adapter. The others keep their numbers."""
        return self._loading((*self.loaded[:number], None, *self.loaded[number + 1 :]), dim, ops)

    def _loading(self, loaded: tuple[Adapter | None, ...], dim: int, ops: Ops) -> AdapterTable:
        """Returns a table of these adapters. Matrices that this table has are used again."""
        parts: dict[str, list[LowRank[Matrix] | None]] = {}
        # Adding -0.0 leaves every number as it is; adding 0.0 would turn -0.0 into 0.0.
        embedding = np.full((len(loaded), dim), -0.0, np.float32)
        for number, adapter in enumerate(loaded):
            if adapter is None:
                continue
            is_loaded = number < len(self.loaded) and self.loaded[number] is adapter
            for name, (down, up) in adapter.matrices.items():
                part = self.parts[name][number] if is_loaded else ops.low_rank(down, up, adapter.scale)
                parts.setdefault(name, [None] * len(loaded))[number] = part
            if adapter.embedding is not None:
                embedding[number] = adapter.embedding
        return AdapterTable(loaded, parts, ops.matrix(Tensor.of("adapter_embedding.weight", embedding)))


class Adaptable(Protocol):
    """What a program needs of a model."""

    @property
    def ops(self) -> Ops: ...

    @property
    def adapters(self) -> AdapterTable: ...


class AdaptedForward(Generic[Output]):
    """A computation over the forward pass, prepared for the op set twice: without adapters and, when the
    first batch with adapters comes, with all that are loaded then."""

    def __init__(self, model: Adaptable, compute: Forward[Output]) -> None:
        # A model holds the programs of its own methods. These must not hold it too, or only the garbage
        # collector could free it.
        is_method = getattr(compute, "__self__", None) is model
        self._model = ref(model)
        self._compute: Callable[[], Forward[Output] | None] = (
            WeakMethod(compute) if is_method else lambda: compute
        )
        self.plain = model.ops.program(compute)
        self._adapted = self.plain
        self._recorded_adapters = model.adapters

    def __call__(self, batch: Batch, pages: Sequence[Pages]) -> Output:
        if not any(batch.adapters):
            return self.plain(batch, pages)
        model, compute = self._model(), self._compute()
        assert model is not None and compute is not None  # the caller holds the model
        adapters = model.adapters
        if adapters.embedding is None:
            raise BatchError(f"a row has the adapter {max(batch.adapters)}; none is loaded")
        if self._adapted is self.plain or self._recorded_adapters is not adapters:
            self._adapted = model.ops.program(compute, adapted=True)
            self._recorded_adapters = adapters
        return self._adapted(batch, pages)
