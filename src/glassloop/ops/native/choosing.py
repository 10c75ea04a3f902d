"""Following rules in C: `ops/rules.py` says what they are."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref, c_double, c_int32
from struct import Struct
from typing import Any

import numpy as np

from glassloop.ops.native.library import address, library
from glassloop.ops.quant import Float32
from glassloop.ops.rules import Asked, Chosen, Left, Rule
from glassloop.ops.vocabulary import Float64, Int32

# As choosing.c has them.
_RULE = Struct("qqdPP")
_ASKED = Struct("PqdPqQqqPPP")
_CHOSEN = Struct("q2d2q6d2q")


def choose(logits: Float32, places: Sequence[int], asked: Sequence[Asked]) -> list[Chosen | None]:
    logits = _writable(logits)
    rows, width, stride = len(asked), logits.shape[1], logits.strides[0]
    most = min(max(each.wanted for each in asked), width)
    ids, logprobs = np.empty((rows, most), np.int32), np.empty((2, rows, most))
    rules = _packed([rule for each in asked for rule in each.rules])
    made = bytearray(_CHOSEN.size * rows)
    row_at, rule_at, ids_at, after_at = address(logits), address(rules), address(ids), address(logprobs)
    raw_at = after_at + 8 * rows * most
    packed = bytearray(_ASKED.size * rows)
    for number, (place, (head, scale, own, key, wanted)) in enumerate(zip(places, asked, strict=True)):
        _ASKED.pack_into(
            packed,
            _ASKED.size * number,
            row_at + place * stride,
            min(head, width),
            scale,
            rule_at,
            len(own),
            key or 0,
            key is not None,
            min(wanted, head, width),
            ids_at + 4 * number * most,
            after_at + 8 * number * most,
            raw_at + 8 * number * most,
        )
        rule_at += _RULE.size * len(own)
    library().gl_choose_rows(address(packed), rows, width, address(made))
    told = zip(_CHOSEN.iter_unpack(made), asked, ids, *logprobs, strict=True)
    return [_chosen(numbers, each.wanted, *more) for numbers, each, *more in told]


def _chosen(numbers: tuple[Any, ...], wanted: int, ids: Int32, after: Float64, raw: Float64) -> Chosen | None:
    *plain, runner_up, survivors = numbers
    if plain[0] < 0:
        return None
    numbers = (*plain, None if runner_up < 0 else runner_up, None if survivors < 0 else survivors)
    return Chosen._make((*numbers, ids[:wanted], after[:wanted], raw[:wanted]))


def left(logits: Float32, asked: Asked, count: int) -> Left:
    logits = _writable(logits)
    width, changed = len(logits), np.empty(len(logits), np.float32)
    rules = _packed(asked.rules)
    head = min(asked.head, width)
    packed = bytearray(_ASKED.size)
    _ASKED.pack_into(
        packed, 0, address(logits), head, asked.scale, address(rules), len(asked.rules), 0, 0, 0, 0, 0, 0
    )
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


def _writable(logits: Float32) -> Float32:
    """The same where the numbers of a row are together and can be written to, else a copy."""
    return logits if logits.strides[-1] == 4 and logits.flags.writeable else logits.copy()


def _packed(rules: Sequence[Rule]) -> bytearray:
    packed = bytearray(_RULE.size * len(rules) + 1)
    for number, (action, amount, which, numbers) in enumerate(rules):
        _RULE.pack_into(
            packed,
            _RULE.size * number,
            action,
            0 if which is None else len(which),
            amount,
            0 if which is None else address(which),
            0 if numbers is None else address(numbers),
        )
    return packed
