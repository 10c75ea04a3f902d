"""Each family written as GGUF gives the logits that `transformers` gives for the original."""

from __future__ import annotations

import pytest
from model.test_families import _assert_close, _oracle, _prompt
from model.tiny import TINY, make
from model.tiny_gguf import write_gguf

from glassloop.model.cache import Branches
from glassloop.model.loader import ModelFiles
from glassloop.ops.reference import ReferenceOps

ARCHITECTURES = {
    "gpt2": "gpt2",
    "llama": "llama",
    "llama-tied": "llama",
    "llama-biases": "llama",
    "llama-linear": "llama",
    "llama-llama3": "llama",
    "llama-yarn": "llama",
    "mistral": "llama",
    "smollm3": "smollm3",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma2": "gemma2",
    "gemma3": "gemma3",
    "gemma3-linear": "gemma3",
    "qwen3moe": "qwen3moe",
    "qwen2moe": "qwen2moe",
    "mixtral": "llama",
    "olmoe": "olmoe",
    "gpt-oss": "gpt-oss",
    "glm4moe": "glm4moe",
    "glm4moe-without-norms": "glm4moe",
    "minimax-m2": "minimax-m2",
    "granitemoe": "granitemoe",
    "ernie4_5-moe": "ernie4_5-moe",
    "hunyuan-moe": "hunyuan-moe",
    "lfm2-adjusted": "lfm2",
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_logits_equal_transformers(name, tmp_path):
    tiny = next(tiny for tiny in TINY if tiny.name == name)
    if name == "gemma2":  # GGUF cannot say anything but the head dim here
        tiny = type(tiny)(**vars(tiny) | {"settings": tiny.settings | {"query_pre_attn_scalar": 16}})
    if name == "gpt-oss":  # nor of the limit of its experts
        tiny = type(tiny)(**vars(tiny) | {"settings": tiny.settings | {"swiglu_limit": 7.0}})
    theirs = make(tiny, tmp_path / "hf")
    write_gguf(theirs, tmp_path / "tiny.gguf", ARCHITECTURES[name])
    ours = ModelFiles(tmp_path / "tiny.gguf").transformer(ReferenceOps())
    ids = _prompt(33)
    _assert_close(Branches(ours, 1024).forward([(0, 0, ids)], every_logit=True), _oracle(theirs, ids))


def test_half_precision_tensors(tmp_path):
    tiny = next(tiny for tiny in TINY if tiny.name == "llama")
    theirs = make(tiny, tmp_path / "hf")
    for parameter in theirs.parameters():
        if parameter.ndim == 2:
            parameter.data = parameter.data.half().float()
    write_gguf(theirs, tmp_path / "tiny.gguf", "llama", half=True)
    files = ModelFiles(tmp_path / "tiny.gguf")
    assert {tensor.format.name for tensor in files.tensors.values()} == {"F16", "F32"}
    ours = files.transformer(ReferenceOps())
    ids = _prompt(9)
    _assert_close(Branches(ours, 1024).forward([(0, 0, ids)], every_logit=True), _oracle(theirs, ids))
