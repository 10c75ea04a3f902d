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
    c_int8,
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
from glassloop.ops.routing import MOST_CHOSEN, MOST_EXPERTS, MOST_GROUPS

BLOCK = 32  # values that share an activation scale
BLOCK_BYTES = 48  # gl_block: a quantized block of a row, its codes with scale and sums
# Developers may name another build of the library; the sanitizers' test does.
FILE = Path(os.environ.get("GLASSLOOP_LIBRARY") or Path(__file__).with_name("libglassloop.so"))

# All that there are kernels for; a machine has some of them.
INSTRUCTION_SETS = ("portable", "avx2", "avxvnni", "avx512", "neon", "dotprod", "i8mm")

# The enums of native.h and choosing.h, each counted from 0 but for the failures.
OP_KINDS = (
    *("embed", "norm", "linear", "down", "up", "angles", "rotate", "keep", "attend"),
    *("activate", "add", "scale", "softcap", "take"),
    *("route", "group", "weigh", "experts_inner", "experts_outer", "quantize", "conv"),
)
PACKINGS = ("f32", "f16", "bf16", "q4", "q8", "table", "q2")
SCALES = ("scale_f16", "scale_bf16", "scale_steps", "scale_zeros")
ACTIVATIONS = ("silu", "gelu_tanh", "gelu", "relu", "sigmoid", "relu2", "none")
SCORES = ("softmax", "logistic", "chosen", "mixer")  # in the order of `Scores` of ops/routing.py
IDS = ("tokens", "positions", "adapters")
LIMITS = ("products", "scaled", "with_minimum", "words")
SELECTIONS = ("nothing", "ids", "mask")
FAILURES = {"none_left": -1, "wrong_rule": -2, "no_memory": -3, "needs_row": -4}
# How many tokens are stored of what another device has found in a row.
MOST_HIGH, MOST_OTHERS, MOST_RACERS = 256, 64, 64
# Drafts of a chain, and the classes of their margins.
MOST_DRAFTS, MARGINS = 8, 8
# What a `Fault` reports, and its message.
FAULTS = {
    "wrong_token": "row {} has the token id {}",
    "wrong_position": "row {} has the position {}",
    "wrong_page": "span {} has the page {}",
    "wrong_wanted": "row {1} is wanted",
    "wrong_span": "span {} has rows or positions that are not its own",
    "wrong_adapter": "row {} has the adapter {}",
    "wrong_reach": "row {} has the reach {}",
    "wrong_state": "span {} begins at position {} and lacks a state or row of its recurrent layers",
}


STRUCTURES: dict[str, type[Structure]] = {}  # by their names in C


def _structure(name: str, *fields: tuple[Any, str]) -> type[Structure]:
    """Defines a structure by the types of its fields, in order, and the names of the fields of each type."""
    pairs = [(field, kind) for kind, names in fields for field in names.split()]
    STRUCTURES[name] = type(name, (Structure,), {"_fields_": pairs})
    return STRUCTURES[name]


Matrix = _structure(
    "gl_matrix",
    (c_void_p, "data"),
    (c_int64, "out in tile_bytes"),
    (c_int32, "packing has_minimum scale half_groups"),
    (c_float, "factor"),
    (c_int8 * 16, "table"),
)
PackJob = _structure(
    "gl_pack_job",
    (c_void_p, "raw data"),
    (POINTER(Matrix), "matrix"),
    (c_int64, "rows row_bytes"),
    (c_void_p, "grid"),
    (c_int32, "format next"),
)
Op = _structure(
    "gl_op",
    (c_int32, "kind wait wanted quantize width a b out i0 i1 i2 group only_quantized"),
    (c_float, "f0 f1"),
    (POINTER(Matrix), "matrix"),
    (c_void_p, "weight bias adapters routing experts"),
)
Routing = _structure(
    "gl_routing",
    (c_int32, "experts chosen scores normalized groups chosen_groups"),
    (c_float, "epsilon factor closeness"),
    (c_void_p, "choice_bias factors"),
)
Experts = _structure(
    "gl_experts",
    (c_void_p, "gate up down gate_bias up_bias down_bias"),
    (c_int32, "count chosen ffn weigh_input activation"),
    (c_float, "limit slope shift"),
)
Adapter = _structure("gl_adapter", (c_void_p, "down up"), (c_float, "scale"))
Buffer = _structure("gl_buffer", (c_void_p, "values quantized"))
Cache = _structure(
    "gl_cache", (c_void_p, "keys values"), (c_int32, "layers kv_heads head_dim padded_head_dim pages")
)
Program = _structure(
    "gl_program",
    (POINTER(Op), "ops"),
    (c_int32, "count groups"),
    (POINTER(Buffer), "buffers"),
    (c_void_p, "batch caches states times"),
)
States = _structure(
    "gl_states", (c_void_p, "states rows"), (c_int64, "state row"), (c_int32, "layers state_count row_count")
)
Times = _structure("gl_times", (c_int64, "working waiting units"))
Batch = _structure(
    "gl_batch",
    (c_int32, "rows wanted_rows spans"),
    (c_void_p, "tokens positions wanted span adapters reach"),
)
Span = _structure("gl_span", (c_int32, "first_row rows first_slot stride"), (c_void_p, "pages"))
Fault = _structure("gl_fault", (c_int32, "wrong at found limit"))
Chain = _structure(
    "gl_chain",
    (c_uint64, "branch_key"),
    (c_int64, "position"),
    (c_double, "scale"),
    (c_int64, "with_luck most"),
    (c_double * MARGINS, "chance"),
    (c_double * MOST_DRAFTS, "keep next"),
    (c_int64, "drawn kept"),
    (c_int32 * MOST_DRAFTS, "tokens margins"),
)
Rule = _structure(
    "gl_rule",
    (c_int32, "action selection"),
    (c_int64, "count"),
    (c_double, "amount"),
    (c_void_p, "which numbers"),
)
Request = _structure(
    "gl_request",
    (c_int64, "head"),
    (c_double, "scale"),
    (c_void_p, "rules"),
    (c_int64, "count"),
    (c_uint64, "branch_key"),
    (c_int64, "with_luck alternatives"),
)
Line = _structure("gl_line", (c_void_p, "request logits"), (c_int64, "position"))
Found = _structure(
    "gl_found",
    (c_int32, "count others winner rank"),
    (c_float, "most least"),
    (c_double, "bound"),
    (c_float, "own"),
    (c_int32, "unused"),
)
Cut = _structure(
    "gl_cut",
    (c_int32, "valid listed complete count before first last"),
    (c_float, "highest lowest"),
    (c_int32, "unused"),
    (c_double, "sum"),
    (c_int32 * MOST_RACERS, "ids"),
    (c_float * MOST_RACERS, "logits"),
    (c_int32 * MOST_RACERS, "places"),
)
Remainder = _structure("gl_remainder", (c_int64, "complete listed"), (c_double, "scale log_sum_exp"))


