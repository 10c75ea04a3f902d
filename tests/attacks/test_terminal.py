"""The command line and files of strangers: no control character of theirs reaches the terminal, errors are
one line, and no model is fetched or opened because a file names it.
"""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from attacks import batches
from attacks.limits import SEED, cases
from hostile.glass import SPECIAL, mutated, read, write
from hostile.tiny import tiny_gguf, write_tiny

from glassloop import LLM, Sampling

_EVIL = "x\x1b]0;owned\x07\x1b[2J\x9b31m\x00\x08\r\x7f\u202egnp.exe\x1bPq\x1b\\"
# Everything of C0 but line ends and tabs, DEL, and C1. Colours and movements are the command line's own.
_RAW = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_OWN = re.compile(r"\x1b\[[0-9;]*[mKAGJHhl]|\x1b\[\?\d+[hl]|\x1b\[\d*[ABCDG]")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("terminal")


@pytest.fixture(scope="module")
def model(folder: Path) -> Path:
    return write_tiny(folder / "tiny.gguf")


@pytest.fixture(scope="module")
def good(folder: Path, model: Path) -> bytes:
    llm = LLM(str(model), kv_memory="1MB")
    run = llm.generate("the sea", Sampling(max_tokens=4, seed=1))
    run.save(folder / "good.glass")
    llm.close()
    return (folder / "good.glass").read_bytes()


def glassloop(*arguments: str, home: Path, tty: bool = False) -> tuple[int, str]:
    """Exit status and all that it writes, with a home of its own and no way to a network."""
    env = batches.environment() | {"HOME": str(home), "GLASSLOOP_HOME": str(home / "models")}
    env |= {"GLASSLOOP_STORE": str(home / "runs.db"), "XDG_DATA_HOME": str(home), "XDG_CACHE_HOME": str(home)}
    env |= {"http_proxy": "http://127.0.0.1:1", "https_proxy": "http://127.0.0.1:1", "TERM": "xterm"}
    env |= {"PIP_INDEX_URL": "http://127.0.0.1:1", "PIP_RETRIES": "0", "COLUMNS": "120"}
    command = [sys.executable, "-m", "glassloop", *arguments]
    if not tty:
        done = subprocess.run(command, capture_output=True, env=env, timeout=60, stdin=subprocess.DEVNULL)
        return done.returncode, (done.stdout + done.stderr).decode("utf-8", "surrogateescape")
    parent, child = pty.openpty()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=child, stderr=child, env=env)
    os.close(child)
    parts = []
    try:
        while part := os.read(parent, 1 << 16):
            parts.append(part)
    except OSError:  # the other end is closed
        pass
    os.close(parent)
    return process.wait(60), b"".join(parts).decode("utf-8", "surrogateescape")


def raw_controls(text: str, tty: bool = False) -> list[str]:
    shown = _OWN.sub("", text).replace("\r\n", "\n")
    found = _RAW.findall(shown.replace("\r", "") if tty else shown)
    return [repr(each) for each in found]


def _evil(good: bytes) -> bytes:
    """Every text of the header is hostile, and the run is still one of this model."""
    section = read(good)[0]
    header = dict(section.header)
    for name in ("model", "prompt", "tail", "stop_reason", "ops", "reason"):
        header[name] = _EVIL
    header["sampling"] = {**header["sampling"], "stop": [_EVIL], "bad_words": [_EVIL], "grammar": None}
    return write([replace(section, header=header)])


@pytest.mark.parametrize("tty", [False, True])
@pytest.mark.parametrize(
    "command",
    [
        ("runs", "show"),
        ("runs", "show", "--json"),
        ("explain", "--step", "0"),
        ("replay",),
        ("replay", "--json"),
        ("watch",),
    ],
    ids=" ".join,
)
def test_control_characters_of_a_file_are_shown_not_sent(
    folder: Path, model: Path, good: bytes, tmp_path: Path, command: tuple[str, ...], tty: bool
) -> None:
    if command == ("watch",) and tty:
        pytest.skip("a full-screen program, which waits for keys")
    path = folder / "evil.glass"
    path.write_bytes(_evil(good))
    name, *options = command if command[0] != "runs" else (" ".join(command[:2]), *command[2:])
    more = ["--model", str(model)] if name in ("explain", "replay") else []
    code, text = glassloop(*name.split(), str(path), *options, *more, home=tmp_path, tty=tty)
    assert raw_controls(text, tty) == [], text
    assert code in (0, 1, 2) and "Traceback" not in text, text[-2000:]


