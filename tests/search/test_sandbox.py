"""A program in the sandbox that hangs, crashes, forks, writes to disk or opens a socket hurts nothing.

Each test runs a program that tries, for real.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
from pathlib import Path

import pytest

from glassloop.errors import GlassloopError
from glassloop.search.verdict import verdict_of
from glassloop.search.verify import sandbox
from glassloop.search.verify.sandbox import SandboxLimits, run
from glassloop.search.verify.unit_tests import code_of, python_check, unit_tests

SHORT = SandboxLimits(seconds=1.0, memory=256 << 20)
ENOUGH = SandboxLimits(seconds=30, memory=256 << 20)  # for what ends by itself, on a busy machine too
GOOD = "Here it is:\n```python\ndef add(a, b):\n    return a + b\n```\nDone."


def children() -> set[int]:
    """The processes of this user, by which one that survives would be seen."""
    return {
        int(name) for name in (path.name for path in Path("/proc").iterdir()) if name.isdigit() and ours(name)
    }


def ours(pid: str) -> bool:
    try:
        return b"sandbox_child" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


@pytest.fixture(autouse=True)
def nothing_survives():
    before = children()
    yield
    assert children() <= before


def test_code_that_passes_and_code_that_does_not() -> None:
    tests = ["assert add(2, 3) == 5", "assert add(-1, 1) == 0", "assert add('a', 'b') == 'ab'"]
    assert unit_tests(tests)(GOOD).passed
    verdict = unit_tests(tests)(GOOD.replace("a + b", "abs(a) + b"))
    assert (verdict.passed, round(verdict.score, 3)) == (False, 0.333)
    assert "1 of 3 tests pass; AssertionError" in verdict.reason
    assert unit_tests(tests)("def add(a, b) return").reason.startswith("the code fails: SyntaxError")


def test_the_standard_library_can_be_imported_and_printing_does_no_harm() -> None:
    program = "import collections, heapq, datetime, json, math, itertools, statistics, string\nprint('hello')"
    outcome = run(program, ["assert math.sqrt(4) == 2", "print('x' * 10**6)"])
    assert (outcome.failed, outcome.results) == (None, (True, True))
    assert outcome.printed.startswith("'hello") and len(outcome.printed) <= 10_000


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("while True: pass", "it takes more than 1 seconds"),
        ("import time\ntime.sleep(60)", "it takes more than 1 seconds"),
        ("x = 'x' * (1 << 40)", "MemoryError"),
        ("x = []\nwhile True: x.append('x' * 1000000)", "MemoryError"),
        ("def f(): return f()\nf()", "RecursionError"),
        ("import os\nos._exit(0)", "it ended its process"),
        ("import sys\nsys.exit(0)", "SystemExit: 0"),
        ("import os\nos.abort()", "it was ended by signal"),
        ("import ctypes\nctypes.string_at(0)", "it was ended by signal 11"),
        (
            "import os\nfor fd in range(3, 32):\n"
            "  try: os.write(fd, b'x' * (1 << 22))\n  except OSError: pass",
            "must",
        ),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    ],
)
def test_what_hangs_or_crashes_ends_by_itself(program: str, told: str) -> None:
    limits = SHORT if "more than" in told else ENOUGH
    verdict = unit_tests("assert True", limits=limits)(program)
    assert not verdict.passed and told in verdict.reason


@pytest.mark.parametrize(
    "attempt",
    [
        "import os\nos.fork()",
        "import subprocess\nsubprocess.run(['/bin/true'])",
        "import os\nif os.system('true') != 0: raise PermissionError",
        "import os\nos.execv('/bin/true', ['true'])",
        "import os\nos.posix_spawn('/bin/true', ['true'], {})",
        "import threading\nthreading.Thread(target=print).start()",
        "import os\nos.kill(THIS, 0)",
        "import os\nos.killpg(0, 0)",
        "import os\nos.nice(-5)",
        "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (1000, 1000))",
        "import os\nos.setuid(0)",
        "import os\nos.chroot('/')",
        "import fcntl\nfcntl.fcntl(1, fcntl.F_SETOWN, 1)",
        "import signal, os\nsignal.pidfd_send_signal(os.pidfd_open(1), 0)",
    ],
)
def test_no_other_process_is_reached_or_made(attempt: str) -> None:
    outcome = run(attempt.replace("THIS", str(os.getpid())), [], limits=ENOUGH)
    assert outcome.failed is not None
    assert re.search("PermissionError|not permitted|can't start|not allowed", outcome.failed)


def test_nothing_is_written_to_disk(tmp_path: Path) -> None:
    kept = tmp_path / "kept.txt"
    kept.write_text("kept")
    for attempt in (
        f"open({str(tmp_path / 'new')!r}, 'w').write('x')",
        f"open({str(kept)!r}, 'a').write('x')",
        f"import os\nos.open({str(kept)!r}, os.O_RDWR)",
        f"import os\nos.remove({str(kept)!r})",
        f"import os\nos.rename({str(kept)!r}, {str(tmp_path / 'moved')!r})",
        f"import os\nos.mkdir({str(tmp_path / 'folder')!r})",
        f"import os\nos.symlink('/etc', {str(tmp_path / 'link')!r})",
        f"import os\nos.chmod({str(kept)!r}, 0)",
        f"import os\nos.truncate({str(kept)!r}, 0)",
        "import tempfile\ntempfile.mkdtemp()",
        "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        f"assert libc.creat({os.fsencode(tmp_path / 'c')!r}, 0o600) >= 0, os.strerror(ctypes.get_errno())",
    ):
        outcome = run(attempt, [], limits=ENOUGH)
        assert outcome.failed is not None, attempt
        assert "rror" in outcome.failed, attempt
    assert [path.name for path in tmp_path.iterdir()] == ["kept.txt"]
    assert kept.read_text() == "kept" and kept.stat().st_mode & 0o777 != 0


def test_files_of_the_user_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    outcome = run(f"print(open({str(tmp_path / 'secret')!r}).read())", [], limits=ENOUGH)
    assert (
        outcome.failed is not None and "PermissionError" in outcome.failed and "secret" not in outcome.printed
    )


def test_no_socket_is_opened() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        server.settimeout(0.2)
        for attempt in (
            f"import socket\nsocket.create_connection(('127.0.0.1', {port}))",
            "import socket\nsocket.socket(socket.AF_UNIX)",
            "import socket\nsocket.socketpair()",
            "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 9))",
            f"import urllib.request\nurllib.request.urlopen('http://127.0.0.1:{port}/')",
        ):
            outcome = run(attempt, [], limits=ENOUGH)
            assert outcome.failed is not None and "rror" in outcome.failed
        with pytest.raises(TimeoutError):
            server.accept()


def test_a_check_of_ones_own_runs_there_too() -> None:
    source = "def check(text):\n    return text.count('e') / len(text)"
    assert python_check(source)("eeee").passed
    assert python_check(source)("abce").score == 0.25
    assert "ZeroDivisionError" in python_check(source)("").reason
    assert not python_check("def check(text):\n    while True: pass", limits=SHORT)("x").passed
    assert "score from 0 to 1" in python_check("def check(text): return 7")("x").reason


def test_what_a_program_says_cannot_steer_a_terminal() -> None:
    outcome = run("raise ValueError('\\x1b[2J\\x1b]0;title\\x07')", [])
    assert outcome.failed is not None and outcome.failed.isprintable() and "ValueError" in outcome.failed
    results = run("", ["assert False, '\\x1b[2J'"]).results
    assert isinstance(results[0], str) and results[0].isprintable()


def test_without_isolation_nothing_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = Path(sandbox._SCRIPT).read_text().replace('!= "x86_64"', '!= "a machine without seccomp"')
    other = tmp_path / "sandbox_child.py"
    other.write_text(script)
    monkeypatch.setattr(sandbox, "_SCRIPT", other)
    with pytest.raises(
        GlassloopError, match="only in a sandbox, and there is none here: it exists for Linux"
    ):
        run("print(1)", [])
    with pytest.raises(GlassloopError, match="only in a sandbox"):
        unit_tests("assert True")("x = 1")


def test_many_at_once() -> None:
    found: list[bool] = []
    verifier = unit_tests("assert add(1, 2) == 3")
    threads = [
        threading.Thread(target=lambda: found.append(verdict_of(verifier, GOOD).passed)) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 4
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL


def test_the_code_of_an_answer_is_in_its_fences() -> None:
    assert code_of("text\n```python\na = 1\n```\nmore\n```\nb = 2\n```") == "a = 1\n\nb = 2"
    assert code_of("a = 1") == "a = 1"
    assert code_of("```py\na = 1") == "a = 1"
