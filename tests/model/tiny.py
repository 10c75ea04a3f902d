"""Tiny randomly initialised models of every family, made by `transformers` and saved as safetensors: the
oracle of the forward pass. A new family is a row here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

VOCAB = 97


@dataclass(frozen=True)
class Tiny:
    name: str
    model: str  # class in transformers
    config: str
    settings: dict[str, Any]
    # Files as they were written before transformers 5: these keys of config.json replaced or (None) removed.
    old_spelling: dict[str, Any] = field(default_factory=dict)


_SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_HEAD = {"head_dim": 16}
_CONV = {"layer_types": ["conv", "full_attention", "conv", "conv"]}
_GPT = {"vocab_size": VOCAB, "n_embd": 48, "n_layer": 3, "n_head": 4, "n_positions": 64, "bos_token_id": 1}


def _llama(name: str, settings: dict[str, Any], old: dict[str, Any] | None = None) -> Tiny:
    return Tiny(name, "LlamaForCausalLM", "LlamaConfig", _SIZES | {"head_dim": 8} | settings, old or {})


def _rope(kind: str, **settings: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 500.0, **settings}}


def _old_rope(kind: str, **settings: Any) -> dict[str, Any]:
    return {"rope_parameters": None, "rope_theta": 500.0, "rope_scaling": {"rope_type": kind, **settings}}


_EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
_LLAMA3 = {
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_YARN = {"factor": 4.0, "original_max_position_embeddings": 16}

TINY = [
    Tiny("gpt2", "GPT2LMHeadModel", "GPT2Config", _GPT | {"eos_token_id": 2}),
    Tiny("openai-gpt", "OpenAIGPTLMHeadModel", "OpenAIGPTConfig", _GPT),
    Tiny(
        "xglm",
        "XGLMForCausalLM",
        "XGLMConfig",
        {"vocab_size": VOCAB, "d_model": 48, "ffn_dim": 80, "num_layers": 3, "attention_heads": 4}
        | {"max_position_embeddings": 64, "pad_token_id": 1},
    ),
    _llama("llama", {}),
    _llama("llama-tied", {"tie_word_embeddings": True}),
    _llama("llama-biases", {"attention_bias": True, "mlp_bias": True}),
    _llama("llama-all-heads", {"num_key_value_heads": 6}),
    _llama("llama-linear", _rope("linear", factor=2.0), _old_rope("linear", factor=2.0)),
    _llama("llama-llama3", _rope("llama3", **_LLAMA3), _old_rope("llama3", **_LLAMA3)),
    _llama("llama-yarn", _rope("yarn", **_YARN), _old_rope("yarn", **_YARN)),
    _llama(
        "llama-yarn-attention", _rope("yarn", **_YARN, attention_factor=1.3, beta_fast=8.0, beta_slow=2.0)
    ),
    Tiny(
        "mistral",
        "MistralForCausalLM",
        "MistralConfig",
        _SIZES | {"head_dim": 8, "sliding_window": 7},
        {"rope_parameters": None, "rope_theta": 10000.0},
    ),
    Tiny("mistral-no-window", "MistralForCausalLM", "MistralConfig", _SIZES | {"sliding_window": None}),
    Tiny("smollm3", "SmolLM3ForCausalLM", "SmolLM3Config", _SIZES),
    Tiny(
        "smollm3-interval",
        "SmolLM3ForCausalLM",
        "SmolLM3Config",
        _SIZES | {"no_rope_layer_interval": 2},
        {"no_rope_layers": None, "layer_types": None, "rope_parameters": None, "rope_theta": 2_000_000.0},
    ),
    Tiny("qwen2", "Qwen2ForCausalLM", "Qwen2Config", _SIZES),
    Tiny(
        "qwen2-window",
        "Qwen2ForCausalLM",
        "Qwen2Config",
        _SIZES | {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2},
        {"layer_types": None},
    ),
    Tiny("qwen3", "Qwen3ForCausalLM", "Qwen3Config", _SIZES | _HEAD),
    Tiny(
        "lfm2",
        "Lfm2ForCausalLM",
        "Lfm2Config",
        _SIZES | _CONV | {"conv_bias": True, "block_auto_adjust_ff_dim": False},
    ),
    Tiny(
        "lfm2-adjusted",
        "Lfm2ForCausalLM",
        "Lfm2Config",
        _SIZES
        | _CONV
        | {"conv_L_cache": 4, "block_multiple_of": 24, "block_ffn_dim_multiplier": 1.2}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0}},
        {"rope_parameters": None, "rope_theta": 1_000_000.0, "layer_types": None, "full_attn_idxs": [1]},
    ),
    Tiny(
        "gemma2",
        "Gemma2ForCausalLM",
        "Gemma2Config",
        _SIZES | _HEAD | {"sliding_window": 6, "query_pre_attn_scalar": 12, "attn_logit_softcapping": 2.0},
        {"layer_types": None, "rope_parameters": None, "rope_theta": 10000.0},
    ),
    Tiny(
        "gemma3",
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        _SIZES | _HEAD | {"num_hidden_layers": 7, "sliding_window": 6, "query_pre_attn_scalar": 16},
        {
            "layer_types": None,
            "rope_parameters": None,
            "rope_theta": 1_000_000.0,
            "rope_local_base_freq": 10_000.0,
            "sliding_window_pattern": 6,
        },
    ),
    Tiny(
        "gemma3-linear",
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        _SIZES
        | _HEAD
        | {
            "num_hidden_layers": 7,
            "sliding_window": 6,
            "query_pre_attn_scalar": 16,
            "final_logit_softcapping": 5.0,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            },
        },
    ),
    Tiny(
        "qwen3moe",
        "Qwen3MoeForCausalLM",
        "Qwen3MoeConfig",
        _SIZES | _HEAD | _EXPERTS | {"norm_topk_prob": True},
    ),
    Tiny(
        "qwen3moe-some-dense",
        "Qwen3MoeForCausalLM",
        "Qwen3MoeConfig",
        _SIZES | _HEAD | _EXPERTS | {"decoder_sparse_step": 2, "mlp_only_layers": [3]},
    ),
    Tiny(
        "qwen2moe",
        "Qwen2MoeForCausalLM",
        "Qwen2MoeConfig",
        _SIZES | _EXPERTS | {"shared_expert_intermediate_size": 56},
    ),
    Tiny("olmoe", "OlmoeForCausalLM", "OlmoeConfig", _SIZES | {"num_experts": 6, "num_experts_per_tok": 2}),
    Tiny(
        "gpt-oss",
        "GptOssForCausalLM",
        "GptOssConfig",
        _SIZES
        | _HEAD
        | {"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 7, "swiglu_limit": 3.0},
    ),
    Tiny(
        "glm4moe",
        "Glm4MoeForCausalLM",
        "Glm4MoeConfig",
        _SIZES
        | _HEAD
        | {"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 40, "n_group": 4}
        | {"topk_group": 2, "routed_scaling_factor": 1.7, "attention_bias": True, "use_qk_norm": True},
    ),
    Tiny(
        "glm4moe-without-norms",
        "Glm4MoeForCausalLM",
        "Glm4MoeConfig",
        _SIZES
        | _HEAD
        | {"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
        | {"n_shared_experts": 2, "first_k_dense_replace": 2, "norm_topk_prob": False},
    ),
    Tiny(
        "minimax-m2",
        "MiniMaxM2ForCausalLM",
        "MiniMaxM2Config",
        _SIZES | _HEAD | {"num_local_experts": 6, "num_experts_per_tok": 2, "rotary_dim": 8},
    ),
    Tiny(
        "granitemoe",
        "GraniteMoeForCausalLM",
        "GraniteMoeConfig",
        _SIZES
        | {"num_local_experts": 6, "num_experts_per_tok": 2, "embedding_multiplier": 3.0}
        | {"logits_scaling": 4.0, "residual_multiplier": 0.5, "attention_multiplier": 0.2},
    ),
    Tiny(
        "ernie4_5-moe",
        "Ernie4_5_MoeForCausalLM",
        "Ernie4_5_MoeConfig",
        _SIZES
        | {"moe_num_experts": 6, "moe_k": 3, "moe_intermediate_size": 40, "moe_layer_interval": 2}
        | {"moe_layer_start_index": 1, "moe_layer_end_index": 3},
    ),
    Tiny(
        "hunyuan-moe",
        "HunYuanMoEV1ForCausalLM",
        "HunYuanMoEV1Config",
        _SIZES | _HEAD | {"num_experts": 6, "moe_topk": 2},
    ),
    Tiny(
        "mixtral",
        "MixtralForCausalLM",
        "MixtralConfig",
        _SIZES | {"head_dim": 8, "num_local_experts": 5, "num_experts_per_tok": 3},
    ),
]


# Models without experts and recurrent layers: those that are trained and written to files too.
DENSE = [
    tiny for tiny in TINY if not any("experts" in key or key.startswith("conv_") for key in tiny.settings)
]


def make(tiny: Tiny, folder: Path, old: bool = False, shard_size: str = "5GB") -> Any:
    """The model, saved to the folder; with `old`, its config.json spelled as published files have it."""
    torch.manual_seed(len(tiny.name))
    config = getattr(transformers, tiny.config)(**tiny.settings)
    model = getattr(transformers, tiny.model)(config).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Initial weights are small, and norms and biases trivial: make every one of them matter.
            scale = 0.3 if parameter.ndim > 1 else 0.2
            shift = 1.0 if "norm" in name or "ln_" in name else 0.0
            if "Gemma" in tiny.model:
                shift = 0.0
            parameter.copy_(torch.randn_like(parameter) * scale + shift)
        for name, buffer in model.named_buffers():
            if "correction_bias" in name:  # by which experts are chosen
                buffer.copy_(torch.randn_like(buffer) * 0.2)
            if name.endswith("layer_scalar"):
                buffer.fill_(0.7)
    model.save_pretrained(folder, max_shard_size=shard_size)
    if old:
        file = folder / "config.json"
        values = json.loads(file.read_text()) | tiny.old_spelling
        file.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))
    return model
