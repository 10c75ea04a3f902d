"""A new model: its config from sizes, and its first weights from a seed."""

from __future__ import annotations

from typing import Any

import numpy as np

from glassloop.model.config import ModelConfig
from glassloop.model.config_hf import config_from_json
from glassloop.ops.tensor import Tensor
from glassloop.train.config import TrainConfig


def new_config(config: TrainConfig, vocab_size: int) -> ModelConfig:
    """Returns the config of the new model that a training config describes."""
    kv_heads = config.kv_heads or config.heads
    if config.family == "gpt2":
        values: dict[str, Any] = {
            "n_embd": config.dim,
            "n_layer": config.layers,
            "n_head": config.heads,
            "n_positions": config.length,
            "n_inner": config.ffn_dim or 4 * config.dim,
        }
    else:
        values = {
            "hidden_size": config.dim,
            "num_hidden_layers": config.layers,
            "num_attention_heads": config.heads,
            "num_key_value_heads": kv_heads,
            "head_dim": config.dim // config.heads,
            "max_position_embeddings": config.length,
            # A gated feed-forward has three matrices instead of two: 8/3 makes it as large as 4 does. A
            # multiple of 32 can be quantized.
            "intermediate_size": config.ffn_dim or -(-8 * config.dim // 96) * 32,
            "rms_norm_eps": 1e-5,
            "sliding_window": config.length if config.family == "mistral" else None,
        }
    values |= {
        "model_type": config.family,
        "vocab_size": vocab_size,
        "tie_word_embeddings": config.tied,
    }
    return config_from_json("the new model", values)[1]


def first_weights(config: ModelConfig, seed: int) -> dict[str, Tensor]:
    """Returns random weights: matrices from a normal distribution, narrower where a sublayer adds to the
    residual stream, so that the stream does not grow with the number of layers; norms 1 and biases 0. The
    spread falls with the width (Nguyen and Salazar, 2019): a fixed one such as 0.02 fits widths near 1,000,
    and narrow models would need hundreds of steps to leave it behind."""
    random = np.random.default_rng(seed)
    wide = (2 / (5 * config.dim)) ** 0.5
    narrow = wide / (2 * len(config.layers)) ** 0.5
    weights: dict[str, Tensor] = {}
    for name, shape in config.shapes().items():
        if len(shape) == 2:
            spread = narrow if name.endswith((".o.weight", ".down.weight")) else wide
            values = random.standard_normal(shape, np.float32) * np.float32(spread)
        elif name.endswith("_norm.weight"):
            values = np.ones(shape, np.float32)
        else:
            values = np.zeros(shape, np.float32)
        weights[name] = Tensor.of(name, values)
    return weights
