"""Every snippet of every page runs and answers what the page shows: the shell commands of a page in one
shell, in the order in which a reader types them, and each Python block by itself, as it would be pasted. What
cannot run here is listed below, each with the reason. (tests/test_exercises.py has docs/exercises.md.)"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from engine.peft_adapter import write_adapter
from server.conftest import Server, serving
from snippets import PAGES, ROOT, Snippet, python_snippets, shell_snippets
from test_exercises import WRITTEN_WITH, fits, plain

from glassloop.model.loader import ModelFiles
from glassloop.model.registry import fetch
from glassloop.ops import choose_ops

LONG = 900  # seconds for the commands of a page, on a machine with much else to do
MODEL = "smollm2-135m-instruct"
# Commands that do not run here: a pattern that the beginning of the command matches, and why.
NOT_RUN = (
    (r"make |cd web", "it builds in the clone; test_docs checks the names, test_newcomer runs make run"),
    (r"pip install|source ", "it changes the environment of Python"),
    (r"kubectl|PYTHON=|PYTHONPATH=", "it needs a cluster, a browser or hours"),
    (
        r"python -m (bench|glassloop\.evaluate)|python -c",
        "it measures for hours, or needs books or other models",
    ),
    (r"python -m tests\.ops\.conformance", "it runs in a clone; tests/ops/test_conformance.py does the same"),
    (r"glassloop (serve|chat|watch)", "it runs until it is stopped; tests/server and tests/cli start them"),
    (
        r".*(gemma-3-270m|qwen2\.5-coder|cl100k_base|--upstream|\./model\.gguf)",
        "it needs another model or engine",
    ),
    (r"glassloop eval (?!questions)", "its questions and its model are downloaded, and it takes hours"),
    (
        r"glassloop train (?!lora --data mine|show)",
        "it trains for minutes to hours; tests/train does",
    ),
    (r".*(--draft drafter/|--adapter gcd|--model play/model)", "it needs what such a training made"),
    (r"glassloop train show zoo", "the folder is that of a training that is not run"),
    (r'glassloop solve "…"', "the question is left to the reader"),
    (r".*\[--", "it lists options in brackets"),
    (
        r".*(chatcmpl-|https://)",
        "it needs the id of an answer, or a server on another machine; test_newcomer has both",
    ),
    (
        r".*(falcon-7b|\./folder|/backup/|python3 -m venv|podman |install -|systemctl|\(umask)",
        "it needs files or rights that are not here; tests/test_deploy.py and tests/cli have them",
    ),
    (r".*--model FOLDER", "it needs a mixture of experts; tests/model/test_experts.py has one"),
    (r".*--plugin mine\.py", "its file is the block above it; tests/search has such plugins"),
    (r"GET ", "a request, not a command"),
)
PYTHON_NOT_RUN = (
    (r"from glassloop\.model import registry", "it downloads a model, and removes it"),
    (r".*run\.live\(\)", "it needs a notebook; tests/record has the live view"),
    (r"import pandas", "it needs pandas") if find_spec("pandas") is None else None,
)
# What would take minutes takes seconds. The server of this test has two models: one with an adapter.
REPLACED = (
    ('UpstreamEngine("http://localhost:8000")', f'UpstreamEngine("http://localhost:8000", "{MODEL}")'),
    ("steps=500", "steps=3, threads=1"),
    (
        "glassloop train lora --data mine.txt --out mine",
        "glassloop train lora --data mine.txt --out mine --steps 1 --length 16 --sample-tokens 2 --threads 1",
    ),
)
LETTER = "Birds have wings and can fly. Fish have fins and can algebra.\n"
FILES = {
    "letter.txt": LETTER,
    "mine.txt": "The Zorblax lamp glows in purple.\n" * 9,
    "shakespeare.txt": "To be, or not to be, that is the question:\n" * 99,
    "prompts.jsonl": "The capital of France is\n"
    '{"prompt": "Once upon a time", "temperature": 1, "seed": 7}\n',
    "questions.jsonl": '{"prompt": "What is 2 + 3?", "answer": "5"}\n',
    "file": "Any text.\n",
}


def reason(code: str, listed: tuple[tuple[str, str] | None, ...]) -> str | None:
    """Returns why a snippet is not run; None if it is."""
    return next((why for pattern, why in filter(None, listed) if re.match(pattern, code, re.DOTALL)), None)


def pages_with(snippets, listed: tuple[tuple[str, str] | None, ...]) -> list[str]:
    """Returns the pages that have a snippet to run."""
    return [
        page.relative_to(ROOT).as_posix()
        for page in PAGES
        if any(reason(each.code, listed) is None for each in snippets(page))
    ]


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    """One server for all requests of all pages."""
    folder = place(tmp_path_factory.mktemp("server"))
    flags = ("--adapter", f"math={folder / 'math' / 'adapter'}", "--plugin", str(folder / "my_stages.py"))
    with serving("--kv-memory", "300MB", *flags) as started:
        yield started


def place(folder: Path) -> Path:
    """Puts the files into a folder that readers of the docs have by then."""
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
    stages = next(each for each in python_snippets(ROOT / "docs" / "decoding.md") if "@stage(" in each.code)
    (folder / "my_stages.py").write_text(stages.code)
    config = ModelFiles(fetch(MODEL)).config
    for number, name in enumerate(("math/adapter", "adapters/verse")):
        (folder / name).parent.mkdir()
        write_adapter(folder / name, config, 2, "q v", number)
    (folder / "glassloop").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m glassloop "$@"\n')
    (folder / "glassloop").chmod(0o755)
    return folder


def environment(folder: Path) -> dict[str, str]:
    return os.environ | {
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])),
        "GLASSLOOP_STORE": str(folder / "runs.db"),
        "COLUMNS": "200",
    }


def ready(code: str, server: Server) -> str:
    """Returns a snippet with the address of the test's server, shorter where it would take long."""
    for before, after in REPLACED:
        code = code.replace(before, after)
    return re.sub(r"(http://)?(127\.0\.0\.1|localhost):8000", server.url, code)


