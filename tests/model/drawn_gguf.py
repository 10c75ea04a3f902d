"""Writes a model whose options were drawn (`drawn.py`) as GGUF, with the names of the `gguf` package and the
values that llama.cpp's converter writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from model.tiny_gguf import _interleaved, _llama3_divisors

ARCHITECTURES = {str(name): arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}
INTERLEAVED = ("granite", "mistral3")  # whose queries and keys the converter reorders


def write_drawn(model: Any, path: Path, architecture: str) -> None:
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    layers, head_dim = config.num_hidden_layers, _head_dim(config)
    writer.add_block_count(layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_head_count(config.num_attention_heads)
    if architecture == "gemma4":
        _add_layer_sizes(writer, config)
    else:
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    for name in ("layer_norm_eps", "norm_eps", "norm_epsilon"):
        if hasattr(config, name):
            writer.add_layer_norm_eps(getattr(config, name))
    if getattr(config, "final_logit_softcapping", None):
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if hasattr(config, "rms_norm_eps"):
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    _add_rope(writer, config, architecture, head_dim)
    _add_windows(writer, config)
    for name, add in (
        ("attention_multiplier", writer.add_attention_scale),
        ("embedding_multiplier", writer.add_embedding_scale),
        ("residual_multiplier", writer.add_residual_scale),
        ("logits_scaling", writer.add_logit_scale),
        ("logit_scale", writer.add_logit_scale),
    ):
        if hasattr(config, name):
            add(getattr(config, name))
    names = gguf.get_tensor_name_map(ARCHITECTURES[architecture], layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor.to(torch.float32).numpy()
        if architecture in INTERLEAVED and (".q_proj." in name or ".k_proj." in name):
            values = _interleaved(values, head_dim)
        if architecture == "nemotron" and name.endswith("norm.weight"):
            values = values + np.float32(1)
        if name.endswith("layer_scalar"):
            name += ".weight"
        theirs = names.get_name(name, (".weight", ".bias"))
        if name == "lm_head.weight":  # which some architectures never have
            theirs = "output.weight"
        assert theirs is not None, name
        writer.add_tensor(theirs, np.ascontiguousarray(values, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _head_dim(config: Any) -> int:
    if hasattr(config, "num_kv_shared_layers"):  # it differs between layers
        return int(config.per_layer_config[config.layer_types.index("sliding_attention")].head_dim)
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def _add_layer_sizes(writer: gguf.GGUFWriter, config: Any) -> None:
    """Writes what differs between the layers of Gemma 4."""
    count, shared = config.num_hidden_layers, config.num_kv_shared_layers
    layers = [config.per_layer_config[index] for index in range(count)]
    writer.add_head_count_kv([layer.num_key_value_heads for layer in layers])
    times = 2 if config.use_double_wide_mlp else 1
    writer.add_feed_forward_length(
        [config.intermediate_size * (times if index >= count - shared > 0 else 1) for index in range(count)]
    )
    writer.add_shared_kv_layers(shared)
    for kind, add, add_value in (
        ("full_attention", writer.add_key_length, writer.add_value_length),
        ("sliding_attention", writer.add_key_length_swa, writer.add_value_length_swa),
    ):
        head_dim = layers[config.layer_types.index(kind)].head_dim
        add(head_dim)
        add_value(head_dim)


def _add_windows(writer: gguf.GGUFWriter, config: Any) -> None:
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
        kinds = getattr(config, "layer_types", None)
        if kinds is not None:
            writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in kinds])


def _add_rope(writer: gguf.GGUFWriter, config: Any, architecture: str, head_dim: int) -> None:
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    theta = rope["rope_theta"]
    if architecture == "gemma4":
        wide = config.per_layer_config[config.layer_types.index("full_attention")].head_dim
        writer.add_rope_dimension_count(wide)
        writer.add_rope_dimension_count_swa(head_dim)
        writer.add_rope_freq_base(theta)
        writer.add_rope_freq_base_swa(config.rope_parameters["sliding_attention"]["rope_theta"])
        kept = int(rope["partial_rotary_factor"] * wide // 2)
        still = [1e30] * (wide // 2 - kept)
        writer.add_tensor("rope_freqs.weight", np.array([1.0] * kept + still, np.float32))
        return
    turning = int(head_dim * rope.get("partial_rotary_factor", 1.0))
    writer.add_rope_dimension_count(turning)
    match rope["rope_type"]:
        case "dynamic":
            theta *= rope["alpha"] ** (head_dim / (head_dim - 2))
        case "linear":
            writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
            writer.add_rope_scaling_factor(rope["factor"])
        case "llama3":
            writer.add_tensor("rope_freqs.weight", _llama3_divisors(rope, head_dim))
        case "yarn":
            writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
            writer.add_rope_scaling_factor(rope["factor"])
            writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
            writer.add_rope_scaling_yarn_beta_fast(rope.get("beta_fast", 32.0))
            writer.add_rope_scaling_yarn_beta_slow(rope.get("beta_slow", 1.0))
            if "mscale_all_dim" in rope:
                writer.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
        case "longrope":
            original = rope["original_max_position_embeddings"]
            writer.add_rope_scaling_orig_ctx_len(original)
            ratio = config.max_position_embeddings / original
            writer.add_rope_scaling_attn_factors(float(np.sqrt(1 + np.log(ratio) / np.log(original))))
            for kind in ("long", "short"):
                writer.add_tensor(f"rope_factors_{kind}.weight", np.array(rope[f"{kind}_factor"], np.float32))
    if "llama_4_scaling_beta" in rope:
        writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])
    writer.add_rope_freq_base(theta)
