"""Choosing tokens in C (choosing.c): implements `ops/rows.py:Chooser`."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from ctypes import addressof, c_char
from functools import cache
from math import inf
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from glassloop.ops.native import library as lib
from glassloop.ops.native.library import address, library
from glassloop.ops.quant import Float32
from glassloop.ops.rows import Float64, Int32, Line, RowRules, RowSummary, RuleError, Survivors

_SELECTIONS = {
    np.dtype(np.int32): lib.SELECTIONS.index("ids"),
    np.dtype(np.bool_): lib.SELECTIONS.index("mask"),
}

layout = lib.decoding_layout()
follows_whole_rows = True


def choose(logits: Float32, lines: Sequence[Line], record: np.dtype[np.void]) -> bytearray:
    logits, at = _writable(logits)
    (rows, width), stride = logits.shape, logits.strides[0]
    packed = array("Q")
    for request, row, position in lines:
        if not 0 <= row < rows or request.head > width or position < 0:
            raise RuleError(f"row {row} of {rows}, {request.head} of {width} logits, position {position}")
        packed.extend(((request.prepared or _prepare(request)).address, at + row * stride, position))
    size = record.itemsize
    made = bytearray(size * len(lines))
    failure = library().gl_choose_rows(packed.buffer_info()[0], len(lines), width, address(made), size)
    if failure:
        _raise(failure, width)
    return made


def choose_found(
    found: NDArray[np.uint8],
    width: int,
    lines: Sequence[Line],
    edited: Sequence[int],
    scales: Sequence[float],
    record: np.dtype[np.void],
) -> tuple[bytearray, list[int]]:
    """Chooses a token for each line from what another device has found in its row of logits ([pieces, bytes],
    as choosing.h describes it). Returns the records and the numbers of the lines that need the row itself,
    whose records are not made.

    `edited` has for each line the number of the piece about its row after its first rules, those about single
    tokens, or -1; `scales` has the scale at which the logits of that were summed."""
    packed = array("Q", bytes(24 * len(lines)))
    packed[0::3] = array("Q", [(request.prepared or _prepare(request)).address for request, _, _ in lines])
    positions = [position for _, _, position in lines]
    if lines and (min(positions) < 0 or max([request.head for request, _, _ in lines]) > width):
        raise RuleError(f"a line has a head of more than {width} logits, or a negative position")
    packed[2::3] = array("Q", positions)
    fits = found.ndim == 2 and len(found) >= len(lines) and found.shape[1] == found_bytes(width)
    if found.dtype != np.uint8 or not fits or not len(edited) == len(scales) == len(lines):
        raise RuleError(f"what was found has the shape {found.shape}, for {len(lines)} lines")
    size = record.itemsize
    made = bytearray(size * len(lines))
    pieces, of_pieces = array("q", edited), array("d", scales)
    failure = library().gl_choose_found(
        packed.buffer_info()[0],
        len(lines),
        width,
        address(found),
        found.shape[1],
        len(found),
        pieces.buffer_info()[0],
        of_pieces.buffer_info()[0],
        address(made),
        size,
    )
    if failure:
        _raise(failure, width)
    ids = np.frombuffer(made, np.int64).reshape(len(lines), -1)[:, 0]
    return made, np.flatnonzero(ids == lib.FAILURES["needs_row"]).tolist()


@cache
def found_bytes(width: int) -> int:
    return int(library().gl_found_bytes(width))


def survivors(logits: Float32, summary: RowSummary, request: RowRules, count: int) -> Survivors:
    logits, at = _writable(logits)
    width, row = len(logits), np.empty(len(logits), np.float32)
    head, rules = request.head, len(request.rules)
    if not head <= min(width, len(summary.ids), len(summary.logits)) or not 0 <= count <= rules:
        raise RuleError(f"{head} of {width} logits, {count} of {rules} rules")
    prepared = request.prepared or _prepare(request)
    remainder = bytearray(lib.REMAINDER.size)
    size, room = 2 * head, 0
    while size > room:  # a second time if the survivors were more than the arrays hold
        room = size
        ids, values = np.empty(room, np.int32), np.empty(room, np.float32)
        size = library().gl_survivors(
            prepared.address,
            at,
            width,
            count,
            address(summary.ids),
            address(summary.logits),
            summary.log_sum_exp,
            room,
            address(ids),
            address(values),
            address(row),
            address(remainder),
        )
    if size < 0:
        _raise(size, width)
    complete, listed, scale, log_sum_exp = lib.REMAINDER.unpack(remainder)
    return Survivors(ids[:size], values[:size], None if listed else row, scale, bool(complete), log_sum_exp)


def race(
    key: int, ids: Int32, logits: Float64, row: Float32 | None, scale: float
) -> tuple[int, int, float, float, int | None, float]:
    ids, logits = np.ascontiguousarray(ids, np.int32), np.ascontiguousarray(logits, np.float64)
    row = None if row is None else np.ascontiguousarray(row, np.float32)
    if not len(ids) or len(ids) != len(logits):
        raise RuleError(
            f"{len(ids)} ids race with {len(logits)} logits; one or more, and as many, are expected"
        )
    places, winners, numbers = np.empty(2, np.int64), np.empty(2, np.int32), np.empty(4)
    done = library().gl_race(
        key,
        address(ids),
        address(logits),
        len(ids),
        None if row is None else address(row),
        0 if row is None else len(row),
        scale,
        address(places),
        address(winners),
        address(numbers),
    )
    if not done:
        raise MemoryError
    first, second = winners.tolist()
    logit, luck, other_logit, other_luck = numbers.tolist()
    place = min(int(places[0]), len(ids))
    if second < 0:
        return first, place, logit, luck, None, inf
    return first, place, logit, luck, second, logit + luck - (other_logit + other_luck)


def luck_of(key: int, ids: NDArray[np.integer]) -> Float64:
    narrow = np.ascontiguousarray(ids, np.int32)
    luck = np.empty(len(narrow))
    library().gl_luck_of(key, address(narrow), len(narrow), address(luck))
    return luck


def _raise(failure: int, width: int) -> NoReturn:
    if failure == lib.FAILURES["no_memory"]:
        raise MemoryError
    raise RuleError(f"a rule has ids or a mask that do not fit a row of {width} logits, or not what it needs")


def _writable(logits: Float32) -> tuple[Float32, int]:
    """Returns the logits, or a copy if they are read-only or not contiguous, and their address."""
    if logits.dtype != np.float32:
        raise RuleError(f"the logits are {logits.dtype}; float32 is expected")
    try:
        return logits, addressof(c_char.from_buffer(logits))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        own = logits.copy()
        return own, address(own)


class Prepared:
    """A request as C reads it."""

    __slots__ = ("address", "edits", "memory")

    def __init__(self, address: int, memory: bytearray) -> None:
        self.address = address
        self.memory = memory  # a gl_request, then its rules
        self.edits: Any = None  # for another device to keep what it has made of the request's first rules


def prepared(request: RowRules) -> Prepared:
    """Returns a request as C reads it, packed at the first call."""
    found: Prepared = request.prepared or _prepare(request)
    return found


def _prepare(request: RowRules) -> Prepared:
    """Packs a request as C reads it, and keeps it with the request."""
    memory = bytearray(lib.REQUEST.size) + b"".join([_packed(*rule) for rule in request.rules])
    at, key = address(memory), request.branch_key
    head, alternatives = request.head, request.alternatives
    if not 0 <= alternatives <= head or head < 1:
        raise RuleError(f"alternatives is {alternatives}; a number from 0 to the head, {head}, is expected")
    rules = at + lib.REQUEST.size, len(request.rules)
    lib.REQUEST.pack_into(memory, 0, head, request.scale, *rules, key or 0, key is not None, alternatives)
    request.prepared = made = Prepared(at, memory)
    return made


def _packed(action: int, amount: float, which: NDArray[Any] | None, numbers: Float64 | None) -> bytes:
    """Packs a rule. What the arrays hold is checked here, whether they fit the action and the row in C."""
    if which is None:
        if numbers is not None:
            raise RuleError(f"rule {action!r} has numbers, and no ids")
        return lib.RULE.pack(action, 0, 0, amount, 0, 0)
    selection = _SELECTIONS.get(which.dtype)
    if selection is None or which.ndim != 1 or not which.flags.c_contiguous:
        raise RuleError(f"rule {action!r} has {which!r:.80}; ids in int32 or a mask are expected")
    if numbers is None:
        return lib.RULE.pack(action, selection, len(which), amount, address(which), 0)
    if numbers.dtype != np.float64 or numbers.shape != which.shape or not numbers.flags.c_contiguous:
        raise RuleError(f"rule {action!r} has {numbers!r:.80}; a float64 for each id is expected")
    return lib.RULE.pack(action, selection, len(which), amount, address(which), address(numbers))
