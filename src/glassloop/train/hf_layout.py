"""Writes weights and configs as Hugging Face has them: the inverse of `model/weight_names.py` and
`model/config_hf.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from glassloop.errors import ModelError
from glassloop.model.config import DenseConfig, ModelConfig
from glassloop.model.config_hf import config_from_json
from glassloop.model.families import FAMILIES, ModelFamily
from glassloop.model.rope import LinearScaling, Llama3Scaling, Rope, YarnScaling
from glassloop.model.weight_names import family_of, hf_name
from glassloop.ops.quant import Float32

# The class of transformers that reads a model, by our name for its family.
_CLASSES = {
    "gpt2": "GPT2LMHeadModel",
    "openai-gpt": "OpenAIGPTLMHeadModel",
    "xglm": "XGLMForCausalLM",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
}


def hf_tensors(
    config: ModelConfig, weights: Mapping[str, Float32], *, gradients: bool = False
) -> dict[str, Float32]:
    """Returns the weights of a model as transformers names and stores them: fused, transposed, norms from
    zero, as the family has it. `gradients`: the arrays are gradients of the weights."""
    family = family_of(config)
    tensors: dict[str, Float32] = {}
    fused: dict[str, dict[int, Float32]] = {}
    for name in config.shapes():
        theirs, part = hf_name(config, name)
        values = weights[name]
        if family.norms_from_zero and name.endswith("_norm.weight") and not gradients:
            values = values - np.float32(1)
        if part is None:
            tensors[theirs] = values
        else:
            fused.setdefault(theirs, {})[part.place] = values
    tensors |= {name: np.concatenate([parts[i] for i in sorted(parts)]) for name, parts in fused.items()}
    if family.transposed:
        tensors = {name: v.T if ".c_" in name and v.ndim == 2 else v for name, v in tensors.items()}
    return {name: np.ascontiguousarray(values, np.float32) for name, values in tensors.items()}


def hf_config(config: ModelConfig, extra: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Returns the `config.json` of a model, `extra` added to it. Raises a ModelError if the model has
    something that `config.json` cannot express."""
    family = family_of(config)
    if family.name == "llama" and any(mixer.window for mixer in config.attention_layers):
        family = next(each for each in FAMILIES if each.name == "mistral")
    if family.name not in _CLASSES:
        raise ModelError(f"{config.family} models are read, but not written to a folder")
    mixer, dense = config.attention, config.layers[0].feed_forward
    assert isinstance(dense, DenseConfig), "the families that are written have no experts"
    keys = family.keys
    spelled = {kind: name for name, kind in reversed(list(family.activations.items()))}
    values: dict[str, Any] = {
        "architectures": [_CLASSES[family.name]],
        "model_type": family.types[0],
        keys["vocab_size"]: config.vocab_size,
        keys["dim"]: config.dim,
        keys["ffn_dim"]: dense.ffn_dim,
        keys["layers"]: len(config.layers),
        keys["heads"]: mixer.heads,
        keys["context"]: config.context,
        keys["activation"]: spelled[dense.activation],
        "tie_word_embeddings": config.tied,
        "dtype": "float32",
    }
    if family.norm_eps is None:
        values[keys["norm_eps"]] = config.layers[0].norm.eps
    if family.positions == "rotary":
        values |= {keys["kv_heads"]: mixer.kv_heads, keys["head_dim"]: mixer.head_dim}
        values |= _rotary(config, family)
        values["attention_bias"] = mixer.out_bias
        values["mlp_bias"] = dense.bias
    if family.name == "xglm":
        values["scale_embedding"] = True
    if family.name.startswith("gemma"):
        values["query_pre_attn_scalar"] = _whole(mixer.scale**-2)
        values["attn_logit_softcapping"] = mixer.softcap
        values["final_logit_softcapping"] = config.logit_softcap
    values |= extra or {}
    read_back = config_from_json("config.json", values)[1]
    for name in ("vocab_size", "dim", "context", "layers", "final_norm", "positions", "tied"):
        if getattr(read_back, name) != getattr(config, name):
            raise ModelError(
                f"config.json cannot express the {name} of this {config.family} model; write GGUF instead"
            )
    return values


def _rotary(config: ModelConfig, family: ModelFamily) -> dict[str, Any]:
    mixers = config.attention_layers
    windows = [mixer.window for mixer in mixers]
    window = next((each for each in windows if each is not None), None)
    values: dict[str, Any] = {}
    full = next((m.rope for m in mixers if m.rope and m.window is None), None)
    local = next((m.rope for m in mixers if m.rope and m.window is not None), None)
    if family.local_rope_base is not None:
        values["rope_parameters"] = {
            "full_attention": _rope(full or local, config.head_dim),
            "sliding_attention": _rope(local or full, config.head_dim),
        }
    else:
        values["rope_parameters"] = _rope(full or local, config.head_dim)
    if family.name != "llama":
        values["sliding_window"] = window
        if family.name != "mistral":
            values["layer_types"] = [
                "full_attention" if each is None else "sliding_attention" for each in windows
            ]
        if family.name.startswith("qwen"):
            values["use_sliding_window"] = window is not None
    if family.nope_every is not None:
        values["no_rope_layers"] = [int(mixer.rope is not None) for mixer in mixers]
    return values


def _rope(rope: Rope | None, head_dim: int) -> dict[str, Any]:
    if rope is None:
        return {"rope_type": "default", "rope_theta": 10_000.0}
    values: dict[str, Any] = {"rope_type": "default", "rope_theta": rope.base}
    if rope.dim != head_dim:
        values["partial_rotary_factor"] = rope.dim / head_dim
    match rope.scaling:
        case LinearScaling(factor):
            values |= {"rope_type": "linear", "factor": factor}
        case Llama3Scaling(factor, low, high, context):
            values |= {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": context,
            }
        case YarnScaling(factor, context, fast, slow, sharpness, truncate):
            values |= {
                "rope_type": "yarn",
                "factor": factor,
                "original_max_position_embeddings": context,
                "beta_fast": fast,
                "beta_slow": slow,
                "truncate": truncate,
            }
            if sharpness is not None:
                values["attention_factor"] = sharpness
    return values


def _whole(number: float) -> int | float:
    """Returns a number that is whole up to rounding as an int."""
    return round(number) if abs(number - round(number)) < 1e-9 * abs(number) else number
