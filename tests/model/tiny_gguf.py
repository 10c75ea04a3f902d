"""Writes a tiny `transformers` model as GGUF with the `gguf` package, laid out as converters do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    **dict.fromkeys(("mlp.gate", "mlp.router", "block_sparse_moe.router", "mlp.gate.wg"), "ffn_gate_inp"),
    **dict.fromkeys(("mlp", "mlp.gate.moe_statics"), "exp_probs_b"),
    "self_attn": "attn_sinks",
    "self_attn.query_layernorm": "attn_q_norm",
    "self_attn.key_layernorm": "attn_k_norm",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    **{
        f"mlp.{block}.{name}_proj": f"ffn_{name}_shexp"
        for block in ("shared_expert", "shared_experts", "shared_mlp")
        for name in ("gate", "up", "down")
    },
    "post_attention_layernorm": "ffn_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "operator_norm": "attn_norm",
    "self_attn.out_proj": "attn_output",
    "self_attn.q_layernorm": "attn_q_norm",
    "self_attn.k_layernorm": "attn_k_norm",
    "ffn_norm": "ffn_norm",
    "feed_forward.w1": "ffn_gate",
    "feed_forward.w2": "ffn_down",
    "feed_forward.w3": "ffn_up",
    "conv.conv": "shortconv.conv",
    "conv.in_proj": "shortconv.in_proj",
    "conv.out_proj": "shortconv.out_proj",
    "ln_1": "attn_norm",
    "ln_2": "ffn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}
_TOP = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "model.embedding_norm": "token_embd_norm",
    "lm_head": "output",
    "transformer.wte": "token_embd",
    "transformer.wpe": "position_embd",
    "transformer.ln_f": "output_norm",
}


def write_gguf(model: Any, path: Path, architecture: str, half: bool = False) -> None:
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    gpt, gemma = architecture == "gpt2", architecture.startswith("gemma")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_context_length(config.max_position_embeddings)
    ffn_dim = 4 * config.hidden_size if gpt else config.intermediate_size
    if architecture == "lfm2":
        ffn_dim = model.model.layers[0].feed_forward.w1.weight.shape[0]
    writer.add_feed_forward_length(ffn_dim)
    writer.add_head_count(config.num_attention_heads)
    if gpt:
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
    else:
        _add_rotary(writer, config, architecture)

    if hasattr(config, "num_experts_per_tok"):
        _add_routing(writer, config)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor.to(torch.float32).numpy()
        if ".conv.conv." in name and values.ndim == 3:
            values = values[:, 0]
        stem, suffix = name.rsplit(".", 1)
        if stem.endswith(".experts"):
            _add_experts(writer, f"blk.{stem.split('.')[2]}", suffix, values, half)
            continue
        if suffix == "e_score_correction_bias":
            stem, suffix, values = stem.replace("mlp.gate", "mlp"), "bias", values.reshape(-1)
            stem = stem.removesuffix(".moe_statics")
        elif suffix == "sinks":
            suffix = "weight"
        theirs = _TOP.get(stem)
        if theirs is None:
            _, _, index, kind = stem.split(".", 3)
            theirs = f"blk.{index}.{_LAYER[kind]}"
            if gemma and kind == "post_attention_layernorm":
                theirs = f"blk.{index}.post_attention_norm"
            if architecture in ("gpt-oss", "glm4moe") and kind == "post_attention_layernorm":
                theirs = f"blk.{index}.post_attention_norm"
            if architecture in ("llama", "smollm3", "granitemoe") and kind in (
                "self_attn.q_proj",
                "self_attn.k_proj",
            ):
                values = _interleaved(values, config.head_dim)
        if gpt and ".c_" in name and values.ndim == 2:
            values = values.T
        if gemma and "norm" in theirs:
            values = values + np.float32(1)
        writer.add_tensor(
            f"{theirs}.{suffix}",
            np.ascontiguousarray(values, np.float16 if half and values.ndim == 2 else np.float32),
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_experts(writer: gguf.GGUFWriter, at: str, kind: str, values: np.ndarray, half: bool) -> None:
    """The stacked matrices of a layer's experts: [experts, out, in]."""
    bias, in_turn = kind.endswith("_bias"), writer.arch == "gpt-oss"  # gate and up
    if in_turn and not bias:
        values = values.swapaxes(1, 2)
    parts = {"down": values}
    if kind.startswith("gate_up_proj"):
        halves = (values[:, ::2], values[:, 1::2]) if in_turn else np.split(values, 2, axis=1)
        parts = dict(zip(("gate", "up"), halves, strict=True))
    for name, part in parts.items():
        part = np.ascontiguousarray(part, np.float16 if half and not bias else np.float32)
        writer.add_tensor(f"{at}.ffn_{name}_exps.{'bias' if bias else 'weight'}", part)


def _add_routing(writer: gguf.GGUFWriter, config: Any) -> None:
    names = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
    writer.add_expert_count(next(getattr(config, name) for name in names if hasattr(config, name)))
    writer.add_expert_used_count(config.num_experts_per_tok)
    if config.model_type in ("glm4_moe", "minimax_m2"):
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if config.model_type == "glm4_moe":
        writer.add_expert_weights_norm(config.norm_topk_prob)
        writer.add_expert_weights_scale(config.routed_scaling_factor)
        writer.add_expert_group_count(config.n_group)
        writer.add_expert_group_used_count(config.topk_group)
    if config.model_type == "granitemoe":
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
        writer.add_attention_scale(config.attention_multiplier)
    if getattr(config, "moe_intermediate_size", None):
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)


def _add_rotary(writer: gguf.GGUFWriter, config: Any, architecture: str) -> None:
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    config.head_dim = head_dim
    writer.add_layer_norm_rms_eps(config.norm_eps if architecture == "lfm2" else config.rms_norm_eps)
    kv_heads: Any = config.num_key_value_heads
    if "conv" in (getattr(config, "layer_types", None) or ()):
        kv_heads = [kv_heads if kind == "full_attention" else 0 for kind in config.layer_types]
        writer.add_shortconv_l_cache(config.conv_L_cache)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1)))
    if architecture in ("gemma2", "gemma3", "llama", "gpt-oss") and getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
    if getattr(config, "attn_logit_softcapping", None):
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
    if getattr(config, "final_logit_softcapping", None):
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", _llama3_divisors(rope, head_dim))
    elif rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    elif rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])


def _llama3_divisors(rope: dict[str, Any], head_dim: int) -> np.ndarray:
    """By the definition, one frequency at a time."""
    divisors = []
    for index in range(head_dim // 2):
        wavelength = 2 * np.pi * rope["rope_theta"] ** (2 * index / head_dim)
        turns = rope["original_max_position_embeddings"] / wavelength
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        if turns < low:
            divisors.append(rope["factor"])
        elif turns > high:
            divisors.append(1.0)
        else:
            smooth = (turns - low) / (high - low)
            divisors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(divisors, np.float32)


def _interleaved(values: np.ndarray, head_dim: int) -> np.ndarray:
    """The two halves of each head, which rotate together, row by row in turn."""
    heads = values.reshape(-1, 2, head_dim // 2, *values.shape[1:])
    return heads.swapaxes(1, 2).reshape(values.shape)
