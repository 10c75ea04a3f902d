"""The sandbox from the inside: a script that gives up its rights and then runs a program that it is sent.

`sandbox.py` starts it as a child process (see `util/child.py`). Before the program runs, the process takes
limits on memory, CPU time and files, a Landlock rule set that leaves it only Python's own library to read, if
the kernel has that, and a seccomp filter that allows the system calls of plain computing and no others: no
process, no socket, no file that is opened for writing. It imports only the standard library.
"""

from __future__ import annotations

import ctypes
import io
import json
import os
import platform
import resource
import struct
import sys
from contextlib import redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glassloop.util.child_main import Parent

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_FILTER = 1, 38, 22, 2
_SIGKILL, _EPERM = 9, 1

# ── the seccomp filter ─────────────────────────────────────────────────────────────────────────────────────

# System calls of Linux on x86-64.
_ALLOWED = (
    *(0, 1, 3, 4, 5, 6, 7, 8),  # read write close stat fstat lstat poll lseek
    *(9, 10, 11, 12, 25, 28),  # mmap mprotect munmap brk mremap madvise
    *(13, 14, 15, 131),  # rt_sigaction rt_sigprocmask rt_sigreturn sigaltstack
    *(
        17,
        19,
        20,
        21,
        23,
        24,
        32,
        33,
        35,
    ),  # pread64 readv writev access select sched_yield dup dup2 nanosleep
    *(39, 60, 63, 79, 89, 96, 97, 98, 99, 100),  # getpid exit uname getcwd readlink gettimeofday … times
    *(
        102,
        104,
        107,
        108,
        110,
        111,
        158,
        186,
    ),  # getuid getgid geteuid getegid getppid getpgrp arch_prctl gettid
    *(201, 202, 204, 217, 218, 228, 229, 230, 231),  # time futex sched_getaffinity getdents64 … exit_group
    *(262, 267, 269, 270, 271, 273),  # newfstatat readlinkat faccessat pselect6 ppoll set_robust_list
    *(318, 324, 332, 334, 439),  # getrandom membarrier statx rseq faccessat2
)
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | 0x400000  # O_TMPFILE
# (call, argument): allowed if the argument has none of these bits, or is one of these values.
_WITHOUT_BITS = {(2, 1): _WRITING, (257, 2): _WRITING}  # open openat
_WITH_VALUES = {
    (16, 1): (0x5401, 0x5413, 0x5451),  # ioctl: TCGETS TIOCGWINSZ FIOCLEX
    (72, 1): (0, 1, 2, 3, 1030),  # fcntl: duplicate a descriptor, read and set its flag, read its mode
    (302, 2): (0,),  # prlimit64 that asks and does not set
}
_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050000 | _EPERM, 0x80000000
_X86_64 = 0xC000003E


def _filter() -> list[tuple[int, int, int, int]]:
    """Returns the filter as classic BPF: (code, jump if true, jump if false, operand)."""
    code = [
        (_LOAD, 0, 0, 4),  # the architecture
        (_EQUAL, 1, 0, _X86_64),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, 0),  # the number of the call
    ]
    for (call, argument), bits in _WITHOUT_BITS.items():
        code += [
            (_EQUAL, 0, 4, call),
            (_LOAD, 0, 0, 16 + 8 * argument),
            (_ANY_BIT, 0, 1, bits),
            (_RETURN, 0, 0, _REFUSE),
            (_RETURN, 0, 0, _ALLOW),
        ]
    for (call, argument), values in _WITH_VALUES.items():
        # Both halves of the argument are compared: the upper one must be zero.
        code.append((_EQUAL, 0, 5 + len(values), call))
        code += [(_LOAD, 0, 0, 20 + 8 * argument), (_EQUAL, 0, 1 + len(values), 0)]
        code.append((_LOAD, 0, 0, 16 + 8 * argument))
        code += [(_EQUAL, len(values) - place, 0, value) for place, value in enumerate(values)]
        code += [(_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW)]
    code += [(_EQUAL, len(_ALLOWED) - place, 0, call) for place, call in enumerate(_ALLOWED)]
    return [*code, (_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW)]


