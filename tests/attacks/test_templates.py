"""Chat templates that ask for minutes or gigabytes: each ends in one line, and a server whose model has one
answers the others meanwhile. Random programs are tried in `test_files`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from attacks import batches
from attacks.harness import serving
from attacks.limits import FACTOR, LIMITS
from hostile.templates import BOMBS, bomb
from hostile.tiny import write_tiny
from waiting import awake

_SIZES = (100, 1000, 3000, 20_000, 90_000) if FACTOR else (300, 90_000)
_CLIENTS = 4 if FACTOR else 2
_SECONDS = 10.0 if FACTOR else 20.0  # that one rendering may take, compiling included

_PROGRAM = """
import json, resource, sys, time
from glassloop.errors import GlassloopError
from glassloop.text.chat import ChatTemplate
resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
ChatTemplate("{{ messages[0].content }}").render([{"role": "user", "content": "x"}])
before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
try:
    how = len(ChatTemplate(sys.stdin.read(), name="bomb").render([{"role": "user", "content": "x"}]))
except GlassloopError as error:
    how = str(error)
mine, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
grown = max(mine.ru_maxrss - before, children.ru_maxrss - before, 0) << 10
print(json.dumps({"how": how, "seconds": time.monotonic() - began, "grown": grown}))
"""


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_end_in_one_line(name: str) -> None:
    for size in _SIZES:
        began = awake()
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM],
            input=bomb(name, size),
            capture_output=True,
            text=True,
            env=batches.environment(),
            timeout=300,
        )
        assert awake() - began < _SECONDS, size
        assert done.returncode == 0, f"{size}: {done.stderr[-1000:]}"
        told = json.loads(done.stdout)
        assert told["grown"] <= LIMITS.memory, f"{size}: memory grew by {told['grown'] >> 20} MB"
        if isinstance(told["how"], str):
            assert told["how"].startswith("bomb: ") and "\n" not in told["how"] and len(told["how"]) < 400


@pytest.mark.parametrize("name", ["straight line", "format fields", "whole division"])
def test_a_template_that_takes_long_holds_up_nobody(tmp_path: Path, name: str) -> None:
    """Python's lock is not held for long either: a plain completion is answered while templates run."""
    from threading import Thread

    from attacks.harness import Watch

    model = write_tiny(tmp_path / "bomb.gguf", bomb(name, 3000 if FACTOR else 200))
    with serving("--kv-memory", "16MB", "--grace", "1", model=model) as server:
        body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
        answers = []
        with Watch(server, canary=True) as watch:
            threads = [
                Thread(target=lambda: answers.append(server.post("/v1/chat/completions", body)))
                for _ in range(_CLIENTS)
            ]
            for thread in threads:
                thread.start()
            assert server.post("/v1/completions", {"prompt": "x", "max_tokens": 1}, timeout=120).status == 200
            for thread in threads:
                thread.join(120)
        watch.report.check(canary=True)
        assert len(answers) == _CLIENTS and all(answer.status in (200, 400, 429) for answer in answers)
        assert not any(server.settle().values())
