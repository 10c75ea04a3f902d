"""What comes out goes in: trained models are loaded by `LLM` and by transformers, with the same tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from model.test_families import _assert_close, _prompt
from model.tiny import DENSE, TINY, make
from train.small import text_file, tiny_run

from glassloop import LLM
from glassloop.errors import GlassloopError
from glassloop.model.cache import Branches
from glassloop.model.config import DenseConfig
from glassloop.model.loader import ModelFiles
from glassloop.ops.quant import BF16, F16, dequantize, quantize
from glassloop.ops.reference import ReferenceOps
from glassloop.train.convert import export
from glassloop.train.gguf_file import write_gguf
from glassloop.train.hf_layout import hf_config
from glassloop.train.train import train

PROMPT = "A cat "
COUNT = 12


def _greedy(path, **options) -> list[int]:
    run = LLM(path, **options).generate(PROMPT, temperature=0, max_tokens=COUNT, ignore_eos=True)
    return [token.id for token in run.tokens]


@pytest.fixture(scope="module", params=["llama", "gpt2", "qwen3"])
def trained(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    config = tiny_run(
        text_file(folder), family=request.param, steps=30, validate_every=0, checkpoint_every=30
    )
    return train(config, folder / "run", quiet=True).folder


def test_llm_and_transformers_write_the_same_tokens(trained):
    theirs = transformers.AutoModelForCausalLM.from_pretrained(trained)
    tokenizer = transformers.AutoTokenizer.from_pretrained(trained)
    ids = tokenizer(PROMPT, return_tensors="pt").input_ids
    assert ids[0].tolist() == ModelFiles(trained).tokenizer().encode(PROMPT)
    out = theirs.generate(ids, max_new_tokens=COUNT, min_new_tokens=COUNT, do_sample=False)
    expected = out[0, ids.shape[1] :].tolist()
    assert _greedy(trained, ops="reference") == expected
    assert _greedy(trained) == expected


@pytest.mark.parametrize("format", ["f32", "q8", "q4"])
def test_gguf_is_the_same_model(trained, format, tmp_path):
    """A quantized file has the very bits that the engine's own quantization on load makes."""
    path = export(str(trained), tmp_path / "model.gguf", format)
    weights = None if format == "f32" else format
    assert _greedy(path) == _greedy(trained, weights=weights)
    files, original = ModelFiles(path), ModelFiles(trained)
    found = {name: tensor.float32() for name, tensor in files.weights.items()}
    if format == "f32":
        for name, tensor in original.weights.items():
            assert np.array_equal(found[name], tensor.float32())
    assert files.tokenizer().encode(PROMPT) == original.tokenizer().encode(PROMPT)
    assert files.tokenizer().eos_ids == original.tokenizer().eos_ids


def test_gguf_is_read_by_the_gguf_package(trained, tmp_path):
    import gguf

    path = export(str(trained), tmp_path / "model.gguf", "q8")
    reader = gguf.GGUFReader(path)
    weights = {tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type) for tensor in reader.tensors}
    ours = ModelFiles(path)
    embedding = ours.weights["token_embedding.weight"].float32()
    assert np.array_equal(weights["token_embd.weight"], embedding)
    assert reader.fields["general.architecture"].contents() == ours.metadata["general.architecture"]


@pytest.mark.parametrize("format", ["f16", "bf16"])
def test_half_precision_and_back(trained, format, tmp_path):
    path = export(str(trained), tmp_path / "folder", format)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(path)
    assert theirs.dtype is {"f16": torch.float16, "bf16": torch.bfloat16}[format]
    again = ModelFiles(export(str(path), tmp_path / "again", "f32"))
    for name, tensor in ModelFiles(path).weights.items():
        assert np.array_equal(again.weights[name].float32(), tensor.float32())


def test_a_model_with_experts_is_not_written(tmp_path):
    make(next(tiny for tiny in TINY if tiny.name == "qwen3moe"), tmp_path / "hf")
    files = ModelFiles(tmp_path / "hf")
    weights = {name: tensor.float32() for name, tensor in files.weights.items()}
    with pytest.raises(GlassloopError, match="qwen3moe models are read, but not written to GGUF"):
        write_gguf(tmp_path / "tiny.gguf", files, weights, "F32")
    with pytest.raises(GlassloopError, match="qwen3moe models are read, but not written to a folder"):
        hf_config(files.config)


@pytest.mark.parametrize("tiny", DENSE, ids=lambda tiny: tiny.name)
def test_every_family_as_gguf_or_refused(tiny, tmp_path):
    make(tiny, tmp_path / "hf")
    files = ModelFiles(tmp_path / "hf")
    weights = {name: tensor.float32() for name, tensor in files.weights.items()}
    path = tmp_path / "tiny.gguf"
    if tiny.name in ("openai-gpt", "xglm", "smollm3-interval"):
        with pytest.raises(GlassloopError, match=r"no form in GGUF|cannot express"):
            write_gguf(path, files, weights, "F32")
        return
    dense = [isinstance(layer.feed_forward, DenseConfig) for layer in files.config.layers]
    if files.config.is_recurrent or not all(dense):
        with pytest.raises(GlassloopError, match="not written to GGUF"):
            write_gguf(path, files, weights, "F32")
        return
    write_gguf(path, files, weights, "F32")
    ids = _prompt(33)
    ours, again = (
        Branches(each.transformer(ReferenceOps()), 64).forward([(0, 0, ids)], every_logit=True)
        for each in (files, ModelFiles(path))
    )
    _assert_close(again, ours)


def test_rounding_to_half_precision_is_that_of_torch():
    random = np.random.default_rng(0)
    values = (random.standard_normal(5000) * 10.0 ** random.integers(-30, 30, 5000)).astype(np.float32)
    values = np.concatenate([values, np.array([0, -0.0, np.inf, -np.inf, np.nan, 1.00390625], np.float32)])
    for format, kind in ((F16, torch.float16), (BF16, torch.bfloat16)):
        expected = torch.from_numpy(values).to(kind).float().numpy()
        assert np.array_equal(dequantize(format, quantize(format, values)), expected, equal_nan=True)


def test_default_model_has_a_tokenizer_json(tmp_path):
    """The tokenizer of a GGUF file, written as tokenizer.json, gives the same tokens here and there."""
    from glassloop.model.registry import DEFAULT_MODEL, fetch

    files = ModelFiles(fetch(DEFAULT_MODEL))
    tokenizer = files.tokenizer()
    for name, text in tokenizer.json_files().items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    again = type(tokenizer).from_json_folder(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    chat = [{"role": "user", "content": "Hi 123 <|im_end|>"}]
    assert again.encode_chat(chat) == tokenizer.encode_chat(chat)
    assert again.eos_ids == tokenizer.eos_ids and again.vocab_size == tokenizer.vocab_size
    for text in ("Hello, world 2024!", "ünï\n\n  code", "<|im_start|>user"):
        assert again.encode(text) == tokenizer.encode(text) == theirs.encode(text)


def test_a_folder_that_is_no_model_is_not_replaced(trained, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(GlassloopError, match="exists and is not a model"):
        export(str(trained), tmp_path / "mine")
    assert (tmp_path / "mine" / "letter.txt").exists()
    with pytest.raises(GlassloopError, match="only GGUF has"):
        export(str(trained), tmp_path / "other", "q8")