def _packer(kind: type[Structure]) -> Struct:
    """Returns a `Struct` of the same layout, which packs several times as fast."""
    codes: dict[Any, str] = {c_int32: "i", c_int64: "q", c_uint64: "Q", c_double: "d", c_void_p: "P"}

    def code(field: Any) -> str:
        return codes[field] if field in codes else f"{field._length_}{codes[field._type_]}"

    made = Struct("".join(code(field[1]) for field in kind._fields_))
    assert made.size == sizeof(kind)
    return made


BATCH, SPAN, RULE, REQUEST = map(_packer, (Batch, Span, Rule, Request))
REMAINDER, CHAIN = map(_packer, (Remainder, Chain))


def available() -> bool:
    return FILE.exists()


_ARGUMENTS: dict[str, tuple[Any, list[Any]]] = {  # what a function returns, and what it takes
    "gl_constants": (c_void_p, [POINTER(c_int64)]),
    "gl_select_kernels": (c_int, [c_char_p]),
    "gl_name": (c_char_p, []),
    "gl_lanes": (c_int, []),
    "gl_set_threads": (c_int, [c_int]),
    "gl_pack_size": (c_int64, [POINTER(Matrix)]),
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
    "gl_exp_each": (None, [c_void_p, c_int64, c_void_p]),
    "gl_luck_of": (None, [c_uint64, c_void_p, c_int64, c_void_p]),
    "gl_choose_rows": (c_int, [c_void_p, c_int64, c_int64, c_void_p, c_int64]),
    "gl_choose_found": (
        c_int,
        [*(c_void_p, c_int64, c_int64, c_void_p, c_int64, c_int64, c_void_p, c_void_p, c_void_p, c_int64)],
    ),
    "gl_found_bytes": (c_int64, [c_int64]),
    "gl_survivors": (
        c_int64,
        [c_void_p, c_void_p, c_int64, c_int64, c_void_p, c_void_p, c_double, c_int64, *[c_void_p] * 4],
    ),
    "gl_multiply": (c_int64, [c_int64, c_int64, c_int32]),
    "gl_read": (c_int64, [c_void_p, c_int64]),
    "gl_progress_bytes": (c_int64, [c_int32]),
    "gl_check": (c_int, [POINTER(Program), POINTER(Fault)]),
    "gl_run": (c_int, [POINTER(Program), c_void_p, c_void_p, c_int64, POINTER(Fault)]),
    "gl_draft": (
        c_int,
        [
            *(POINTER(Program), c_void_p, c_void_p, c_int64, POINTER(Fault)),
            *(c_void_p, c_void_p, c_int64, c_void_p, c_void_p),
        ],
    ),
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
    found |= {"GL_MOST_HIGH": MOST_HIGH, "GL_MOST_OTHERS": MOST_OTHERS, "GL_MOST_RACERS": MOST_RACERS}
    found |= {"GL_MOST_DRAFTS": MOST_DRAFTS, "GL_MARGINS": MARGINS}
    for name, kind in STRUCTURES.items():
        found[name] = sizeof(kind)
        for field in kind._fields_:
            found[f"{name}.{field[0]}"] = getattr(kind, field[0]).offset
    found |= {"GL_MOST_EXPERTS": MOST_EXPERTS, "GL_MOST_CHOSEN": MOST_CHOSEN, "GL_MOST_GROUPS": MOST_GROUPS}
    for names in (
        OP_KINDS,
        PACKINGS,
        SCALES,
        ACTIVATIONS,
        SCORES,
        IDS,
        LIMITS,
        SELECTIONS,
        ("fine", *FAULTS),
    ):
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
