"""Hostile model folders: safetensors, config.json and tokenizer.json of a tiny model with values replaced."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from random import Random
from typing import Any

from hostile import raw
from hostile.raw import NUMBERS
from hostile.values import changed, dumps, spelled, twice, value

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


def mutated(files: dict[str, bytes], rng: Random) -> dict[str, bytes]:
    """The files of one hostile folder made of those of a good one, by name."""
    files = dict(files)
    for _ in range(rng.choice([1, 1, 1, 2])):
        name = rng.choice([each for each in files for _ in range(3 if each in _TWICE else 2)])
        files[name] = mutated_file(name, files[name], rng)
    if rng.random() < 0.03:
        del files[rng.choice(list(files))]
    return files


_TWICE = ("model.safetensors", "config.json")  # are changed more often


def mutated_file(name: str, data: bytes, rng: Random) -> bytes:
    """One of the files, changed in its values or in its bytes."""
    if rng.random() < 0.3:
        data = raw.changed(data, rng, min(len(data), 4000))
        return raw.cut(data, rng) if rng.random() < 0.1 else data
    try:
        return _CHANGES.get(name, _document)(data, rng)
    except (
        ValueError,
        RecursionError,
        struct.error,
    ):  # no JSON any more: two changes to one file
        return raw.changed(data, rng)


def _header(data: bytes, rng: Random) -> bytes:
    size = struct.unpack_from("<Q", data)[0]
    header = json.loads(data[8 : 8 + size])
    weights = data[8 + size :]
    if not isinstance(header, dict) or not header:
        return data
    name = rng.choice(list(header))
    entry = header[name]
    kind = rng.randrange(9)
    if kind == 0:
        header[name] = value(rng)
    elif kind == 1 and isinstance(entry, dict):
        entry[rng.choice(["dtype", "shape", "data_offsets"])] = value(rng, 1)
    elif kind == 2:
        header["__metadata__"] = value(rng)
    elif kind == 3 and isinstance(entry, dict) and isinstance(entry.get("shape"), list):
        entry["shape"] = [rng.choice([size, 0, -1, 1, 2**40, 2**63]) for size in entry["shape"]]
    elif kind == 4:
        return struct.pack("<Q", rng.choice(NUMBERS)) + data[8:]
    elif kind == 5:
        weights = raw.cut(weights, rng)
    elif kind > 6:
        header = changed(header, rng)
    plain = spelled(header)
    encoded = (twice(plain) if kind == 6 else plain).encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(encoded)) + encoded + weights


def _config(data: bytes, rng: Random) -> bytes:
    config = json.loads(data)
    if not isinstance(config, dict) or rng.random() < 0.3:
        return _document(data, rng)
    for _ in range(rng.choice([1, 1, 2, 3])):
        if rng.random() < 0.6:
            name = rng.choice(list(_SETTINGS))
            config[name] = rng.choice(_SETTINGS[name])
        else:
            config[rng.choice([*config, *_SETTINGS])] = value(rng, 1)
    return dumps(config)


def _document(data: bytes, rng: Random) -> bytes:
    document = json.loads(data)
    if not isinstance(document, dict | list):
        return data
    if isinstance(document, dict) and rng.random() < 0.03:
        return twice(spelled(document)).encode("utf-8", "surrogatepass")
    return dumps(changed(document, rng))


_CHANGES: dict[str, Callable[[bytes, Random], bytes]] = {
    "model.safetensors": _header,
    "config.json": _config,
}
