"""A row of logits that stages may change while whoever looked at it before still sees what there was.

A persistent array by rerooting (Baker, 1991): only one version holds the numbers, every other holds what it
has differently from the next one on the way there. A change costs what it changes, not the row.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from glassloop.ops.quant import Float32

_IDLE: dict[int, list[Float32]] = {}  # memory of rows that nobody sees any more, by width
_MOST_IDLE = 4


class _Lent:
    """The memory of a row, until the last version of it is gone. New memory costs more than the copy."""

    __slots__ = ("values",)

    def __init__(self, source: Float32) -> None:
        try:
            self.values: Float32 = _IDLE[len(source)].pop()
        except (KeyError, IndexError):
            self.values = np.empty(len(source), np.float32)
        self.values[:] = source

    def __del__(self) -> None:
        idle = _IDLE.setdefault(len(self.values), [])
        if len(idle) < _MOST_IDLE:
            idle.append(self.values)


class _Borrowed:
    """The caller's own memory."""

    __slots__ = ("values",)

    def __init__(self, values: Float32) -> None:
        self.values = values


class Row:
    """One version. The first is the caller's own array, which is never written to, or else `borrowed`."""

    __slots__ = ("_ids", "_lent", "_next", "_own", "_theirs")

    def __init__(self, own: Float32 | None, lent: _Lent | _Borrowed | None = None) -> None:
        self._own = own
        self._lent = lent
        self._next: Row | None = None  # the version that this one differs from, if the numbers are not here
        self._ids: NDArray[np.integer]  # where
        self._theirs: Float32  # and what this one has there

    @classmethod
    def borrowed(cls, values: Float32) -> Row:
        """A first version that later ones may write to, until it is `restored`: to copy a whole row costs
        more than the stages do."""
        return cls(None, _Borrowed(values)) if values.flags.writeable else cls(values)

    @property
    def values(self) -> Float32:
        """The numbers, until another version is asked for its own. Not to be kept, or written to."""
        if self._own is not None:
            return self._own
        if self._next is not None:
            self._fetch(self._next)
        assert self._lent is not None
        return self._lent.values

    def restored(self) -> Float32:
        """The numbers of this first version, for good: later ones are lost."""
        later = []
        row = self
        while row._next is not None:
            later.append(row)
            row = row._next
        numbers = row.values
        for each in reversed(later):
            numbers[each._ids] = each._theirs
        self._next = None
        return numbers

    def replaced(
        self, ids: NDArray[np.integer], values: Float32 | float, before: Float32 | None = None
    ) -> Row:
        """Another version, with other numbers for these ids. `before`: what they have here, if known."""
        if self._own is not None:
            made = Row(None, _Lent(self._own))
            made.values[ids] = values
            return made
        numbers = self.values
        self._ids, self._theirs = ids, numbers[ids] if before is None else before
        numbers[ids] = values
        self._next = made = Row(None, self._lent)
        return made

    def _fetch(self, other: Row) -> None:
        """Bring the numbers here; the other version then differs from this one."""
        numbers = other.values
        other._ids, other._theirs = self._ids, numbers[self._ids]
        numbers[self._ids] = self._theirs
        other._next, self._next = self, None
