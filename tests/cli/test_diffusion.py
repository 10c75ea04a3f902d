"""`generate --diffusion` and `passes`, with a random adapter for masked rows: the text and its record."""

from __future__ import annotations

import json

import numpy as np
import pytest
from cli.terminal import Session, on_terminal, run

from glassloop import LLM, Run
from glassloop.train.adapter_file import write_adapter_file

ASKED = ("generate", "The old man", "--diffusion", "-n", "12", "--seed", "1", "--no-store")


@pytest.fixture(scope="module")
def holes(tmp_path_factory):
    """An adapter that does nothing but has a mask token: the mechanics are those of a trained one."""
    file = tmp_path_factory.mktemp("holes") / "random.safetensors"
    config = LLM().config
    rng = np.random.default_rng(0)
    parts = {
        f"layers.{layer}.q": (
            (rng.standard_normal((4, config.dim)) * 0.02).astype(np.float32),
            (rng.standard_normal((config.heads * config.head_dim, 4)) * 0.02).astype(np.float32),
        )
        for layer in range(len(config.layers))
    }
    vector = (rng.standard_normal(config.dim) * 0.02).astype(np.float32)
    write_adapter_file(file, parts, 1.0, name="random", embedding=vector, mask_token=0)
    return file


def test_a_text_is_written_recorded_replayed_and_shown(holes, tmp_path):
    trace = tmp_path / "a.glass"
    made = run(
        *ASKED, "--holes", str(holes), "--fill", "block=6", "--fill", "passes=3", "--trace", str(trace)
    )
    loaded = Run.load(trace)
    assert made.returncode == 0 and made.stdout == loaded.text + "\n"
    assert "6 passes, 2.0 tokens each" in made.stderr and len(loaded.tokens) == 12
    shown = run("passes", str(trace))
    assert shown.stdout.count("░") >= 4 and len(shown.stdout.splitlines()) >= 6
    one = run("passes", str(trace), "--pass", "2")
    assert one.stdout.count("filled, confidence") == 2
    plain = json.loads(run(*ASKED, "--holes", str(holes), "--fill", "block=6", "--json").stdout)
    assert plain["tokens"][0]["source"] == "mask" and plain["passes"]


def test_an_infill_by_masks(holes, tmp_path):
    record = tmp_path / "edit.json"
    asked = ("infill", "The cat sat on", "and purred.", "--tokens", "2", "--candidates", "2", "--seed", "1")
    made = run(*asked, "--proposer", "diffusion", "--holes", str(holes), "--record", str(record))
    assert made.returncode == 0 and made.stdout.startswith("The cat sat on")
    assert json.loads(record.read_text())["given"]["proposer"] == "diffusion"
    same = run(*asked, "--method", "holes", "--holes", str(holes))
    assert same.stdout == made.stdout


def test_on_a_terminal_the_passes_are_drawn(holes):
    code, text = on_terminal(*ASKED, "--holes", str(holes), "--fill", "block=6", "--fill", "passes=2")
    assert code == 0 and "░" in text


def test_ctrl_c_keeps_what_there_is(holes, tmp_path):
    trace = tmp_path / "a.glass"
    asked = ("generate", "The old man", "--diffusion", "-n", "2000", "--seed", "1", "--fill", "block=4")
    session = Session(*asked, "--no-store", "--holes", str(holes), "--trace", str(trace))
    session.wait_for("░")
    session.type("\x03")
    session.wait_for("ended by cancelled")
    assert session.child.wait(120) == 130
    loaded = Run.load(trace)
    assert loaded.finish_reason == "cancelled" and loaded.passes and loaded.diffusion["block"] == 4
    shown = run("passes", str(trace))
    assert shown.returncode == 0 and len(shown.stdout.splitlines()) >= len(loaded.passes)


def test_a_pass_is_explained(holes, tmp_path):
    trace = tmp_path / "a.glass"
    run(*ASKED, "--holes", str(holes), "--fill", "block=6", "--fill", "passes=3", "--trace", str(trace))
    wrong = run("explain", str(trace), "--step", "1", "--pass", "0")
    assert wrong.returncode == 2 and "made with another adapter" in wrong.stderr
    told = run("explain", str(trace), "--step", "1", "--pass", "0", "--holes", str(holes))
    assert told.returncode == 0 and "In pass 0, with 0 of 6 places known" in told.stdout
    assert run("replay", str(trace), "--holes", str(holes)).stdout == "identical, 12 of 12 tokens\n"
    plain = tmp_path / "plain.glass"
    run("generate", "The old man", "-n", "2", "--no-store", "--trace", str(plain))
    wrong = run("explain", str(plain), "--step", "1", "--pass", "0")
    assert wrong.returncode == 2 and "--pass is given" in wrong.stderr


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--fill", "block"), "NAME=VALUE is expected"),
        (("--fill", "block=0"), "diffusion.block is 0"),
        (("--fill", "colour=1"), "diffusion.colour is unknown"),
        (("--show", "surprise"), "--show and --upstream are not expected"),
    ],
)
def test_wrong_options_are_refused_before_the_model_is_loaded(options, told):
    made = run(*ASKED, *options)
    assert made.returncode == 2 and told in made.stderr


def test_options_of_diffusion_need_it():
    made = run("generate", "Hi", "--fill", "block=4")
    assert made.returncode == 2 and "--fill and --holes are for --diffusion" in made.stderr
