"""Records the calls of one forward pass as a program for the C library.

A `NativeValue` stands for an array that does not exist yet: [rows, width], for whatever number of rows a
batch will have. When the pass has been recorded, values are assigned to buffers (`ops/graph.py`). An op gets
a barrier before it exactly if it reads or writes a buffer that an op since the last barrier has written, or
writes one that such an op has read. The program then runs for any batch.
"""

from __future__ import annotations

from collections import Counter
from ctypes import Structure, pointer
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from glassloop.ops.graph import Use, plan_buffers
from glassloop.ops.native.library import BLOCK, OP_KINDS, Matrix, Op

# Ops that can quantize their own output while it is in the processor's cache.
_CAN_QUANTIZE = {"norm", "activate", "add", "scale", "softcap", "attend", "weigh", "experts_inner"}
# Those of them that can skip writing it as floats if it is only read quantized.
_CAN_SKIP_FLOATS = {"norm", "activate", "add", "scale", "softcap", "experts_inner"}
_CACHE = -2  # stands for the cache among the buffers that an op reads and writes


class NativeValue(NamedTuple):
    id: int
    width: int
    wanted: bool  # has the wanted rows only
    heads: int = 1


@dataclass
class NativeCall:
    kind: str
    out: NativeValue | None
    a: NativeValue | None = None
    b: NativeValue | None = None
    quantize: int = 0  # 1: the output is also quantized, for linears; 2: finely, for the head
    reads_quantized: bool = False  # it reads `a` quantized alone, not as floats
    settings: dict[str, Any] = field(default_factory=dict)


class Room(NamedTuple):
    """What a buffer of the program needs for each row."""

    width: int
    wanted: bool
    quantized: int  # as Call.quantize


class NativeRecorder:
    def __init__(self) -> None:
        self.calls: list[NativeCall] = []
        self._values = 0
        self._makers: dict[int, NativeCall] = {}
        self._quantized: dict[int, int] = {}
        self.is_recurrent = False  # whether an op needs slots
        self.inputs: list[NativeValue] = []  # values that are written before the program runs

    def given(self, width: int) -> NativeValue:
        """Returns a value that the caller of the program provides, for all rows. Ops read it as floats
        only."""
        self.inputs.append(NativeValue(self._values, width, False))
        self._values += 1
        return self.inputs[-1]

    def call(
        self,
        kind: str,
        width: int,
        a: NativeValue | None = None,
        b: NativeValue | None = None,
        wanted: bool | None = None,
        reads_quantized: bool = False,
        **settings: Any,
    ) -> NativeValue:
        """Records an op and returns its output."""
        out = NativeValue(self._values, width, a.wanted if wanted is None and a is not None else bool(wanted))
        self._values += 1
        self._makers[out.id] = NativeCall(kind, out, a, b, 0, reads_quantized, settings)
        self.calls.append(self._makers[out.id])
        return out

    def effect(self, kind: str, a: NativeValue, b: NativeValue | None = None, **settings: Any) -> None:
        """Records an op that has no output."""
        self.calls.append(NativeCall(kind, None, a, b, settings=settings))

    def want_quantized(self, value: NativeValue, columns: int, fine: bool) -> None:
        """Notes that a linear reads this value quantized. The op that makes the value quantizes it if its
        units of work are whole blocks; else an op for it is added."""
        how = 2 if fine else 1
        if value.id in self._quantized:
            assert self._quantized[value.id] == how, "one value is not quantized in two ways"
            return
        assert value not in self.inputs, "a given value is read as floats"
        self._quantized[value.id] = how
        maker = self._makers[value.id]
        if maker.kind in _CAN_QUANTIZE and (maker.kind != "attend" or columns % BLOCK == 0):
            maker.quantize = how
        else:
            self.calls.append(NativeCall("quantize", None, value, quantize=how, reads_quantized=True))

    def finish(self, results: list[NativeValue]) -> tuple[list[Structure], list[Room], list[int], list[int]]:
        """Returns the ops, the buffers that they need, and the buffers of the results and of the inputs."""
        self._add_in_linears()
        handed_out = {result.id for result in results}
        assert all(result.wanted for result in results), "a result has the wanted rows"
        as_floats = set(handed_out)
        for call in self.calls:
            read_as_floats = (call.b,) if call.reads_quantized else (call.a, call.b)
            as_floats |= {value.id for value in read_as_floats if value is not None}
        homes, rooms = self._plan(handed_out)
        ops, written, read = [], set[int](), set[int]()
        for call in self.calls:
            reads = {homes[value.id] for value in (call.a, call.b) if value is not None}
            writes = {homes[call.out.id]} if call.out is not None else set()
            if call.kind == "attend":
                reads.add(_CACHE)
            elif call.kind == "keep":
                writes.add(_CACHE)
            elif call.kind == "quantize":
                writes |= reads
            wait = bool(reads & written or writes & (written | read))
            if wait:
                written, read = set(), set()
            written |= writes
            read |= reads
            op = _op(call, homes, wait)
            op.only_quantized = bool(
                call.quantize
                and call.kind in _CAN_SKIP_FLOATS
                and call.out is not None
                and call.out.id not in as_floats
            )
            ops.append(op)
        inputs = [homes[value.id] for value in self.inputs]
        return ops, rooms, [homes[result.id] for result in results], inputs

    def _add_in_linears(self) -> None:
        """Merges x + linear(h), if nothing else reads linear(h), into a linear with x as `b`."""
        uses = Counter(value.id for call in self.calls for value in (call.a, call.b) if value is not None)
        kept: list[NativeCall] = []
        for call in self.calls:
            last = kept[-1] if kept else None
            if (
                call.kind == "add"
                and not call.quantize
                and last is not None
                and last.kind == "linear"
                and last.b is None
                and last.out == call.b
                and call.b is not None
                and uses[call.b.id] == 1
            ):
                last.out, last.b = call.out, call.a
            else:
                kept.append(call)
        self.calls = kept

    def _plan(self, results: set[int]) -> tuple[dict[int, int], list[Room]]:
        """Assigns a buffer to each value."""
        uses = []
        for call in self.calls:
            out, room = call.out, Room(0, False, 0)
            if out is not None:
                room = Room(out.width, out.wanted, self._quantized.get(out.id, 0))
            # The second matrix of adapters adds to its input: rows without an adapter stay as they are.
            over = call.b.id if call.kind == "up" and call.b is not None else None
            reads = [value.id for value in (call.a, call.b) if value is not None]
            uses.append(Use(reads, None if out is None else out.id, room, over))
        inputs = [(value.id, Room(value.width, value.wanted, 0)) for value in self.inputs]
        return plan_buffers(uses, results, inputs)


def _op(call: NativeCall, homes: dict[int, int], wait: bool) -> Structure:
    shape = call.out if call.out is not None else call.a
    assert shape is not None
    op = Op(
        kind=OP_KINDS.index(call.kind),
        wait=wait,
        wanted=shape.wanted,
        quantize=call.quantize,
        width=shape.width,
        a=-1 if call.a is None else homes[call.a.id],
        b=-1 if call.b is None else homes[call.b.id],
        out=-1 if call.out is None else homes[call.out.id],
    )
    for name, value in call.settings.items():
        setattr(op, name, pointer(value) if isinstance(value, Matrix) else value)
    return op