@pytest.mark.skipif(
    shutil.which("bash") is None or shutil.which("curl") is None, reason="needs bash and curl"
)
@pytest.mark.parametrize(
    "name", [name for name in pages_with(shell_snippets, NOT_RUN) if name != "docs/exercises.md"]
)
def test_every_command_of_a_page_answers_what_is_shown(name, server, tmp_path):
    folder = place(tmp_path)
    asked = [each for each in shell_snippets(ROOT / name) if reason(each.code, NOT_RUN) is None]
    # Readers have a run and a file of it by then.
    begin = (
        'glassloop generate "The capital of France is" --seed 3 -n 17 --temperature 0.8 --trace a.glass >&2'
    )
    lines = [f"{ready(each.code, server)}\nprintf '\\n:::{at}\\n'" for at, each in enumerate(asked)]
    done = subprocess.run(
        ["bash", "-c", "\n".join(["set -eo pipefail", f"{begin} 2>&1", *lines])],
        capture_output=True,
        text=True,
        timeout=LONG,
        cwd=folder,
        env=environment(folder),
    )
    said = re.split(r"\n:::\d+\n", done.stdout)[:-1]
    assert done.returncode == 0, f"{asked[len(said)].place}: {asked[len(said)].code}\n{done.stderr[-800:]}"
    for snippet, answer in zip(asked, said, strict=True):
        if snippet.code.startswith("curl"):
            assert answer.strip() and '"error"' not in answer[:40], f"{snippet.place}\n{answer[:500]}"
        check_answer(snippet, answer)


def is_as_written() -> bool:
    """Whether answers are those of the pages: with another op set a close choice may fall differently."""
    return choose_ops().description == WRITTEN_WITH


def check_answer(snippet: Snippet, answer: str) -> None:
    """Compares an answer with the page."""
    if snippet.shown and is_as_written():
        expected, found = plain(snippet.shown), plain(answer)
        assert fits(found, expected), (
            f"{snippet.place}: {snippet.code}\n{found}\n── but the page has ──\n{expected}"
        )


@pytest.mark.parametrize("name", pages_with(python_snippets, PYTHON_NOT_RUN))
def test_every_python_block_can_be_pasted(name, server, tmp_path):
    folder = place(tmp_path)
    asked = [each for each in python_snippets(ROOT / name) if reason(each.code, PYTHON_NOT_RUN) is None]
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "run_blocks.py"), *(["--compare"] if is_as_written() else [])],
        input=json.dumps([ready(each.code, server) for each in asked]),
        capture_output=True,
        text=True,
        timeout=LONG,
        cwd=folder,
        env=environment(folder),
    )
    assert done.returncode == 0, done.stderr[-800:]
    for snippet, (printed, error) in zip(asked, json.loads(done.stdout), strict=True):
        assert not error, f"{snippet.place}\n{error}"
        check_answer(snippet, printed)


def test_every_reason_is_for_a_snippet_that_exists():
    shell = [each.code for page in PAGES for each in shell_snippets(page)]
    code = [each.code for page in PAGES for each in python_snippets(page)]
    for listed, snippets in ((NOT_RUN, shell), (PYTHON_NOT_RUN, code)):
        for pattern, why in filter(None, listed):
            assert any(re.match(pattern, each, re.DOTALL) for each in snippets), f"{pattern}: {why}"


def test_commands_and_answers_are_told_apart(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text(
        "```\n$ glassloop a \\\n    b\nanswer\n\nmore\n$ curl -d '{\n  1}'\n```\n"
        "```\nglassloop c  # d\nGET /e\n```\n"
        "```\nkey = mix(1)\n```\n```python\nprint(1)\n```\nIt prints:\n```text\n1\n```\n"
    )
    monkeypatch.setattr("snippets.ROOT", tmp_path)
    assert [(each.line, each.code, each.shown) for each in shell_snippets(page)] == [
        (2, "glassloop a \\\n    b", "answer\n\nmore\n"),
        (7, "curl -d '{\n  1}'", ""),
        (11, "glassloop c  # d", ""),
        (12, "GET /e", ""),
    ]
    assert python_snippets(page) == [Snippet("page.md", 18, "print(1)\n", "1\n")]
