"""Buffers for a recorded forward pass: what the recorders of the native and the torch op set share.

A recorder knows the calls of a forward pass in order, each with the values that it reads and the one that it
writes. `plan_buffers` assigns the values to as few buffers as their lifetimes allow.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Generic, NamedTuple, TypeVar

_Room = TypeVar("_Room", bound=Hashable)


class Use(NamedTuple, Generic[_Room]):
    """One call of a forward pass, as the planner sees it. Values are numbers."""

    reads: Sequence[int]
    writes: int | None  # None: it has no output
    room: _Room  # what the output needs of a buffer: only a buffer of an equal room serves
    over: int | None = None  # the value that the output is written over: one that nothing reads later


def plan_buffers(
    uses: Sequence[Use[_Room]], results: set[int], inputs: Sequence[tuple[int, _Room]] = ()
) -> tuple[dict[int, int], list[_Room]]:
    """Returns the buffer of each value, and the rooms of all buffers.

    A buffer is used again after the last call that reads its value. A result has a buffer to itself, since it
    is returned. Inputs have the first buffers, and keep them."""
    kept = results | {value for value, _ in inputs}
    last_use = {value: index for index, use in enumerate(uses) for value in use.reads}
    homes = {value: number for number, (value, _) in enumerate(inputs)}
    rooms = [room for _, room in inputs]
    free: list[int] = []
    for index, (reads, value, room, over) in enumerate(uses):
        if over is not None and value is not None:
            assert last_use[over] == index and over not in kept and value not in results
            homes[value] = homes[over]
            assert rooms[homes[over]] == room
        elif value is not None:
            fits = [] if value in results else [home for home in free if rooms[home] == room]
            if fits:
                free.remove(fits[0])
            else:
                rooms.append(room)
            homes[value] = fits[0] if fits else len(rooms) - 1
        for read in dict.fromkeys(reads):
            if last_use[read] == index and read not in kept and read != over:
                free.append(homes[read])
    return homes, rooms
