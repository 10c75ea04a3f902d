"""The files that `bench.formats` compares are models that we open, of the type that they are named for."""

from __future__ import annotations

import pytest

from bench import formats
from glassloop.model.loader import ModelFiles


@pytest.mark.parametrize("name", ["Q2_K", "IQ3_S"])
def test_a_model_of_a_type_is_written_and_measured(name, tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "PROMPT", 20)
    monkeypatch.setattr(formats, "STEPS", 2)
    monkeypatch.setattr(formats, "_VOCABULARY", 400)
    path = tmp_path / "model.gguf"
    formats.write_model(path, name, layers=1, dim=256, ffn=256, heads=4, kv_heads=2)
    types = {tensor.format.name for tensor in ModelFiles(path).tensors.values()}
    assert types == {name, "F32", "Q4_K", "Q6_K"}
    assert all(rate > 0 for rate in formats.Ours(path).measure())
