"""Lines, the choices of tokens, as the kernels read them: kernels/lines.py has the layout."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from struct import pack
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from glassloop.ops.native import chooser as native
from glassloop.ops.native.library import REQUEST
from glassloop.ops.rows import Line, RowRules, RuleError
from glassloop.ops.torch.kernels import lines as line_layout


class Asked(NamedTuple):
    """A request as the kernels read it."""

    width: int  # of the rows that it is for
    plain: bytes  # what a line has of the request, for the row as the model gave it
    edited: bytes | None = None  # the same for the row after its edits; None: there are none
    edits: bytes = b""
    scale: float = 1.0  # at which the logits after the edits are summed
    has_cuts: bool = False  # whether rules about the distribution follow


_ASKED_BYTES = 8 * (line_layout.OF.value - line_layout.HEAD.value)
# The numbers of `Action` in decode/rules.py, which the native chooser compares with its own.
_KEEP, _SCALE = 3, line_layout.RULE_SCALE.value


def asked_of(request: RowRules, width: int) -> Asked:
    """Returns a request as the kernels read it, kept with the request. Raises `RuleError` if an edit does not
    fit: a kernel would write to memory that is not its own."""
    prepared = native.prepared(request)
    if prepared.edits is None or prepared.edits.width != width:
        prepared.edits = _divided(request, bytes(prepared.memory), width)
    found: Asked = prepared.edits
    return found


def _divided(request: RowRules, memory: bytes, width: int) -> Asked:
    """Returns a request divided into its edits and what is asked before and after them. `memory` has the
    request and its rules as C reads them."""
    has_cuts = any(rule[0] > _SCALE for rule in request.rules)
    if not request.rules or request.rules[0][0] > _KEEP:
        return Asked(width, memory[:_ASKED_BYTES].ljust(_ASKED_BYTES, b"\0"), has_cuts=has_cuts)
    edits = [*takewhile(lambda rule: rule[0] <= _KEEP, request.rules)]
    scale = 1.0
    for action, amount, _, _ in request.rules[len(edits) :]:
        if action != _SCALE:
            break
        scale *= amount
    plain = REQUEST.pack(request.head, request.scale, 0, 0, 0, 0, 0)
    key, count = request.branch_key, len(request.rules) - len(edits)
    after = REQUEST.pack(request.head, scale, 0, count, key or 0, key is not None, 0)
    after += memory[REQUEST.size + 8 * line_layout.RULE.value * len(edits) :]
    return Asked(
        width,
        plain.ljust(_ASKED_BYTES, b"\0"),
        after[:_ASKED_BYTES].ljust(_ASKED_BYTES, b"\0"),
        _pack_edits(edits, width),
        scale,
        has_cuts,
    )


def _pack_edits(
    edits: Sequence[tuple[int, float, NDArray[Any] | None, NDArray[np.float64] | None]], width: int
) -> bytes:
    """Returns edits as `copy_kernel` and `edit_kernel` read them."""
    kept: NDArray[np.bool_] | None = None
    moves: list[tuple[int, float, NDArray[np.int32], NDArray[np.float64] | None]] = []
    for action, amount, which, numbers in edits:
        if which is None or which.dtype != (np.bool_ if action == _KEEP else np.int32):
            raise RuleError(f"rule {action!r} has {which!r:.80}; ids or, for KEEP, a mask are expected")
        if action == _KEEP:
            if len(which) != width:
                raise RuleError(f"a mask of {len(which)} tokens does not fit a row of {width} logits")
            kept = which if kept is None else kept & which
        elif len(which):
            # As unsigned numbers, negative ones are larger than any width.
            if which.view(np.uint32).max() >= width:
                raise RuleError(f"rule {action!r} has ids that do not fit a row of {width} logits")
            moves.append((action, amount, which, numbers))
    at: int = line_layout.FIRST_EDIT.value + line_layout.EDIT.value * len(moves)
    header, arrays = bytearray(), list[bytes]()

    def place(data: bytes) -> int:
        nonlocal at
        begins = at
        arrays.append(data.ljust(-(-len(data) // 8) * 8, b"\0"))
        at += len(arrays[-1]) // 8
        return begins

    header += pack(
        "qq", 0 if kept is None else place(np.packbits(kept, bitorder="little").tobytes()), len(moves)
    )
    for action, amount, ids, numbers in moves:
        begins = place(ids.tobytes())
        factors = 0 if numbers is None else place(numbers.tobytes())
        header += pack("qqdqq", action, len(ids), amount, begins, factors)
    return b"".join((header, *arrays))


def pack_lines(lines: Sequence[Line], asked: Sequence[Asked], rows: int) -> tuple[NDArray[np.int64], bytes]:
    """Returns lines as the kernels read them, those about rows after their edits last, and the edits."""
    places = [row for _, row, _ in lines]
    if min(places) < 0 or max(places) >= rows:
        raise IndexError(f"rows {min(places)} to {max(places)} of {rows} are asked for")
    count, after = len(lines), [number for number, each in enumerate(asked) if each.edited is not None]
    requests = [each.plain for each in asked] + [asked[number].edited or b"" for number in after]
    packed = np.empty((len(requests), line_layout.LINE.value), np.int64)
    packed[:, line_layout.HEAD.value : line_layout.OF.value] = np.frombuffer(
        b"".join(requests), np.int64
    ).reshape(len(requests), -1)
    packed[:count, line_layout.ROW.value] = places
    packed[:count, line_layout.POSITION.value] = [position for _, _, position in lines]
    packed[:count, line_layout.OF.value] = range(count)
    if not after:
        return packed, b""
    edits = [asked[number].edits for number in after]
    sizes = np.array([len(each) // 8 for each in edits])
    packed[after, line_layout.OF.value] = -1
    packed[count:, line_layout.OF.value] = after
    packed[count:, line_layout.ROW.value] = range(len(after))
    packed[count:, line_layout.POSITION.value] = packed[after, line_layout.POSITION.value]
    packed[count:, line_layout.SOURCE.value] = packed[after, line_layout.ROW.value]
    packed[count:, line_layout.EDITS.value] = packed.size + np.cumsum(sizes) - sizes
    return packed, b"".join(edits)
