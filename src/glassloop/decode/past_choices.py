"""The records of the tokens that a branch has generated: what a stage with memory may depend on.

A decoder keeps them only if a stage of its chain was registered with `needs_record`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

from glassloop.decode.chosen import Chosen

Value = TypeVar("Value")


class PastChoices(Sequence[Chosen]):
    """The records of the generated tokens of one branch, the first one first; stages only read it."""

    def __init__(self) -> None:
        self._chosen: list[Chosen] = []
        self._folds: dict[tuple[Any, ...], tuple[int, Any]] = {}  # of how many tokens, and the value

    @overload
    def __getitem__(self, place: int) -> Chosen: ...
    @overload
    def __getitem__(self, place: slice) -> list[Chosen]: ...
    def __getitem__(self, place: int | slice) -> Chosen | list[Chosen]:
        return self._chosen[place]

    def __len__(self) -> int:
        return len(self._chosen)

    def fold(self, update: Callable[..., Value], start: Value, *options: Any) -> Value:
        """Returns a value that is carried from token to token: it begins with `start`, and each token makes
        it `update(value, chosen, *options)`. The result for the tokens so far is kept, so that every token is
        looked at once. `update` must be a pure function, the values and options immutable."""
        key = (update, start, *options)
        folded: tuple[int, Value] = self._folds.get(key, (0, start))
        length, value = folded
        for chosen in self._chosen[length:]:
            value = update(value, chosen, *options)
        self._folds[key] = len(self._chosen), value
        return value

    def append(self, chosen: Chosen) -> None:
        self._chosen.append(chosen)

    def truncate(self, length: int) -> None:
        """Removes records from the end until `length` are left."""
        del self._chosen[length:]
        self._folds = {key: kept for key, kept in self._folds.items() if kept[0] <= length}

    def copy(self) -> PastChoices:
        """Returns independent records of the same tokens."""
        copied = PastChoices()
        copied._chosen, copied._folds = self._chosen.copy(), self._folds.copy()
        return copied
