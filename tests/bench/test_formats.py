"""The files that `bench.formats` compares are models that we open, of the type that they are named for."""

from __future__ import annotations

import pytest

from bench import formats
from glassloop.model.loader import ModelFiles


@pytest.mark.parametrize("name", ["Q2_K", "IQ3_S"])
def test_a_model_of_a_type_is_written_and_measured(name, tmp_path, monkeypatch):
    for constant, value in (("_PROMPT", 20), ("_STEPS", 2), ("_FEW_STEPS", 2), ("_VOCABULARY", 400)):
        monkeypatch.setattr(formats, constant, value)
    path = tmp_path / "model.gguf"
    formats.write_model(path, name, layers=1, dim=256, ffn=256, heads=4, kv_heads=2)
    types = {tensor.format.name for tensor in ModelFiles(path).tensors.values()}
    assert types == {name, "F32", "Q4_K", "Q6_K"}
    row = formats.compare(path, None, rounds=1)
    assert all(row[rate] > 0 for rate in ("prefill", "decode", "streams_8", "load"))
