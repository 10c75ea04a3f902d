"""Tiny models of the families whose options are many, each option of their config drawn at random. A family
is a row here: its classes in transformers, and what may be drawn."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from model.tiny import VOCAB, Tiny

Options = dict[str, Any]


class Drawn(NamedTuple):
    """A family: the beginning of its classes' names, and the choices for each option of its config."""

    classes: str
    options: Mapping[str, Any] = MappingProxyType({})  # option -> choices
    more: Callable[[random.Random, Options], Options] = lambda rng, options: {}
    gguf: str = ""  # its architecture in GGUF


def _layer_types(rng: random.Random, options: Options) -> Options:
    count = options["num_hidden_layers"]
    kinds = ("full_attention", "sliding_attention")
    return {
        "layer_types": [rng.choice(kinds) for _ in range(count)],
        "sliding_window": rng.choice([3, 7, 40]),
    }


def _rope(rng: random.Random, **more: Any) -> Options:
    theta = rng.choice([300.0, 10_000.0])
    kinds: list[Options] = [
        {"rope_type": "default"},
        {"rope_type": "linear", "factor": 2.0},
        {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 16,
            "truncate": rng.random() < 0.5,
        },
        {
            "rope_type": "llama3",
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    ]
    return {"rope_parameters": {**rng.choice(kinds), "rope_theta": theta, **more}}


def _turning(rng: random.Random, options: Options) -> Options:
    return _rope(rng)


def _both(rng: random.Random, options: Options) -> Options:
    return _layer_types(rng, options) | _rope(rng)


def _olmo3(rng: random.Random, options: Options) -> Options:
    full = _rope(rng)["rope_parameters"]
    plain = {"rope_type": "default", "rope_theta": full["rope_theta"]}
    return _layer_types(rng, options) | {
        "rope_parameters": {"full_attention": full, "sliding_attention": plain}
    }


def _phi(rng: random.Random, options: Options) -> Options:
    share = rng.choice([0.5, 1.0])
    pairs = int(options["hidden_size"] / options["num_attention_heads"] * share) // 2
    rope: Options = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": share}
    if rng.random() < 0.7:
        factors = {f"{kind}_factor": [rng.uniform(1, 4) for _ in range(pairs)] for kind in ("short", "long")}
        rope |= {"rope_type": "longrope", "original_max_position_embeddings": 32, **factors}
    return {
        "rope_parameters": rope,
        "original_max_position_embeddings": 32,
        "sliding_window": rng.choice([None, 5]),
    }


def _ministral(rng: random.Random, options: Options) -> Options:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": rng.choice([4, 16])}
    scales = rng.choice([{}, {"mscale": 1.0, "mscale_all_dim": 1.0}, {"mscale": 1.0, "mscale_all_dim": 0.5}])
    growth = {"llama_4_scaling_beta": rng.choice([0.1, 0.5])}
    return {
        "rope_parameters": {
            **yarn,
            **scales,
            **growth,
            "rope_theta": 500.0,
            "beta_fast": 4.0,
            "beta_slow": 1.0,
        }
    }


def _hunyuan(rng: random.Random, options: Options) -> Options:
    if rng.random() < 0.5:
        return _rope(rng)
    return {"rope_parameters": {"rope_type": "dynamic", "alpha": 50.0, "factor": 1.0, "rope_theta": 10_000.0}}


def _gemma4(rng: random.Random, options: Options) -> Options:
    types = ["sliding_attention", "full_attention", rng.choice(["full_attention", "sliding_attention"])]
    local = {"rope_type": "default", "rope_theta": 100.0}
    share = rng.choice([0.25, 0.5, 1.0])
    full = {"rope_type": "proportional", "partial_rotary_factor": share, "rope_theta": 1000.0}
    return {
        "num_hidden_layers": 5,
        "layer_types": [*types, "sliding_attention", "full_attention"],
        "rope_parameters": {"full_attention": full, "sliding_attention": local},
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    }


_BIASES = {"attention_bias": [False, True], "mlp_bias": [False, True]}
DRAWN = {
    "olmo2": Drawn("Olmo2", {"attention_bias": [False, True]}, _turning, "olmo2"),
    "olmo3": Drawn("Olmo3", {"attention_bias": [False, True]}, _olmo3, "olmo2"),
    "phi3": Drawn("Phi3", {}, _phi, "phi3"),
    "granite": Drawn(
        "Granite",
        _BIASES
        | {
            "embedding_multiplier": [1.0, 12.0],
            "logits_scaling": [1.0, 8.0],
            "residual_multiplier": [1.0, 0.22],
            "attention_multiplier": [0.3, 0.0625],
        },
        _turning,
        "granite",
    ),
    "ministral3": Drawn(
        "Ministral3", {"head_dim": [8, 16], "sliding_window": [None, 5]}, _ministral, "mistral3"
    ),
    "hunyuan": Drawn(
        "HunYuanDenseV1", {"attention_bias": [False, True], "head_dim": [8, 16]}, _hunyuan, "hunyuan-dense"
    ),
    "ernie4_5": Drawn("Ernie4_5", {"use_bias": [False, True], "head_dim": [8, 16]}, _turning, "ernie4_5"),
    "seed_oss": Drawn(
        "SeedOss", _BIASES | {"attention_out_bias": [False, True], "head_dim": [8, 16]}, _turning, "seed_oss"
    ),
    "exaone4": Drawn("Exaone4", {}, _both, "exaone4"),
    "cohere2": Drawn(
        "Cohere2", {"attention_bias": [False, True], "logit_scale": [0.0625, 1.0]}, _both, "cohere2"
    ),
    "gemma4": Drawn(
        "Gemma4",
        {
            "hidden_size_per_layer_input": [0],
            "head_dim": [8],
            "global_head_dim": [16, 8],
            "attention_k_eq_v": [False, True],
            "num_global_key_value_heads": [1, 2],
            "num_kv_shared_layers": [0, 1, 2],
            "use_double_wide_mlp": [False, True],
            "final_logit_softcapping": [None, 5.0],
            "sliding_window": [3, 40],
        },
        _gemma4,
        "gemma4",
    ),
    "nemotron": Drawn("Nemotron", _BIASES, gguf="nemotron"),
    "starcoder2": Drawn(
        "Starcoder2", {"use_bias": [False, True], "sliding_window": [None, 5]}, _turning, "starcoder2"
    ),
}


def draw(name: str, seed: int) -> Tiny:
    """Returns a model of a family whose options the seed decides."""
    rng, family = random.Random(f"{name} {seed}"), DRAWN[name]
    heads = rng.choice([4, 6])
    options: Options = {
        "vocab_size": VOCAB,
        "hidden_size": 48,
        "intermediate_size": rng.choice([72, 80]),
        "num_hidden_layers": rng.choice([2, 4]),
        "num_attention_heads": heads,
        "num_key_value_heads": rng.choice([each for each in (1, 2, 3, heads) if heads % each == 0]),
        "max_position_embeddings": 64,
        "tie_word_embeddings": rng.random() < 0.5,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    options |= {option: rng.choice(choices) for option, choices in family.options.items()}
    options |= family.more(rng, options)
    config = "Gemma4TextConfig" if name == "gemma4" else f"{family.classes}Config"
    return Tiny(f"{name}-{seed}", f"{family.classes}ForCausalLM", config, options)
