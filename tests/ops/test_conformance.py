"""The conformance list: the op sets of this machine pass it, a wrong one does not, and an op set may lack
operations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from ops.conformance import cases, failure, lacking, main, op_set

from glassloop.errors import ModelError
from glassloop.model.config import AttentionConfig, DenseConfig, LayerConfig, ModelConfig, NormConfig
from glassloop.model.needed_ops import needed_ops
from glassloop.model.transformer import Transformer
from glassloop.ops.native import library
from glassloop.ops.protocol import Ops
from glassloop.ops.reference import ReferenceOps

CASES = [*cases()]


@pytest.mark.parametrize("operation", sorted({case.operation for case in CASES}))
@pytest.mark.parametrize("name", ["reference", "native"])
def test_the_op_set_passes(name, operation):
    if name == "native" and not library.available():
        pytest.skip("the native op set was not built")
    ops = op_set(name)
    assert {
        case.name: wrong
        for case in CASES
        if case.operation == operation and (wrong := failure(case, ops, half=False))
    } == {}


def test_every_operation_of_the_protocol_has_cases():
    besides = {"host", "seconds", "program", "free_memory", "matrix_bytes", "cache_memory", "page_bytes"}
    besides |= {"cache", "matrix", "vector", "low_rank", "description", "rows"}
    methods = {name for name, value in vars(Ops).items() if not name.startswith("_") and value is not None}
    needed = {name.partition(":")[0] for case in CASES for name in case.needs}
    assert {name for name in methods if callable(getattr(Ops, name))} - besides <= needed


class WrongOps(ReferenceOps):
    name = "wrong"

    def softcap(self, x, cap):
        return np.clip(x, -cap, cap)

    def linear(self, x, weight, bias):
        y = super().linear(x, weight, bias)
        return y + np.float32(1e-7 * len(x))  # depends on the number of rows


def test_a_wrong_op_set_fails(capsys):
    assert main(["ops.test_conformance:WrongOps", "softcap"]) == 1
    assert "failed  softcap: is off by" in capsys.readouterr().out
    assert main(["ops.test_conformance:WrongOps", "linear"]) == 1
    assert "have other bits alone than in the batch" in capsys.readouterr().out


class PartialOps(ReferenceOps):
    name = "partial"
    lacks = frozenset({"layer_norm", "gate:gelu", "adapt"})


def test_what_an_op_set_lacks_is_skipped_and_named(capsys):
    assert main(["ops.test_conformance:PartialOps", "layer_norm"]) == 0
    said = capsys.readouterr().out
    assert "lacks   layer_norm of 7: layer_norm" in said and " 0 failed, 4 lacks" in said
    skipped = {case.operation for case in CASES if lacking(case, PartialOps())}
    assert skipped == {"layer_norm", "gate:gelu", "adapt"}


def model(norm: str, activation: str) -> ModelConfig:
    layer = LayerConfig(AttentionConfig(2, 1, 4, 0.5), DenseConfig(8, activation), NormConfig(1e-5, norm))
    return ModelConfig("some", 10, 8, 32, (layer,), NormConfig(1e-5))


@pytest.mark.parametrize(
    ("norm", "activation", "lacked"), [("layer", "silu", "layer_norm"), ("rms", "gelu", "gate:gelu")]
)
def test_a_model_that_needs_what_is_lacking_is_refused(norm, activation, lacked):
    with pytest.raises(ModelError) as error:
        Transformer(model(norm, activation), {}, PartialOps())
    expected = f"a model of the family some needs the operation {lacked}, which the op set partial lacks"
    assert expected in str(error.value) and "\n" not in str(error.value)


def test_a_model_needs_what_its_layers_call():
    assert needed_ops(model("rms", "silu")) == [
        "add", "attention", "embed", "gate:silu", "head", "linear", "rms_norm", "split_heads", "take"
    ]  # fmt: skip


def test_it_runs_from_the_root_of_the_repository():
    from subprocess import run
    from sys import executable

    done = run(
        [executable, "-m", "tests.ops.conformance", "reference", "softcap"],
        cwd=Path(__file__).parents[2], capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0 and "reference: 2 passed, 0 failed, 0 lacks" in done.stdout, done.stderr
