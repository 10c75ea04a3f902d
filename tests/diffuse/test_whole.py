"""Models for whole masked texts, in the layouts of LLaDA and Dream, against `transformers` with attention in
both directions: the same logits from every row, and the same text from a whole loop of passes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from engine.random_runs import SmallLLM
from engine.small import loop
from safetensors.torch import save_file

from glassloop import GlassloopError, Sampling
from glassloop.decode.diffusion import Diffusion
from glassloop.engine.loading import LoadedModel
from glassloop.engine.local import LocalModel
from glassloop.errors import ModelError
from glassloop.model.loader import ModelFiles
from glassloop.ops import choose_ops
from glassloop.train.hf_layout import hf_config

VOCAB, MASK = 257, 7
ONE_BY_ONE = Diffusion(block=6, threshold=None, most=1)
_NAMES = {
    "model.embed_tokens": "model.transformer.wte",
    "model.norm": "model.transformer.ln_f",
    "lm_head": "model.transformer.ff_out",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ff_norm",
    "self_attn.o_proj": "attn_out",
    "self_attn.": "",
    "mlp.gate_proj": "ff_proj",
    "mlp.up_proj": "up_proj",
    "mlp.down_proj": "ff_out",
    "model.layers": "model.transformer.blocks",
}
_SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 200,
    "rms_norm_eps": 1e-5,
}


def _make(kind: str, folder: Path) -> Any:
    """A random model, written in the layout of LLaDA or of Dream; it is returned as `transformers` has it."""
    torch.manual_seed(3)
    family = "Llama" if kind == "llada" else "Qwen2"
    config = getattr(transformers, f"{family}Config")(**_SIZES, tie_word_embeddings=False)
    model = getattr(transformers, f"{family}ForCausalLM")(config).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            shift = 1.0 if "norm" in name else 0.0
            parameter.copy_(torch.randn_like(parameter) * (0.25 if parameter.ndim > 1 else 0.2) + shift)
    tensors = {}
    for name, tensor in model.state_dict().items():
        if kind == "llada":
            for theirs, ours in _NAMES.items():
                name = name.replace(theirs, ours)
        tensors[name] = tensor.contiguous()
    values = {**_SIZES, "model_type": "Dream", "rope_theta": 10000.0, "tie_word_embeddings": False}
    if kind == "llada":
        values = {
            "model_type": "llada",
            "vocab_size": VOCAB,
            "d_model": 48,
            "mlp_hidden_size": 80,
            "n_layers": 3,
            "n_heads": 6,
            "n_kv_heads": 2,
            "max_sequence_length": 200,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "block_type": "llama",
            "layer_norm_type": "rms",
            "rope": True,
            "include_bias": False,
            "include_qkv_bias": False,
            "weight_tying": False,
            "alibi": False,
            "activation_type": "silu",
            "attention_layer_norm": False,
        }
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(values | {"mask_token_id": MASK}))
    save_file(tensors, folder / "model.safetensors")
    return model


class WholeLLM(SmallLLM):
    def __init__(self, folder: Path, ops: str) -> None:
        transformer = ModelFiles(folder).transformer(choose_ops(ops))
        LocalModel.__init__(self, LoadedModel(folder.name, loop(transformer)))


@pytest.fixture(scope="module", params=["llada", "Dream"])
def made(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / request.param
    return request.param, _make(request.param, folder), folder


def _oracle(kind: str, model: Any, text: list[int]) -> np.ndarray:
    """The logits of each place of a text: every row sees every row."""
    with torch.no_grad():
        mask = torch.zeros(1, 1, len(text), len(text))
        logits = model(torch.tensor([text]), attention_mask=mask).logits[0].numpy()
    return logits if kind == "llada" else np.concatenate([logits[:1], logits[:-1]])


def _written(kind: str, model: Any, prompt: list[int], count: int, block: int) -> list[int]:
    """The plain loop: blocks from left to right, in each pass the surest place gets its likeliest token."""
    text = list(prompt)
    while len(text) < len(prompt) + count:
        start = len(text)
        text += [MASK] * min(block, len(prompt) + count - start)
        while MASK in text[start:]:
            logits = torch.from_numpy(_oracle(kind, model, text).astype(np.float64))
            chances = logits.softmax(-1)
            places = [place for place in range(start, len(text)) if text[place] == MASK]
            best = max(places, key=lambda place: chances[place].max())
            row = logits[best].clone()
            row[MASK] = -torch.inf
            text[best] = int(row.argmax())
    return text[len(prompt) :]


def test_it_is_not_written_to_a_folder(made):
    kind, _, folder = made
    with pytest.raises(ModelError, match=f"^{kind.lower()} models are read, but not written to a folder$"):
        hf_config(ModelFiles(folder).config)


@pytest.mark.parametrize("ops", ["reference", "native"])
def test_the_text_is_that_of_the_plain_loop(made, ops):
    kind, model, folder = made
    llm = WholeLLM(folder, ops)
    rng = np.random.default_rng(1)
    prompt = [token if token != MASK else 8 for token in rng.integers(0, 256, 37).tolist()]
    sampling = Sampling(temperature=0, max_tokens=14, ignore_eos=True, seed=1)
    run = llm.diffuse(prompt, sampling, diffusion=ONE_BY_ONE)
    expected = _written(kind, model, prompt, 14, 6)
    if ops == "reference":
        assert run.token_ids == expected
        text = [*prompt, *[MASK] * 6]
        logits = _oracle(kind, model, text).astype(np.float64)
        first = run.passes[0].filled[0]
        row = logits[len(prompt) + first.at]
        assert first.raw_logprob == pytest.approx(row[first.id] - np.logaddexp.reduce(row), abs=1e-3)
    else:  # 16-bit keys: nearly all choices are the same
        assert run.token_ids[:6] == expected[:6]
    assert llm.diffuse(prompt, sampling, diffusion=ONE_BY_ONE).tokens == run.tokens
    llm.close()


def test_a_text_may_be_longer_than_a_step(made):
    """All of its rows are computed in one step, whatever the usual size of one is."""
    _, _, folder = made
    llm = WholeLLM(folder, "native")
    llm.engine.loop.scheduler._ops = type(
        "Few", (), {"step_rows": 40, "rows_beside": 10, "most_running": 64}
    )()
    sampling = Sampling(seed=1, n=2, max_tokens=12)
    found = llm.diffuse([65] * 60, sampling, diffusion=ONE_BY_ONE).samples
    other = WholeLLM(folder, "native")
    assert [run.tokens for run in found] == [
        run.tokens for run in other.diffuse([65] * 60, sampling, diffusion=ONE_BY_ONE).samples
    ]
    llm.close()
    other.close()


def test_it_is_the_same_beside_other_texts(made):
    _, _, folder = made
    llm = WholeLLM(folder, "native")
    sampling, options = Sampling(seed=1, n=4, max_tokens=12), Diffusion(block=6, threshold=0.2)
    together = llm.diffuse(list(b"hello there"), sampling, diffusion=options).samples
    for run in together:
        again = llm.diffuse(list(b"hello there"), sampling, diffusion=options).samples[run.sample]
        assert again.tokens == run.tokens
    assert len({tuple(run.token_ids) for run in together}) == 4
    alone = llm.diffuse(list(b"hello there"), Sampling(seed=1, max_tokens=12), diffusion=options)
    assert alone.tokens == together[0].tokens
    llm.close()


def test_such_a_model_does_not_write_from_left_to_right(made):
    _, _, folder = made
    llm = WholeLLM(folder, "native")
    with pytest.raises(GlassloopError, match="fills masks"):
        llm.generate(list(b"hello"))
    with pytest.raises(GlassloopError, match="made for masks alone"):
        llm.diffuse(list(b"hello"), diffusion=Diffusion(revise=1, revise_by="likelihood"))
    llm.close()


@pytest.mark.parametrize("token", [None, -1, "x", VOCAB])
def test_a_config_without_its_mask_is_refused(made, token, tmp_path):
    _, _, folder = made
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    values = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(values | {"mask_token_id": token}))
    with pytest.raises(ModelError, match="mask_token"):
        ModelFiles(tmp_path)
