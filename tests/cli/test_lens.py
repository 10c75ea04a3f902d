"""`glassloop lens`, as a person uses it: tables, JSON and pictures."""

from __future__ import annotations

import json
import struct
import xml.etree.ElementTree as ET
import zlib

import pytest
from cli.terminal import on_terminal, run

TIRED = "The cat sat on the mat because it was tired"


def test_attention_as_a_table_json_and_a_picture(tmp_path):
    picture = tmp_path / "it.svg"
    done = run("lens", "attention", TIRED, "--token", "it", "--picture", str(picture))
    assert done.returncode == 0, done.stderr
    assert "Where “ it” looks" in done.stdout and "layer 14, head 9: 8" in done.stdout
    assert "“ tired”" not in done.stdout  # a token sees nothing that comes after it
    words = [text.text for text in ET.parse(picture).iter("{http://www.w3.org/2000/svg}text")]
    assert {"cat", "because", "layer 1", "layer 30"} <= set(words)
    one = run("lens", "attention", TIRED, "-t", "7", "--layer", "14").stdout.splitlines()
    assert one[-1].split()[0] == "9" and "“ cat” 8" in one[-1]
    told = json.loads(run("lens", "attention", TIRED, "-t", "it", "--json").stdout)
    assert told["token"] == 7 and len(told["layers"]) == 30
    assert all(abs(sum(head) - 1) < 1e-4 for each in told["layers"] for head in each["weights"])


def test_layers_as_a_table_json_and_a_picture(tmp_path):
    picture = tmp_path / "layers.png"
    done = run("lens", "layers", "The capital of France is", "--picture", str(picture))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "“ Paris” 7" in next(line for line in lines if line.lstrip().startswith("30 "))
    assert lines[-1] == "Rank and probability are those of “ Paris”, the favourite of the last layer."
    width, height, dots = _read_png(picture.read_bytes())
    assert width > 300 and height > 30 * 2 * 20 and len(set(dots)) > 50
    told = json.loads(run("lens", "layers", "The capital of France is", "-c", "2", "--json").stdout)
    assert [len(each["top"]) for each in told["layers"]] == [2] * 31 and told["follows"]["text"] == " Paris"


def _read_png(data: bytes) -> tuple[int, int, list[bytes]]:
    """Width, height and every dot, by the book; the checksums must be right."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, body, size = 8, b"", (0, 0)
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        part = data[at + 8 : at + 8 + length]
        assert zlib.crc32(kind + part) == struct.unpack(">I", data[at + 8 + length : at + 12 + length])[0]
        if kind == b"IHDR":
            assert part[8:] == bytes([8, 2, 0, 0, 0])
            size = struct.unpack(">II", part[:8])
        body += part if kind == b"IDAT" else b""
        at += 12 + length
    raw, stride = zlib.decompress(body), 3 * size[0] + 1
    assert len(raw) == stride * size[1] and not any(raw[::stride])
    dots = [
        raw[at : at + 3] for row in range(size[1]) for at in range(row * stride + 1, (row + 1) * stride, 3)
    ]
    return *size, dots


def test_neighbours_of_the_king(tmp_path):
    picture = tmp_path / "king.png"
    done = run("lens", "neighbours", " king", "--picture", str(picture))
    assert done.returncode == 0, done.stderr
    assert "Near “ king”" in done.stdout
    assert "“ queen”" in done.stdout and "“ emperor”" in done.stdout
    assert _read_png(picture.read_bytes())[1] > 10 * 2 * 20
    told = json.loads(run("lens", "neighbours", " king", "-c", "3", "--json").stdout)
    assert [len(told["of"]), len(told["neighbours"])] == [1, 3]


def test_a_run_is_looked_into_by_name(tmp_path):
    store, file = str(tmp_path / "runs.db"), str(tmp_path / "a.glass")
    flags = ("--seed", "3", "-n", "4", "--trace", file)
    assert run("generate", "The capital of France is", *flags, GLASSLOOP_STORE=store).returncode == 0
    seen = [
        run("lens", "layers", name, "--token", "4", "--json", GLASSLOOP_STORE=store)
        for name in ("last", file)
    ]
    assert seen[0].returncode == 0 and seen[0].stdout == seen[1].stdout
    assert json.loads(seen[0].stdout)["follows"]["given"]
    text = json.loads(run("lens", "layers", "last", "--text", "--json", GLASSLOOP_STORE=store).stdout)
    assert [piece["text"] for piece in text["tokens"]] == ["last"]


def test_tables_fit_eighty_columns():
    code, seen = on_terminal("lens", "attention", TIRED, "--token", "it", NO_COLOR="1")
    table = seen[seen.index("──") :]
    assert code == 0 and "“ because”" in table and "layer 19, head 9: 100 %" in table and "…" not in table


def test_on_a_terminal_nothing_is_obeyed_and_lines_fit():
    code, seen = on_terminal("lens", "attention", "a \x1b[31mb 漢字 👍 end", NO_COLOR="1")
    assert code == 0 and "\x1b[31m" not in seen and "\\x1b" in seen


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("attention", TIRED, "--token", "dog"), "token is 'dog'"),
        (("attention", TIRED, "--layer", "31"), "layer is 31; one from 1 to 30 is expected"),
        (("layers", TIRED, "--picture", "a.jpg"), "a name that ends in .svg or .png is expected"),
        (("layers", TIRED, "--picture", "/nowhere/a.svg"), "cannot write /nowhere/a.svg"),
        (("layers", "missing.glass"), "missing.glass"),
        (("layers", "0123456789abcdef"), "0123456789abcdef"),
        (("neighbours", ""), "the text is empty"),
    ],
)
def test_errors_are_one_line(arguments, said, tmp_path):
    done = run("lens", *arguments, GLASSLOOP_STORE=str(tmp_path / "runs.db"))
    assert done.returncode == 2 and said in done.stderr and len(done.stderr.splitlines()) == 1
    assert not done.stdout
