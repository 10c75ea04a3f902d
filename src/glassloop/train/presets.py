"""Settings for common exercises, by name; flags replace their values. Those that train a model further are
fitted to the data and the machine, so that a page of text on a CPU takes minutes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_BYTES = 4  # of text for a token, about
_EPOCHS = 20  # how often a run reads small data
_LEAST_STEPS = 40
_CPU_LENGTH, _CPU_TOKENS = 128, 512  # of a sequence of text on a CPU, and of a step
_SHORT, _SHORT_LR = 200, 1e-3  # steps of a run whose adapter learns at a higher rate, and the rate
FITTED = ("packing", "length", "batch", "accumulate", "steps", "warmup", "lr")  # what `fitted` decides

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


def fitted(
    preset: Mapping[str, Any], flags: Mapping[str, Any], data: Sequence[str], device: str
) -> dict[str, Any]:
    """Returns the settings of a preset that trains a model further, for these data and "cpu" or "cuda": text
    files are cut into sequences, a step reads the data at most once and on a CPU no more than a few hundred
    tokens, small data are read twenty times, and an adapter of few steps learns faster. `flags` has the
    settings that are fixed already."""
    from glassloop.train.sources import find_files, has_text_files, size_in_bytes
    from glassloop.train.token_files import TokenFiles, is_token_folder

    if len(data) == 1 and is_token_folder(Path(data[0])):
        tokens, text = TokenFiles(Path(data[0])).tokens, False
    else:
        files = find_files(data)
        tokens, text = size_in_bytes(files) // _BYTES, has_text_files(files)
    settings: dict[str, Any] = {**preset}
    if text:
        settings["packing"] = "stream"
    most = preset["batch"] * preset["accumulate"] * preset["length"]
    if device == "cpu":
        most = _CPU_TOKENS
        if flags.get("packing", settings["packing"]) == "stream":
            settings["length"] = _CPU_LENGTH
    length = flags.get("length", settings["length"])
    sequences = max(1, min(most, tokens) // length)
    settings["batch"] = min(sequences, preset["batch"])
    batch = flags.get("batch", settings["batch"])
    settings["accumulate"] = max(1, sequences // batch)
    read = batch * flags.get("accumulate", settings["accumulate"]) * length
    settings["steps"] = min(preset["steps"], max(_LEAST_STEPS, -(-_EPOCHS * tokens // read)))
    steps = flags.get("steps", settings["steps"])
    settings["warmup"] = min(preset["warmup"], steps // 10)
    if preset.get("lora_rank") and steps < _SHORT:
        settings["lr"] = _SHORT_LR
    return settings