def test_control_characters_of_a_model_are_shown_not_sent(folder: Path, tmp_path: Path) -> None:
    path = folder / "evil.gguf"
    template = "{{ raise_exception('EVIL') }}".replace("EVIL", _EVIL)
    evil = tiny_gguf(template)
    tokens = [*evil["tokenizer.ggml.tokens"][:-1], _EVIL]
    evil = evil.with_metadata({"general.name": _EVIL, "tokenizer.ggml.tokens": tokens})
    path.write_bytes(evil.to_bytes())
    only_evil = ("--allowed-token-ids", str(len(tokens) - 1), "--ignore-eos")
    commands = (
        ("models", "show", str(path)),
        ("tokenize", "--model", str(path), f"a{_EVIL.replace(chr(0), '')}"),
        ("generate", "--model", str(path), "hello", "--max-tokens", "3", *only_evil),
        ("generate", "--model", str(folder / _EVIL.replace("\0", "").replace("/", "")), "hello"),
        ("models", "show", _EVIL.replace("\0", "")),
    )
    with ThreadPoolExecutor(2) as pool:  # mostly the time that a process takes to start
        results = list(pool.map(lambda arguments: glassloop(*arguments, home=tmp_path, tty=True), commands))
    for arguments, (code, text) in zip(commands, results, strict=True):
        assert raw_controls(text, tty=True) == [], (arguments[0], text)
        assert code in (0, 1, 2) and "Traceback" not in text, text[-2000:]
    assert r"\x1b]0;owned" in results[2][1]  # the model did say it


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("replay", "hf:evil-owner/evil-repo"),
        ("explain", "/etc/passwd"),
        ("replay", "gemma-3-270m"),
        ("explain", "../../x.gguf"),
    ],
)
def test_a_file_fetches_no_model(folder: Path, good: bytes, tmp_path: Path, named: str, command: str) -> None:
    section = read(good)[0]
    path = folder / "names.glass"
    path.write_bytes(write([replace(section, header={**section.header, "model": named})]))
    code, text = glassloop(
        command, str(path), *(["--step", "0"] if command == "explain" else []), home=tmp_path
    )
    assert code == 2 and text.count("\n") == 1 and text.startswith("glassloop: "), text
    # Neither asked for over the network nor opened to see what it is.
    assert not re.search(
        r"cannot pull|hugging ?face|magic|is not a GGUF|Terms of Use", text, re.IGNORECASE
    ), text
    assert list(tmp_path.rglob("*.gguf")) == []


def test_any_bad_file_is_one_line(folder: Path, good: bytes, model: Path, tmp_path: Path) -> None:
    rng, section = Random(SEED + 5), read(good)[0]
    files = [
        write([replace(section, header={**section.header, name: SPECIAL[name][0]})])
        for name in ("prompt_ids", "timings")
    ]
    files += [mutated(good, rng) for _ in range(cases(4))]

    def use(number: int) -> tuple[int, str]:
        path = folder / f"bad-{number}.glass"
        path.write_bytes(files[number])
        commands = [("runs", "show", str(path)), ("explain", str(path), "--step", "0", "--model", str(model))]
        return glassloop(*commands[number % 2], home=tmp_path)

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(use, range(len(files))))
    for number, (code, text) in enumerate(results):
        assert code in (0, 1, 2) and "Traceback" not in text, f"file {number}: {text[-1500:]}"
        assert raw_controls(text) == []
        if code == 2:
            assert text.count("\n") == 1 and text.startswith("glassloop: "), f"file {number}: {text}"
