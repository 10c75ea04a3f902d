"""The C library: found beside this file, loaded through ctypes, its structures spelled out for Python.

`native.h` says what they mean. ctypes releases the GIL around every call.
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

BLOCK = 32
PAGE = 32
# Another build of the library, for those who work on it (the sanitizers' test does).
FILE = Path(os.environ.get("GLASSLOOP_LIBRARY") or Path(__file__).with_name("libglassloop.so"))


class Matrix(Structure):
    _fields_ = (
        ("data", c_void_p),
        ("out", c_int64),
        ("into", c_int64),
        ("tile_bytes", c_int64),
        ("packing", c_int32),
        ("has_minimum", c_int32),
        ("wide_scale", c_int32),
        ("half_groups", c_int32),
    )


class Packing(Structure):
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


class Fault(Structure):
    _fields_ = tuple((name, c_int32) for name in ("wrong", "at", "found", "limit"))


# gl_batch and gl_span of native.h
BATCH = Struct("3i4x4P")
SPAN = Struct("4iP")


def available() -> bool:
    return FILE.exists()


@cache
def library() -> ctypes.CDLL:
    """The library, loaded once, with its instruction set and threads chosen."""
    lib = ctypes.CDLL(str(FILE))
    lib.gl_choose.argtypes = [c_char_p]
    lib.gl_name.restype = c_char_p
    lib.gl_set_threads.argtypes = [c_int]
    lib.gl_pack_size.argtypes = [c_int, c_int64, c_int64, POINTER(Matrix)]
    lib.gl_pack_size.restype = c_int64
    lib.gl_pack.argtypes = [POINTER(Packing), c_int64]
    lib.gl_pack.restype = None
    lib.gl_join_strings.argtypes = [c_void_p, c_int64, c_int64, c_void_p]
    lib.gl_join_strings.restype = c_int64
    lib.gl_summarize.argtypes = [c_void_p, c_int64, c_int64, c_void_p, c_void_p, c_void_p]
    lib.gl_summarize.restype = c_int
    lib.gl_highest.argtypes = [c_void_p, c_int64, c_int64, c_void_p, c_void_p]
    lib.gl_highest.restype = c_int
    lib.gl_log_sum_exp.argtypes = [c_void_p, c_int64, c_double]
    lib.gl_log_sum_exp.restype = c_double
    lib.gl_rank_of.argtypes = [c_void_p, c_int64, c_int64]
    lib.gl_rank_of.restype = c_int64
    lib.gl_race.argtypes = [
        c_uint64,
        c_void_p,
        c_void_p,
        c_int64,
        c_void_p,
        c_int64,
        c_double,
        *[c_void_p] * 3,
    ]
    lib.gl_race.restype = c_int
    lib.gl_luck_of.argtypes = [c_uint64, c_void_p, c_int64, c_void_p]
    lib.gl_luck_of.restype = None
    lib.gl_choose_rows.argtypes = [c_void_p, c_int64, c_int64, c_void_p, c_int64]
    lib.gl_choose_rows.restype = c_int
    lib.gl_left.argtypes = [
        *[c_void_p] * 2,
        *[c_int64] * 2,
        *[c_void_p] * 2,
        c_double,
        c_int64,
        *[c_void_p] * 4,
    ]
    lib.gl_left.restype = c_int64
    lib.gl_progress_bytes.argtypes = [c_int32]
    lib.gl_progress_bytes.restype = c_int64
    lib.gl_run.argtypes = [POINTER(Program), c_void_p, c_void_p, c_int64, POINTER(Fault)]
    lib.gl_run.restype = c_int
    _check_sizes(lib)
    wanted = os.environ.get("GLASSLOOP_ISA", "")
    if not lib.gl_choose(wanted.encode()):
        raise GlassloopError(f"GLASSLOOP_ISA is {wanted!r}, which this machine does not have")
    return lib


def _check_sizes(lib: ctypes.CDLL) -> None:
    """Raises if C and Python do not mean the same structures: a library of another version."""
    ours = [sizeof(kind) for kind in (Matrix, Op, Buffer, Cache, Program)]
    ours += [BATCH.size, SPAN.size, sizeof(Fault)]
    theirs = (c_int64 * len(ours))()
    if hasattr(lib, "gl_sizes"):
        lib.gl_sizes(theirs)
    if list(theirs) != ours:
        raise GlassloopError(f"{FILE} was built from another version of glassloop; build it again")


def address(array: NDArray[Any] | bytearray) -> int:
    """The address of the array's first element. The array must be contiguous."""
    try:
        return addressof(c_char.from_buffer(array))  # type: ignore[arg-type]  # a third of the time of the other
    except (TypeError, ValueError):  # not to be written to, not in one piece, or empty
        return int(array.ctypes.data)  # type: ignore[union-attr]


def wanted_threads() -> int:
    """GLASSLOOP_THREADS, or one thread for each physical core that this process may use."""
    given = os.environ.get("GLASSLOOP_THREADS")
    if given is None:
        return physical_cores()
    if not given.isdecimal() or not 1 <= int(given) <= 256:
        raise GlassloopError(f"GLASSLOOP_THREADS is {given!r}; a whole number from 1 to 256 is expected")
    return int(given)


def physical_cores() -> int:
    """Two hardware threads of one core share its arithmetic: a second one would only wait for the first."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores = set()
    for cpu in usable:
        try:
            siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text()
        except OSError:
            siblings = str(cpu)
        cores.add(siblings.strip())
    return max(len(cores), 1)