def _install_filter(libc: Any) -> None:
    code = _filter()
    data = b"".join(struct.pack("<HBBI", *each) for each in code)
    buffer = ctypes.create_string_buffer(data, len(data))
    program = struct.pack("<HxxxxxxQ", len(code), ctypes.addressof(buffer))
    # The filter holds for threads that are started later, and there are none.
    pointer = ctypes.create_string_buffer(program, len(program))
    if libc.prctl(_PR_SET_SECCOMP, _SECCOMP_FILTER, ctypes.addressof(pointer), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the kernel refuses a seccomp filter")


# ── files ──────────────────────────────────────────────────────────────────────────────────────────────────

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ALL_OF_FILES = (1 << 13) - 1  # what the first version of Landlock can handle
_READ = 1 << 2 | 1 << 3  # files and folders


def _leave_only_the_library(libc: Any) -> None:
    """Leaves Python's own library as the only files that can be opened. A kernel without Landlock ignores it:
    the program can then read what its user can, and still write nothing."""
    rules = ctypes.create_string_buffer(struct.pack("<Q", _ALL_OF_FILES), 8)
    ruleset = libc.syscall(_CREATE_RULESET, rules, 8, 0)
    if ruleset < 0:
        return
    folders = {*sys.path, sys.base_prefix + "/lib", "/usr/lib", "/lib", "/lib64", "/usr/share/zoneinfo"}
    for folder in sorted(folders | {"/dev/null", "/dev/urandom", "/etc/localtime"}):
        try:
            place = os.open(folder, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        allowed = _READ if os.path.isdir(folder) else 1 << 2  # noqa: PTH112
        rule = ctypes.create_string_buffer(struct.pack("<Qi", allowed, place), 12)
        libc.syscall(_ADD_RULE, ruleset, 1, rule, 0)
        os.close(place)
    libc.syscall(_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


# ── running ────────────────────────────────────────────────────────────────────────────────────────────────


def _enclose(memory: int, seconds: float) -> None:
    """Gives up everything but computing. Raises OSError if the kernel does not allow to."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise OSError(0, f"it exists for Linux on x86-64, and this is {sys.platform} on {platform.machine()}")
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)
    libc.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
    # The parent ends a slow program itself. A virtual machine may count time as the processor's in which it
    # stood still, so the limit of the kernel is generous.
    cpu = int(seconds) + 30
    for limit, most in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CPU, cpu),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 32),
        (resource.RLIMIT_NPROC, 0),
    ):
        resource.setrlimit(limit, (most, most))
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the kernel refuses no_new_privs")
    _leave_only_the_library(libc)
    _install_filter(libc)


class _Output(io.StringIO):
    """What the program prints, up to a limit; the rest is dropped."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._left = most

    def write(self, text: str) -> int:
        super().write(text[: self._left])
        self._left = max(0, self._left - len(text))
        return len(text)


def _run(task: dict[str, Any]) -> dict[str, Any]:
    """Returns the results of a task's parts: True, False, a number, or a text that says what went wrong."""
    space: dict[str, Any] = {"__name__": "__program__"}
    results: list[Any] = []
    try:
        exec(compile(task["program"], "<program>", "exec"), space)
    except BaseException as error:
        return {"results": [], "failed": _told(error)}
    for source in task["parts"]:
        try:
            if task["call"]:
                said = space[source](task["text"])
                results.append(said if isinstance(said, (bool, int, float)) else bool(said))
            else:
                exec(compile(source, "<test>", "exec"), space)
                results.append(True)
        except BaseException as error:
            results.append(_told(error))
    return {"results": results, "failed": None}


def _told(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:300].rstrip(": ")
    except BaseException:
        return type(error).__name__


def serve(parent: Parent) -> None:
    def answer(value: object) -> None:
        parent.send(json.dumps(value).encode("utf-8", "surrogatepass"))

    task = json.loads(parent.receive())
    import decimal  # noqa: F401  # imported before the filter, as what programs use most
    import fractions  # noqa: F401
    import random  # noqa: F401
    import re  # noqa: F401

    parent.answers = os.dup(1)  # what the program itself prints must not get there
    nothing = os.open(os.devnull, os.O_WRONLY)
    for place in (0, 1):
        os.dup2(nothing, place)
    try:
        _enclose(task["memory"], task["seconds"])
    except (OSError, ValueError) as error:
        answer({"refused": str(getattr(error, "strerror", None) or error)})
        return
    answer({"ready": True})
    printed = _Output(task["output"])
    with redirect_stdout(printed), redirect_stderr(printed):
        outcome = _run(task)
    answer({**outcome, "printed": printed.getvalue()})
    os._exit(0)
