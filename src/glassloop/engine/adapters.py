"""The LoRA adapters that are loaded beside a model, as the loop keeps them.

Any thread may read `loaded`, which is replaced as a whole; `LLM` makes sure that one thread
at a time changes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from glassloop.engine.tasks.task import Task
from glassloop.engine.tree import KVTree
from glassloop.errors import GlassloopError, SamplingError
from glassloop.model.transformer import Transformer
from glassloop.util.shown import shown


class AdapterNumber(int):
    """The number of an adapter in a batch. When the adapter is unloaded another one may get the same number,
    so each load has an object of its own: a number that is equal but another object is an old one."""


class LoadedAdapter(NamedTuple):
    number: int  # of the rows on which it acts
    sha256: str  # of its files


class LoadedAdapters:
    def __init__(self, transformer: Transformer, tree: KVTree) -> None:
        self.loaded: Mapping[str, LoadedAdapter] = {}  # by name
        self.retired: set[int] = set()  # the numbers of adapters that only running requests still use
        self._transformer = transformer
        self._tree = tree

    def add(self, name: str, adapter: LoadedAdapter) -> None:
        self.loaded = {**self.loaded, name: adapter}

    def retire(self, name: str) -> None:
        """Makes an adapter unknown to new requests."""
        self.retired.add(self.loaded[name].number)
        self.loaded = {other: adapter for other, adapter in self.loaded.items() if other != name}

    def unload(self, tasks: Iterable[Task]) -> None:
        """Unloads the retired adapters that none of these tasks uses: those that have not ended."""
        used = {branch.adapter for task in tasks for branch in task.branches}
        for number in self.retired - used:
            self._tree.forget(number)  # before another adapter can get its number
            self._transformer.unload_adapter(number)
        self.retired &= used

    def number_of(self, name: str | None, recorded: Mapping[str, str]) -> int:
        """Returns the number of an adapter, 0 for None. `recorded` has the hashes of a run's adapters by
        name. Raises if that adapter is not loaded any more."""
        if name is None:
            return 0
        adapter = self.loaded.get(name)
        if adapter is None or adapter.sha256 != recorded.get(name):
            raise SamplingError.about("adapter", f"is {shown(name)}, which was unloaded meanwhile")
        return adapter.number

    def check_number(self, number: int) -> None:
        """Raises if the adapter that this number was given for is not loaded any more."""
        if number and not any(adapter.number is number for adapter in self.loaded.values()):
            raise GlassloopError("the adapter was unloaded meanwhile")
