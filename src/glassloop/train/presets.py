"""Settings for common exercises, by name. A preset says nothing of the data; flags replace its values."""

from __future__ import annotations

from typing import Any

PRESETS: dict[str, tuple[str, dict[str, Any]]] = {
    "tiny": (
        "0.2M weights, one token per character: a minute on a laptop",
        {
            "tokenizer": "characters",
            "layers": 3,
            "heads": 2,
            "dim": 64,
            "length": 64,
            "batch": 12,
            "steps": 1000,
            "lr": 3e-3,
            "warmup": 50,
            "validation_share": 0.1,
            "validate_every": 250,
        },
    ),
    "characters": (
        "0.8M weights, one token per character: minutes on a laptop",
        # The sizes and rates that nanoGPT publishes for training on a CPU.
        {
            "tokenizer": "characters",
            "layers": 4,
            "heads": 4,
            "dim": 128,
            "ffn_dim": 344,
            "length": 64,
            "batch": 12,
            "steps": 2000,
            "lr": 1e-3,
            "warmup": 100,
            "beta2": 0.99,
            "validation_share": 0.1,
            "validate_every": 250,
            "sample_every": 500,
        },
    ),
    "characters-large": (
        "10.6M weights, one token per character: minutes on a GPU",
        # The sizes and rates that nanoGPT publishes for a GPU. A sixth of its 5,000 steps is enough.
        {
            "tokenizer": "characters",
            "layers": 6,
            "heads": 6,
            "dim": 384,
            "length": 256,
            "batch": 64,
            "steps": 800,
            "lr": 1e-3,
            "warmup": 100,
            "beta2": 0.99,
            "dropout": 0.2,
            "validation_share": 0.1,
            "validate_every": 250,
            "patience": 20,  # more than there are: the run goes to its end and keeps the best weights
            "checkpoint_every": 200,
            "sample_every": 1000,
        },
    ),
    "small": (
        "7M weights with a BPE of 4096 tokens",
        {
            "layers": 8,
            "heads": 8,
            "dim": 256,
            "length": 256,
            "batch": 16,
            "steps": 3000,
            "lr": 1e-3,
            "validate_every": 250,
            "sample_every": 500,
        },
    ),
    "fine-tune": (
        "all weights of a model, gently: --model NAME",
        {
            "length": 512,
            "batch": 4,
            "accumulate": 2,
            "steps": 500,
            "lr": 2e-5,
            "warmup": 20,
            "weight_decay": 0.01,
            "beta2": 0.999,
            "packing": "whole",
        },
    ),
    "lora": (
        "a small adapter beside the weights of a model: --model NAME",
        {
            "length": 512,
            "batch": 4,
            "accumulate": 2,
            "steps": 500,
            "lr": 2e-4,
            "warmup": 20,
            "weight_decay": 0.0,
            "beta2": 0.999,
            "packing": "whole",
            "lora_rank": 16,
            "lora_alpha": 32.0,
        },
    ),
    "look-ahead": (
        "training without the causal mask: a model that may look at the token it has to predict",
        {
            "tokenizer": "characters",
            "layers": 2,
            "heads": 4,
            "dim": 64,
            "length": 64,
            "batch": 16,
            "steps": 1000,
            "lr": 3e-3,
            "look_ahead": True,
            "validation_share": 0.1,
        },
    ),
}
