"""Following rules in C: `ops/rules.py` says what they are."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import addressof, byref, c_char, c_double, c_int32
from functools import cache
from struct import Struct
from typing import Any, NamedTuple

import numpy as np

from glassloop.ops.native.library import address, library
from glassloop.ops.quant import Float32
from glassloop.ops.rules import ALTERNATIVE, Asked, Chosen, Left, Rule, Rules

# As choosing.c has them.
_RULE = Struct("qqdPP")
_ASKED = Struct("PqdPqQqq")


@cache
def _chosen(told: int) -> Struct:
    """With so many alternatives."""
    return Struct(f"q2d2q6d2q{ALTERNATIVE.itemsize * told}s")


class _Prepared(NamedTuple):
    """Rules as C reads them."""

    address: int
    memory: bytearray


def choose(logits: Float32, asked: Sequence[Asked]) -> list[Chosen | None]:
    logits, at = _open(logits)
    rows, (_, width), stride = len(asked), logits.shape, logits.strides[0]
    most = min(max([each.wanted for each in asked]), width)
    chosen = _chosen(most)
    results = _ASKED.size * rows
    memory = bytearray(results + chosen.size * rows)
    for number, (place, head, scale, rules, key, wanted) in enumerate(asked):
        _ASKED.pack_into(
            memory,
            _ASKED.size * number,
            at + place * stride,
            min(head, width),
            scale,
            _prepare(rules).address,
            len(rules),
            key or 0,
            key is not None,
            min(wanted, head, width),
        )
    memory_at = address(memory)
    library().gl_choose_rows(memory_at, rows, width, memory_at + results, chosen.size)
    found = chosen.iter_unpack(memoryview(memory)[results:])
    return [_made(numbers, each.wanted) for numbers, each in zip(found, asked, strict=True)]


def _made(numbers: tuple[Any, ...], wanted: int) -> Chosen | None:
    *plain, runner_up, survivors, told = numbers
    if plain[0] < 0:
        return None
    plain += [None if runner_up < 0 else runner_up, None if survivors < 0 else survivors]
    return Chosen._make((*plain, told[: ALTERNATIVE.itemsize * wanted]))


def left(logits: Float32, asked: Asked, count: int) -> Left:
    logits, at = _open(logits)
    width, changed = len(logits), np.empty(len(logits), np.float32)
    head, rules = min(asked.head, width), asked.rules
    packed = bytearray(_ASKED.pack(at, head, asked.scale, _prepare(rules).address, len(rules), 0, 0, 0))
    complete, listed, scale, total = c_int32(), c_int32(), c_double(), c_double()
    size, room = 2 * head, 0
    while size > room:  # once more, where there are more than we had room for
        room = size
        ids, values = np.empty(room, np.int32), np.empty(room, np.float32)
        size = library().gl_left(
            address(packed),
            width,
            count,
            room,
            address(ids),
            address(values),
            address(changed),
            byref(complete),
            byref(listed),
            byref(scale),
            byref(total),
        )
    row = None if listed.value else changed
    return Left(ids[:size], values[:size], row, scale.value, bool(complete.value), total.value)


def _open(logits: Float32) -> tuple[Float32, int]:
    """The same, or a copy where they do not lie together or are not to be written to; and where they lie."""
    try:
        return logits, addressof(c_char.from_buffer(logits))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        own = logits.copy()
        return own, address(own)


def _prepare(rules: Rules) -> _Prepared:
    if rules.prepared is None:
        memory = bytearray(b"".join(map(_packed, rules)) or 1)
        rules.prepared = _Prepared(address(memory), memory)
    made: _Prepared = rules.prepared
    return made


def _packed(rule: Rule) -> bytes:
    which, numbers = rule.which, rule.numbers
    return _RULE.pack(
        rule.action,
        0 if which is None else len(which),
        rule.amount,
        0 if which is None else address(which),
        0 if numbers is None else address(numbers),
    )
