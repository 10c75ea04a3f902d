"""The C library: found beside this file, loaded through ctypes, with the structures that it shares with
Python.

`native.h` and `choosing.h` say what they mean. Every size, offset and number that both sides have is compared
when the library is loaded. ctypes releases the GIL around every call.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import (
    POINTER,
    Structure,
    addressof,
    c_char,
    c_char_p,
    c_double,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_uint64,
    c_void_p,
    sizeof,
)
from functools import cache
from pathlib import Path
from struct import Struct
from typing import Any

from numpy.typing import NDArray

from glassloop.errors import GlassloopError
from glassloop.ops.batch import PAGE

BLOCK = 32  # values that share an activation scale
BLOCK_BYTES = 16  # gl_block: what a quantized row has beside the codes of each block
# Developers may name another build of the library; the sanitizers' test does.
FILE = Path(os.environ.get("GLASSLOOP_LIBRARY") or Path(__file__).with_name("libglassloop.so"))

# The enums of native.h and choosing.h, each counted from 0 but for the failures.
OP_KINDS = (
    *("embed", "norm", "linear", "angles", "rotate", "keep", "attend"),
    *("activate", "add", "scale", "softcap", "take", "quantize"),
)
ACTIVATIONS = ("silu", "gelu_tanh", "gelu", "relu")
IDS = ("tokens", "positions")
SELECTIONS = ("nothing", "ids", "mask")
FAILURES = {"none_left": -1, "wrong_rule": -2, "no_memory": -3}
# What a `Fault` reports, and its message.
FAULTS = {
    "wrong_token": "row {} has the token id {}",
    "wrong_position": "row {} has the position {}",
    "wrong_page": "span {} has the page {}",
    "wrong_wanted": "row {1} is wanted",
    "wrong_span": "span {} has rows or positions that are not its own",
}


class Matrix(Structure):
    _fields_ = (
        ("data", c_void_p),
        *((name, c_int64) for name in ("out", "in", "tile_bytes")),
        *((name, c_int32) for name in ("packing", "has_minimum", "wide_scale", "half_groups")),
    )


class PackJob(Structure):
    _fields_ = (
        ("raw", c_void_p),
        ("data", c_void_p),
        ("matrix", POINTER(Matrix)),
        ("format", c_int32),
        ("next", c_int32),
    )


class Op(Structure):
    _fields_ = (
        *((name, c_int32) for name in ("kind", "wait", "wanted", "quantize", "width", "a", "b", "out")),
        *((name, c_int32) for name in ("i0", "i1", "i2", "group", "only_quantized")),
        ("f0", c_float),
        ("f1", c_float),
        ("matrix", POINTER(Matrix)),
        ("weight", c_void_p),
        ("bias", c_void_p),
    )


class Buffer(Structure):
    _fields_ = (("values", c_void_p), ("quantized", c_void_p))


class Cache(Structure):
    _fields_ = (
        ("keys", c_void_p),
        ("values", c_void_p),
        *((name, c_int32) for name in ("layers", "kv_heads", "head_dim", "padded_head_dim", "pages")),
    )


class Program(Structure):
    _fields_ = (
        ("ops", POINTER(Op)),
        ("count", c_int32),
        ("groups", c_int32),
        ("buffers", POINTER(Buffer)),
        ("batch", c_void_p),
        ("caches", c_void_p),
    )


class Batch(Structure):
    _fields_ = (
        *((name, c_int32) for name in ("rows", "wanted_rows", "spans")),
        *((name, c_void_p) for name in ("tokens", "positions", "wanted", "span")),
    )


class Span(Structure):
    _fields_ = (
        *((name, c_int32) for name in ("first_row", "rows", "first_position", "stride")),
        ("pages", c_void_p),
    )


class Fault(Structure):
    _fields_ = tuple((name, c_int32) for name in ("wrong", "at", "found", "limit"))


class Rule(Structure):
    _fields_ = (
        ("action", c_int32),
        ("selection", c_int32),
        ("count", c_int64),
        ("amount", c_double),
        ("which", c_void_p),
        ("numbers", c_void_p),
    )


class Request(Structure):
    _fields_ = (
        ("head", c_int64),
        ("scale", c_double),
        ("rules", c_void_p),
        ("count", c_int64),
        ("branch_key", c_uint64),
        ("with_luck", c_int64),
        ("alternatives", c_int64),
    )


class Line(Structure):
    _fields_ = (("request", c_void_p), ("logits", c_void_p), ("position", c_int64))


class Remainder(Structure):
    _fields_ = (
        ("complete", c_int64),
        ("listed", c_int64),
        ("scale", c_double),
        ("log_sum_exp", c_double),
    )


def _packer(kind: type[Structure]) -> Struct:
    """Returns a `Struct` of the same layout: it packs several times as fast."""
    codes: dict[Any, str] = {
        c_int32: "i",
        c_int64: "q",
        c_uint64: "Q",
        c_double: "d",
        c_void_p: "P",
    }
    made = Struct("".join(codes[type] for _, type in kind._fields_))  # type: ignore[misc]
    assert made.size == sizeof(kind)
    return made


BATCH, SPAN, RULE, REQUEST, REMAINDER = map(_packer, (Batch, Span, Rule, Request, Remainder))


def available() -> bool:
    return FILE.exists()


_ARGUMENTS: dict[str, tuple[Any, list[Any]]] = {  # what a function returns, and what it takes
    "gl_constants": (c_void_p, [POINTER(c_int64)]),
    "gl_select_kernels": (c_int, [c_char_p]),
    "gl_name": (c_char_p, []),
    "gl_set_threads": (c_int, [c_int]),
    "gl_pack_size": (c_int64, [c_int, c_int64, c_int64, POINTER(Matrix)]),
    "gl_pack": (None, [POINTER(PackJob), c_int64]),
    "gl_join_strings": (c_int64, [c_void_p, c_int64, c_int64, c_void_p]),
    "gl_summarize": (c_int, [c_void_p, c_int64, c_int64, *[c_void_p] * 3]),
    "gl_highest": (c_int, [c_void_p, c_int64, c_int64, c_void_p, c_void_p]),
    "gl_log_sum_exp": (c_double, [c_void_p, c_int64, c_double]),
    "gl_rank_of": (c_int64, [c_void_p, c_int64, c_int64]),
    "gl_race": (
        c_int,
        [c_uint64, c_void_p, c_void_p, c_int64, c_void_p, c_int64, c_double, *[c_void_p] * 3],
    ),
    "gl_luck_of": (None, [c_uint64, c_void_p, c_int64, c_void_p]),
    "gl_choose_rows": (c_int, [c_void_p, c_int64, c_int64, c_void_p, c_int64]),
    "gl_survivors": (
        c_int64,
        [c_void_p, c_void_p, c_int64, c_int64, c_void_p, c_void_p, c_double, c_int64, *[c_void_p] * 4],
    ),
    "gl_progress_bytes": (c_int64, [c_int32]),
    "gl_run": (c_int, [POINTER(Program), c_void_p, c_void_p, c_int64, POINTER(Fault)]),
}


@cache
def library() -> ctypes.CDLL:
    """Returns the library, which is loaded and checked once, with its instruction set selected."""
    lib = ctypes.CDLL(str(FILE))
    try:
        for name, (returned, arguments) in _ARGUMENTS.items():
            function = getattr(lib, name)
            function.restype, function.argtypes = returned, arguments
    except AttributeError as error:
        raise _another_version(str(error)) from None
    check_layout(lib)
    wanted = os.environ.get("GLASSLOOP_ISA", "")
    if not lib.gl_select_kernels(wanted.encode()):
        raise GlassloopError(f"GLASSLOOP_ISA is {wanted!r}, which this machine does not have")
    return lib


# ── the layout: every size, offset and number that C and Python share, by name ─────────────────────────────


def check_layout(lib: ctypes.CDLL) -> None:
    """Raises if the library was compiled with other structures or numbers than those of this file."""
    ours = _layout()
    theirs = {name: value for name, value in constants(lib).items() if not _is_of_decoding(name)}
    for name in sorted(ours.keys() | theirs.keys()):
        if ours.get(name) != theirs.get(name):
            raise _another_version(f"{name} is {theirs.get(name)} there and {ours.get(name)} here")


def decoding_layout() -> dict[str, int]:
    """Returns what the library has of the record and the actions of rules, which `decode/` defines."""
    return {name: value for name, value in constants(library()).items() if _is_of_decoding(name)}


def constants(lib: ctypes.CDLL) -> dict[str, int]:
    """Returns the table of layout.c."""

    class Constant(Structure):
        _fields_ = (("name", c_char_p), ("value", c_int64))

    count = c_int64()
    start = lib.gl_constants(ctypes.byref(count))
    return {entry.name.decode(): entry.value for entry in (Constant * count.value).from_address(start)}


def _is_of_decoding(name: str) -> bool:
    return name.split(".")[0] in ("record", "alternative", "action")


def _layout() -> dict[str, int]:
    found = {"GL_BLOCK": BLOCK, "GL_PAGE": PAGE, "gl_block": BLOCK_BYTES}
    structures = {
        "gl_matrix": Matrix,
        "gl_pack_job": PackJob,
        "gl_op": Op,
        "gl_buffer": Buffer,
        "gl_cache": Cache,
        "gl_program": Program,
        "gl_batch": Batch,
        "gl_span": Span,
        "gl_fault": Fault,
        "gl_rule": Rule,
        "gl_request": Request,
        "gl_line": Line,
        "gl_remainder": Remainder,
    }
    for name, kind in structures.items():
        found[name] = sizeof(kind)
        for field in kind._fields_:
            found[f"{name}.{field[0]}"] = getattr(kind, field[0]).offset
    for names in (OP_KINDS, ACTIVATIONS, IDS, SELECTIONS, ("fine", *FAULTS)):
        found |= {f"GL_{name.upper()}": number for number, name in enumerate(names)}
    return found | {f"GL_{name.upper()}": number for name, number in FAILURES.items()}


def _another_version(what: str) -> GlassloopError:
    return GlassloopError(f"{FILE} was built from another version of glassloop; build it again ({what})")


# ── addresses and threads ──────────────────────────────────────────────────────────────────────────────────


def address(array: NDArray[Any] | bytearray) -> int:
    """Returns the address of the array's first element. The array must be contiguous."""
    try:
        return addressof(c_char.from_buffer(array))  # type: ignore[arg-type]  # a third of the time of the other
    except (TypeError, ValueError):  # read-only, not contiguous, or empty
        return int(array.ctypes.data)  # type: ignore[union-attr]


def wanted_threads() -> int:
    """Returns GLASSLOOP_THREADS, or one thread for each physical core that this process may use."""
    given = os.environ.get("GLASSLOOP_THREADS")
    if given is None:
        return physical_cores()
    if not given.isdecimal() or not 1 <= int(given) <= 256:
        raise GlassloopError(f"GLASSLOOP_THREADS is {given!r}; a whole number from 1 to 256 is expected")
    return int(given)


def physical_cores() -> int:
    """Returns how many cores this process may use. Two hardware threads of a core share its arithmetic units,
    so a second one would not make it faster."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores = set()
    for cpu in usable:
        try:
            siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text()
        except OSError:
            siblings = str(cpu)
        cores.add(siblings.strip())
    return max(len(cores), 1)
