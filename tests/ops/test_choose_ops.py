"""Which op set runs: the native one where it was built, else the reference, with one notice."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from glassloop.errors import GlassloopError
from glassloop.ops import choose_ops, torch

_TWICE = """
from glassloop.ops import choose_ops
print(choose_ops().name, choose_ops().name)
"""

_PARIS = """
from glassloop import LLM, Sampling
print(LLM().generate("The capital of France is", Sampling(temperature=0, max_tokens=1)).text)
"""


def _run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True
    )


def test_without_a_compiler_the_reference_runs_and_says_so_once(tmp_path):
    done = _run(_TWICE, GLASSLOOP_LIBRARY=str(tmp_path / "was-not-built.so"))
    assert done.stdout == "reference reference\n"
    assert done.stderr.count("native op set was not built") == 1


def test_without_a_compiler_the_model_still_answers(tmp_path):
    done = _run(_PARIS, GLASSLOOP_LIBRARY=str(tmp_path / "was-not-built.so"))
    assert done.stdout == " Paris\n"


@pytest.mark.parametrize("variable", ["GLASSLOOP_OPS", "GLASSLOOP_ISA", "GLASSLOOP_THREADS"])
def test_a_variable_with_a_wrong_value_is_named(variable):
    done = subprocess.run(
        [sys.executable, "-m", "glassloop", "generate", "Hi", "-n", "1"],
        env=os.environ | {variable: "sideways"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and "'sideways'" in done.stderr and done.stderr.count("\n") == 1


def test_names():
    assert choose_ops("reference").name == "reference"
    assert choose_ops("native").name == "native"
    with pytest.raises(GlassloopError, match="'numba'"):
        choose_ops("numba")


def test_torch_needs_what_it_is_made_of(monkeypatch):
    monkeypatch.setattr(torch, "has_device", lambda: False)
    monkeypatch.setattr(torch, "installed", lambda: False)
    with pytest.raises(GlassloopError, match=r"pip install 'glassloop\[gpu\]'"):
        choose_ops("torch")
    monkeypatch.setattr(torch, "installed", lambda: True)
    monkeypatch.setattr(torch, "interpreted", lambda: False)
    with pytest.raises(GlassloopError, match="needs an NVIDIA GPU"):
        choose_ops("torch")
    assert choose_ops().name == "native"
