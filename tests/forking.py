"""Starts `glassloop` commands as forks of a process that has imported everything. Most of what a short
command costs are its imports, and tests start hundreds of them.

`subprocess.Popen` becomes `Popen` of this file (conftest.py), which takes over commands that begin with
`python -m glassloop` and leaves all others alone, and those with an environment or options that a fork could
not follow. The forked process has the arguments, environment, folder and files that it was given, and ends as
any interpreter ends. GLASSLOOP_FORK=0 starts every command anew.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import io
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import termios
from importlib import import_module
from typing import Any

CAN_FORK = sys.platform.startswith("linux")
_COMMAND = [sys.executable, "-m", "glassloop"]
_IMPORTED = ("glassloop.cli.main", "glassloop.server.serve", "glassloop.cli.loading", "glassloop.cli.show")
_IMPORTED += ("uvicorn.loops.uvloop", "uvicorn.lifespan.off", "rich.table", "jinja2", "pydantic.v1")
# What is read when a command runs, not when a module is imported or the interpreter starts.
surroundings: dict[str, str] = {}  # the environment of the tests, before any of them has changed it
# Modules that the tests import set the last three.
_MAY_DIFFER = re.compile(
    r"GLASSLOOP_(?!LIBRARY$)|PYTEST_|(TMPDIR|TERM|COLUMNS|LINES|NO_COLOR|HOME|XDG_.*)$"
    r"|OPENBLAS_THREAD_TIMEOUT$|TORCHINDUCTOR_CACHE_DIR$|LITELLM_LOCAL_MODEL_COST_MAP$"
)


def own_terminal() -> None:
    """As `preexec_fn`: makes the terminal at standard input the process's own, so that Ctrl-C reaches it."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Popen(subprocess.Popen):
    """A process whose parent is the `_Parent` if it was forked; otherwise an ordinary one."""

    # Where the parent of a fork reports its status. A file number, not a socket object: the garbage collector
    # closes the sockets of a cycle before `__del__` has kept a process that still runs.
    _ended: int | None = None

    def _execute_child(
        self,
        args: Any,
        executable: Any,
        preexec_fn: Any,
        close_fds: bool,
        pass_fds: Any,
        cwd: Any,
        env: Any,
        startupinfo: Any,
        creationflags: Any,
        shell: bool,
        p2cread: int,
        p2cwrite: int,
        c2pread: int,
        c2pwrite: int,
        errread: int,
        errwrite: int,
        restore_signals: bool,
        *others: Any,
    ) -> None:
        pipes = (p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)
        *owners, start_new_session, process_group = others
        environment = dict(os.environ if env is None else env)
        if (
            not isinstance(args, list | tuple)
            or list(args[:3]) != _COMMAND
            or executable is not None
            or preexec_fn not in (None, own_terminal)
            or (close_fds, pass_fds, restore_signals) != (True, (), True)
            or (*owners, process_group) != (None, None, None, -1, -1)
            or not _Parent.can_fork(environment)
        ):
            before = (args, executable, preexec_fn, close_fds, pass_fds, cwd, env)
            system = (startupinfo, creationflags, shell)
            super()._execute_child(*before, *system, *pipes, restore_signals, *others)
            return
        told = {
            "arguments": [os.fsdecode(each) for each in args[3:]],
            "environment": environment,
            "folder": os.path.abspath(cwd or "."),  # noqa: PTH100
            "session": bool(start_new_session),
            "terminal": preexec_fn is not None,
        }
        given = (p2cread, c2pwrite, errwrite)
        files = [number if file == -1 else file for number, file in enumerate(given)]
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            _Parent.only().start(told, [*files, theirs.fileno()])
        self._ended = ours.detach()
        self.pid = int(os.read(self._ended, 16))
        self._child_created = True
        self._close_pipe_fds(*pipes)

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._ended is None:
            return super()._try_wait(wait_flags)
        if wait_flags & os.WNOHANG and not select.select([self._ended], [], [], 0)[0]:
            return 0, 0
        status = os.read(self._ended, 16)
        os.close(self._ended)
        return self.pid, int(status or signal.SIGKILL)  # nothing: the parent was killed

    def _internal_poll(self, *options: Any, **more: Any) -> int | None:
        if self._ended is None:
            return super()._internal_poll(*options, **more)
        # If another thread waits for the process, its status is that thread's to read.
        if self._waitpid_lock.acquire(blocking=False):
            try:
                if self.returncode is None:
                    pid, status = self._try_wait(os.WNOHANG)
                    if pid:
                        self._handle_exitstatus(status)
            finally:
                self._waitpid_lock.release()
        return self.returncode


