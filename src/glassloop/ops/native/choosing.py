"""Following rules in C: `ops/rules.py` says what they are."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from ctypes import addressof, c_char
from functools import cache
from struct import Struct
from typing import NamedTuple, NoReturn

import numpy as np

from glassloop.ops.chosen import ALTERNATIVE, NUMBERS, Chosen
from glassloop.ops.native.library import address, library
from glassloop.ops.quant import Float32
from glassloop.ops.rules import Asked, Left, Line, Rule, RuleError, check_rule
from glassloop.ops.vocabulary import Summary

# As choosing.c has them.
_RULE = Struct("qqdPP")
_ASKED = Struct("qdPqQqq")
_LEFT = Struct("2q2d")
_NOBODY_LEFT, _NO_MEMORY = -1, -3


@cache
def _pieces(size: int) -> Struct:
    """To take memory apart."""
    return Struct(f"{size}s")


def choose(logits: Float32, lines: Sequence[Line]) -> list[Chosen | None]:
    logits, at = _open(logits)
    (rows, width), stride = logits.shape, logits.strides[0]
    packed = array("Q")
    sizes = []
    for asked, place, position in lines:
        if not 0 <= place < rows or asked.head > width or position < 0:
            raise RuleError(f"row {place} of {rows}, {asked.head} of {width} logits, position {position}")
        where, size, _ = asked.prepared or _prepare(asked)
        packed.extend((where, at + place * stride, position))
        sizes.append(size)
    most = max(sizes)
    made = bytearray(most * len(lines))
    if not library().gl_choose_rows(packed.buffer_info()[0], len(lines), width, address(made), most):
        raise MemoryError
    found: list[Chosen | None] = []
    for (data,), size in zip(_pieces(most).iter_unpack(made), sizes, strict=True):
        chosen = Chosen(data[:size])
        if chosen.id < _NOBODY_LEFT:
            _raise(chosen.id, width)
        found.append(None if chosen.id < 0 else chosen)
    return found


def left(logits: Float32, summary: Summary, asked: Asked, count: int) -> Left:
    logits, at = _open(logits)
    width, changed = len(logits), np.empty(len(logits), np.float32)
    told = bytearray(_LEFT.size)
    if not asked.head <= min(width, len(summary.ids), len(summary.logits)) or not 0 <= count <= len(
        asked.rules
    ):
        raise RuleError(f"{asked.head} of {width} logits, {count} of {len(asked.rules)} rules")
    where, _, _ = asked.prepared or _prepare(asked)
    size, room = 2 * asked.head, 0
    while size > room:  # once more, where there are more than we had room for
        room = size
        ids, values = np.empty(room, np.int32), np.empty(room, np.float32)
        size = library().gl_left(
            where,
            at,
            width,
            count,
            address(summary.ids),
            address(summary.logits),
            summary.log_sum_exp,
            room,
            address(ids),
            address(values),
            address(changed),
            address(told),
        )
    if size < 0:
        _raise(size, width)
    complete, listed, scale, log_sum_exp = _LEFT.unpack(told)
    return Left(ids[:size], values[:size], None if listed else changed, scale, bool(complete), log_sum_exp)


def _raise(code: int, width: int) -> NoReturn:
    if code == _NO_MEMORY:
        raise MemoryError
    raise RuleError(f"a rule names a token that is none, or has no mask of {width} tokens")


def _open(logits: Float32) -> tuple[Float32, int]:
    """The same, or a copy where they do not lie together or are not to be written to; and where they lie."""
    if logits.dtype != np.float32:
        raise RuleError(f"the logits are {logits.dtype}; float32 is expected")
    try:
        return logits, addressof(c_char.from_buffer(logits))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        own = logits.copy()
        return own, address(own)


class _Prepared(NamedTuple):
    """What C reads: what is asked, then its rules."""

    address: int
    size: int  # of what it writes
    memory: bytearray


def _prepare(asked: Asked) -> _Prepared:
    memory = bytearray(_ASKED.size) + b"".join([_packed(rule) for rule in asked.rules])
    at, branch = address(memory), asked.branch
    head, scale, count, wanted = asked.head, asked.scale, len(asked.rules), asked.wanted
    if not 0 <= wanted <= head or head < 1:
        raise RuleError(f"{wanted} of the {head} highest are wanted; at least one, and no more, is expected")
    lucky = branch is not None
    _ASKED.pack_into(memory, 0, head, scale, at + _ASKED.size, count, branch or 0, lucky, wanted)
    asked.prepared = made = _Prepared(at, NUMBERS.itemsize + ALTERNATIVE.itemsize * wanted, memory)
    return made


def _packed(rule: Rule) -> bytes:
    which, numbers = rule.which, rule.numbers
    check_rule(rule)
    return _RULE.pack(
        rule.action,
        0 if which is None else len(which),
        rule.amount,
        0 if which is None else address(which),
        0 if numbers is None else address(numbers),
    )
