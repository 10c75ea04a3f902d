"""`glassloop infill` and `glassloop edit` as a person uses them: real processes, a pipe and a terminal."""

from __future__ import annotations

import subprocess
import sys

from cli.terminal import Session, on_terminal, run

from glassloop import Edit


def test_infill_prints_the_text_alone_and_the_bits_on_stderr(tmp_path):
    record = tmp_path / "edit.json"
    asked = ("infill", "The capital of France is the city of", ", on the river Seine.", "--tokens", "1")
    done = run(*asked, "--seed", "1", "--candidates", "3", "--record", str(record))
    assert done.stdout == "The capital of France is the city of Paris, on the river Seine.\n"
    assert "+ '' → ' Paris':" in done.stderr
    assert "accepted" in done.stderr
    assert Edit.load(record).text + "\n" == done.stdout


def test_edit_shows_what_went_and_what_came(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("Paris is the capital banana France, and it lies on the river Seine.")
    code, shown = on_terminal(
        "edit", str(text), "--seed", "1", "--budget", "600", "-o", str(tmp_path / "new")
    )
    assert code == 0
    assert "\x1b[31;9m banana" in shown
    assert "\x1b[32;1m of" in shown
    assert "bits on what follows" in shown
    assert "banana" not in (tmp_path / "new").read_text()


def test_a_pipe_gets_the_text_as_it_is(tmp_path):
    """Nothing is escaped for a terminal that is not there: a file can be made of stdout."""
    text = tmp_path / "text.txt"
    data = "One soft\u00adhyphen,\r\ntwo lines, 👩\u200d👩\u200d👧 and Ma\u0308dchen.\r\n".encode()
    text.write_bytes(data)
    command = [sys.executable, "-m", "glassloop", "edit", str(text), "--budget", "0"]
    assert subprocess.run(command, capture_output=True, timeout=120).stdout == data
    code, shown = on_terminal("edit", str(text), "--budget", "0")
    assert code == 0 and "\\x0d" not in shown and "soft\\xadhyphen" in shown


def test_masks_repair_single_tokens(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("Paris is the capital banana France, and it lies on the river Seine.")
    done = run("edit", str(text), "--proposer", "diffusion")
    assert done.stdout == "Paris is the capital of France, and it lies on the river Seine.\n"
    assert "+ ' banana' → ' of':" in done.stderr and "bits to a mask there" in done.stderr
    refused = run("edit", str(text), "--proposer", "diffusion", "--span", "0:5")
    assert refused.returncode == 2 and "--proposer are for repairing" in refused.stderr


def test_ctrl_c_ends_a_repair(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("Paris is the capital banana France, and umbrella is the town seven Germany. " * 60)
    session = Session("edit", str(text))
    session.wait_for("tokens computed")
    session.type("\x03")
    session.wait_for("glassloop: interrupted")
    assert session.child.wait(120) == 130


def test_errors_are_one_line(tmp_path):
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"\xff\xfe")
    good = tmp_path / "good.txt"
    good.write_text("It is good.")
    for asked in (
        ("edit", str(tmp_path / "none.txt")),
        ("edit", str(bad)),
        ("edit", str(good), "--span", "five"),
        ("infill", "a", "b", "--temperature", "-1"),
        ("infill", "a", "b", "--max-tokens", "3"),
        ("edit", str(good), "--method", "metropolis"),
        ("edit", str(good), "--span", "0:2", "--least-gain", "1"),
        ("edit", str(good), "--check", "contains:x", "--tokens", "3"),
    ):
        done = run(*asked)
        assert done.returncode == 2, asked
        assert done.stderr.count("\n") == 1