class _Parent:
    """The process that has imported everything, seen from the tests: one for each worker of pytest."""

    _only: _Parent | None = None

    def __init__(self) -> None:
        self.environment = surroundings or dict(os.environ)
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, __file__, str(theirs.fileno())]
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=self.environment
            )
        atexit.register(self._end)

    def _end(self) -> None:
        self._socket.close()
        self._process.wait(120)

    @classmethod
    def only(cls) -> _Parent:
        if cls._only is None:
            cls._only = cls()
        return cls._only

    @classmethod
    def can_fork(cls, environment: dict[str, str]) -> bool:
        if not CAN_FORK or environment.get("GLASSLOOP_FORK") == "0":
            return False
        return not cls.differences(environment)

    @classmethod
    def differences(cls, environment: dict[str, str]) -> list[str]:
        """Returns the variables that a fork cannot have, since modules that are imported read them."""
        differ = environment.items() ^ cls.only().environment.items()
        return sorted({name for name, _ in differ if not _MAY_DIFFER.match(name)})

    def start(self, told: dict[str, Any], files: list[int]) -> None:
        socket.send_fds(self._socket, [json.dumps(told).encode()], files)


# ── in the parent of the forks ─────────────────────────────────────────────────────────────────────────────


def _next_fork(control: socket.socket) -> dict[str, Any] | None:
    """Returns in a new process what it has to run, or None in the parent when the tests have ended."""
    waking, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running: dict[int, socket.socket] = {}
    while True:
        ready = select.select([control, waking], [], [])[0]
        if waking in ready:
            os.read(waking, 4096)
            _report(running)
        if control not in ready:
            continue
        message, files, _, _ = socket.recv_fds(control, 1 << 20, 4)
        if not message:
            return None
        pid = os.fork()
        if pid:
            for file in files[:3]:
                os.close(file)
            running[pid] = socket.socket(fileno=files[3])
            running[pid].send(str(pid).encode())
            continue
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, file in enumerate(files[:3]):
            os.dup2(file, number)
        control.detach()
        for each in running.values():
            each.detach()
        os.closerange(3, 1024)
        return json.loads(message)


def _report(running: dict[int, socket.socket]) -> None:
    """Reports the status of each process that has ended."""
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with running.pop(pid) as waiting:
            try:
                waiting.send(str(status).encode())
            except OSError:  # the test did not wait for it
                continue


def _become(told: dict[str, Any], imported: dict[str, str]) -> None:
    """Gives the process all that distinguishes it from others of the same command. `imported` has the
    variables that modules set where they are not set already."""
    os.environ.clear()
    os.environ.update(imported | told["environment"])
    os.chdir(told["folder"])
    if told["session"]:
        os.setsid()
    if told["terminal"]:
        own_terminal()
    sys.argv[1:] = told["arguments"]
    sys.path[0] = told["folder"]
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        like = getattr(sys, name)
        at_once = number > 0 and like.write_through  # PYTHONUNBUFFERED
        stream = io.TextIOWrapper(
            open(number, "wb" if number else "rb", 0 if at_once else -1, closefd=False),  # noqa: SIM115
            encoding=like.encoding,
            errors=like.errors,
            newline="\n",
            line_buffering=not at_once and (number == 2 or os.isatty(number)),
            write_through=at_once,
        )
        stream.mode = "w" if number else "r"
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


if __name__ == "__main__":
    before = dict(os.environ)
    for module in _IMPORTED:
        import_module(module)
    imported = dict(os.environ.items() - before.items())
    gc.collect()
    gc.freeze()
    told = _next_fork(socket.socket(fileno=int(sys.argv[1])))
    if told is not None:
        import runpy

        _become(told, imported)
        del told
        runpy.run_module("glassloop", run_name="__main__", alter_sys=True)
