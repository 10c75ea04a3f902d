"""GGUF files of every type, from the file to the tokens: `LLM` opens them on both op sets, which agree."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hostile import gguf as hostile
from hypothesis import given, settings
from hypothesis import strategies as st
from model.test_mutations import _use_or_refuse
from model.typed_gguf import QUANTIZED, typed_gguf

from glassloop import LLM, Sampling
from glassloop.errors import ModelError
from glassloop.model.cache import Branches
from glassloop.model.loader import ModelFiles
from glassloop.ops.native.ops import NativeOps
from glassloop.ops.quant import FORMATS
from glassloop.ops.reference import ReferenceOps

TYPES = [name for name in FORMATS if FORMATS[name].table]
# What people download mixes types.
MIXED = ("Q2_K", "Q3_K", "IQ4_XS", "Q4_K", "IQ3_S", "Q6_K", "IQ2_XS", "Q8_0")


@pytest.fixture(params=[(name,) for name in TYPES] + [MIXED], ids=lambda names: "-".join(names))
def typed(request, tmp_path):
    path = tmp_path / "typed.gguf"
    path.write_bytes(typed_gguf(*request.param).to_bytes())
    return path


def test_greedy_tokens_are_the_same_on_both_op_sets_where_margins_are_clear(typed):
    """The reference is asked for every token, after the tokens that the native op set has written."""
    sampling = Sampling(temperature=0, max_tokens=12, ignore_eos=True)
    llm = LLM(typed, kv_memory="4MB", draft=False, ops="native")
    run = llm.generate("The sea", sampling)
    llm.engine.close()
    ids = [*run.prompt_ids, *run.token_ids]
    reference = ModelFiles(typed).transformer(ReferenceOps())
    logits = Branches(reference, 64).forward([(0, 0, ids)], every_logit=True)
    native = Branches(ModelFiles(typed).transformer(NativeOps()), 64).forward([(0, 0, ids)], every_logit=True)
    error = np.abs(native - logits).max()
    assert error < 0.1 * np.abs(logits).max()
    clear = 0
    for place, token in enumerate(run.token_ids, start=len(run.prompt_ids) - 1):
        second, first = np.sort(logits[place])[-2:]
        if first - second > 2 * error:
            clear += 1
            assert int(logits[place].argmax()) == token
    assert clear > 0


@pytest.mark.parametrize("name", [name for name in TYPES if name in QUANTIZED])
def test_quantized_values_come_back(name, tmp_path):
    """Blocks that the gguf package has written, with its values."""
    import gguf

    (tmp_path / "typed.gguf").write_bytes(typed_gguf(name).to_bytes())
    theirs = {each.name: each for each in gguf.GGUFReader(tmp_path / "typed.gguf").tensors}
    for tensor in ModelFiles(tmp_path / "typed.gguf").tensors.values():
        values = gguf.dequantize(theirs[tensor.name].data, theirs[tensor.name].tensor_type)
        assert tensor.float32().tobytes() == values.tobytes()


@pytest.mark.parametrize("name", TYPES)
def test_sizes_that_do_not_fit_are_refused_in_one_line(name, tmp_path):
    good = typed_gguf(name)
    at = next(index for index, tensor in enumerate(good.tensors) if len(tensor.dims) == 2)
    bad = good.tensors[at]
    for changed in (
        hostile.replace(bad, dims=(bad.dims[0] - 16, bad.dims[1])),
        hostile.replace(bad, dims=(bad.dims[0], 2**40)),
        hostile.replace(bad, kind=1000),
    ):
        tensors = tuple(changed if index == at else each for index, each in enumerate(good.tensors))
        (tmp_path / "bad.gguf").write_bytes(hostile.replace(good, tensors=tensors).to_bytes())
        with pytest.raises(ModelError) as caught:
            ModelFiles(tmp_path / "bad.gguf")
        assert bad.name in str(caught.value) and "\n" not in str(caught.value)
    (tmp_path / "short.gguf").write_bytes(good.to_bytes()[:-1])
    with pytest.raises(ModelError, match="truncated"):
        ModelFiles(tmp_path / "short.gguf")


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(TYPES), st.integers(0, 2**32))
def test_changed_files_work_or_are_refused_in_one_line(tmp_path_factory, name, seed):
    path = tmp_path_factory.mktemp("changed") / "m.gguf"
    path.write_bytes(hostile.mutated(typed_gguf(name), Random(seed)))
    _use_or_refuse(path)
    path.unlink()
