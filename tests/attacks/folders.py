"""Hostile model folders: safetensors, config.json and tokenizer.json of a tiny model with values replaced."""

from __future__ import annotations

import json
import struct
from copy import deepcopy
from functools import cache
from random import Random
from typing import Any

from attacks.tiny import tiny_folder
from attacks.values import dumps, hostile

_FAMILIES = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma2",
    "gemma3_text",
    "gpt2",
    "xglm",
    "smollm3",
    "mamba",
    "",
)
_SETTINGS: dict[str, tuple[Any, ...]] = {
    "model_type": _FAMILIES,
    "max_position_embeddings": (0, 1, 2**24, 2**30, 2**63, -1, 1.5, "x"),
    "num_hidden_layers": (0, 1, 3, 2**31, "2"),
    "vocab_size": (0, 1, 260, 262, 10**9, True),
    "hidden_size": (0, 8, 17, 2**31),
    "num_attention_heads": (0, 1, 3, 2**31),
    "num_key_value_heads": (0, 2, 3, 2**31),
    "head_dim": (0, 7, 8, 2**31, -1),
    "rms_norm_eps": (0, -1, float("nan"), "tiny", 1e300),
    "rope_theta": (0, -1, float("inf"), 1e300, "x"),
    "rope_scaling": (
        {"rope_type": "yarn", "factor": 1e300},
        {"type": "linear", "factor": 0},
        [],
        {"factor": "x"},
    ),
    "rope_parameters": ({"rope_type": "llama3"}, {"rope_type": "longrope"}, {"rope_type": []}),
    "sliding_window": (0, 1, -1, 2**63, "x"),
    "layer_types": ([], ["full_attention"], ["x", "y"], "x", [1, 2]),
    "eos_token_id": (-1, 10**6, [257] * 5000, "x", None, []),
    "tie_word_embeddings": (False, "no", 0),
    "hidden_act": ("mish", 7, None, "gelu"),
}


@cache
def _files() -> dict[str, bytes]:
    return tiny_folder().files()


def mutated(rng: Random) -> dict[str, bytes]:
    """The files of one hostile folder, by name."""
    files = dict(_files())
    for _ in range(rng.choice([1, 1, 1, 2])):
        name, change = rng.choice(_CHANGES)
        files[name] = change(files[name], rng)
    if rng.random() < 0.03:
        del files[rng.choice(list(files))]
    return files


def _flipped(data: bytes, rng: Random) -> bytes:
    raw = bytearray(data)
    for _ in range(rng.choice([1, 2, 8])):
        if raw:
            raw[rng.randrange(min(len(raw), 4000))] = rng.randrange(256)
    return bytes(raw[: rng.randrange(len(raw))] if raw and rng.random() < 0.1 else raw)


def _header(data: bytes, rng: Random) -> bytes:
    size = struct.unpack_from("<Q", data)[0]
    if size > len(data):
        return data
    try:
        header = json.loads(data[8 : 8 + size])
    except ValueError:
        return data
    if not isinstance(header, dict) or not header:
        return data
    weights = data[8 + size :]
    name = rng.choice(list(header))
    kind = rng.randrange(6)
    if kind == 0:
        header[name] = hostile(rng)
    elif kind == 1 and isinstance(header[name], dict):
        header[name][rng.choice(["dtype", "shape", "data_offsets"])] = hostile(rng, 1)
    elif kind == 2:
        del header[name]
    elif kind == 3:
        header["__metadata__"] = hostile(rng)
    elif kind == 4 and isinstance(header[name], dict) and isinstance(header[name].get("shape"), list):
        header[name]["shape"] = [rng.choice([size, 0, -1, 1, 2**40, 2**63]) for size in header[name]["shape"]]
    else:
        size = rng.choice([0, 2, 2**20, 2**63, 2**64 - 1])
        return struct.pack("<Q", size) + data[8:]
    raw = dumps(header)
    return struct.pack("<Q", len(raw)) + raw + weights


def _config(data: bytes, rng: Random) -> bytes:
    try:
        config = json.loads(data)
    except ValueError:
        return data
    if not isinstance(config, dict):
        return data
    for _ in range(rng.choice([1, 1, 2, 3])):
        if rng.random() < 0.6:
            name = rng.choice(list(_SETTINGS))
            config[name] = rng.choice(_SETTINGS[name])
        else:
            config[rng.choice([*config, *_SETTINGS])] = hostile(rng, 1)
    return dumps(config)


def _tree(data: bytes, rng: Random) -> bytes:
    """A tokenizer.json or tokenizer_config.json with one value somewhere replaced."""
    try:
        value = json.loads(data)
    except ValueError:
        return data
    value = deepcopy(value)
    within: Any = value
    while True:
        keys = list(within) if isinstance(within, dict) else list(range(len(within)))
        if not keys:
            return data
        key = rng.choice(keys)
        if not isinstance(within[key], (dict, list)) or not within[key] or rng.random() < 0.25:
            break
        within = within[key]
    if isinstance(within, dict) and rng.random() < 0.15:
        del within[key]
    else:
        within[key] = hostile(rng, 1)
    return dumps(value)


_CHANGES = (
    ("model.safetensors", _header),
    ("model.safetensors", _header),
    ("model.safetensors", _flipped),
    ("config.json", _config),
    ("config.json", _config),
    ("config.json", _flipped),
    ("tokenizer.json", _tree),
    ("tokenizer.json", _flipped),
    ("tokenizer_config.json", _tree),
)
