"""Quantized safetensors of every scheme, with one small matrix each, and hostile changes to them: to the
header and the values of the file, and to what config.json says of it. Needs neither `torch` nor
`safetensors`.
"""

from __future__ import annotations

import json
import struct
from random import Random
from typing import Any

import numpy as np
from hostile.folders import mutated_file
from hostile.values import changed

Stored = dict[str, tuple[str, tuple[int, ...]]]  # name → dtype, shape
_SIZES = {"F32": 4, "F16": 2, "BF16": 2, "I32": 4, "U32": 4, "I64": 8, "U8": 1, "I8": 1, "F8_E4M3": 1}
_GROUP = {"targets": ["Linear"], "weights": {"num_bits": 4, "group_size": 32, "type": "int"}}
_COMPRESSED = {"quant_method": "compressed-tensors", "config_groups": {"group_0": _GROUP}}

SCHEMES: dict[str, tuple[Stored, dict[str, Any]]] = {
    "awq": (
        {"a.qweight": ("I32", (64, 2)), "a.qzeros": ("I32", (2, 2)), "a.scales": ("F16", (2, 16))},
        {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"},
    ),
    "gptq": (
        {
            "a.qweight": ("I32", (8, 32)),
            "a.qzeros": ("I32", (2, 4)),
            "a.scales": ("F16", (2, 32)),
            "a.g_idx": ("I32", (64,)),
        },
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True},
    ),
    "mlx": (
        {"a.weight": ("U32", (4, 8)), "a.scales": ("BF16", (4, 2)), "a.biases": ("BF16", (4, 2))},
        {"bits": 4, "group_size": 32, "a": {"bits": 4}},
    ),
    "packed": (
        {
            "a.weight_packed": ("I32", (8, 8)),
            "a.weight_scale": ("BF16", (8, 2)),
            "a.weight_zero_point": ("I32", (1, 2)),
            "a.weight_shape": ("I64", (2,)),
            "a.weight_g_idx": ("I32", (64,)),
        },
        {**_COMPRESSED, "format": "pack-quantized"},
    ),
    "int8": (
        {"a.weight": ("I8", (4, 32)), "a.weight_scale": ("F32", (4, 1))},
        {**_COMPRESSED, "format": "int-quantized"},
    ),
    "fp8": (
        {"a.weight": ("F8_E4M3", (130, 40)), "a.weight_scale_inv": ("F32", (2, 1))},
        {"quant_method": "fp8", "weight_block_size": [128, 128]},
    ),
    "nvfp4": (
        {
            "a.weight_packed": ("U8", (4, 16)),
            "a.weight_scale": ("F8_E4M3", (4, 2)),
            "a.weight_global_scale": ("F32", (1,)),
        },
        {**_COMPRESSED, "format": "nvfp4-pack-quantized"},
    ),
    "modelopt": (
        {
            "a.weight": ("U8", (4, 16)),
            "a.weight_scale": ("F8_E4M3", (4, 2)),
            "a.weight_scale_2": ("F32", ()),
            "b.weight": ("F8_E4M3", (2, 8)),
            "b.weight_scale": ("F32", ()),
        },
        {"quant_method": "modelopt", "quant_algo": "NVFP4"},
    ),
    "mxfp4": (
        {"m.x_blocks": ("U8", (2, 3, 2, 16)), "m.x_scales": ("U8", (2, 3, 2))},
        {"quant_method": "mxfp4"},
    ),
}


def quantized_file(scheme: str) -> bytes:
    """A good file of a scheme, with random codes and sensible scales."""
    rng = np.random.default_rng(3)
    header: dict[str, Any] = {}
    data = bytearray()
    for name, (kind, shape) in SCHEMES[scheme][0].items():
        size = int(np.prod(shape, dtype=np.int64)) * _SIZES[kind]
        values = rng.integers(0, 256, size, np.uint8).tobytes()
        if kind == "F32":
            values = rng.random(size // 4, np.float32).astype("<f4").tobytes()
        elif kind in ("F16", "BF16"):
            values = struct.pack("<H", 0x2C00 if kind == "F16" else 0x3D80) * (size // 2)
        elif name.endswith("g_idx"):
            values = (np.arange(shape[0], dtype="<i4") // 32).tobytes()
        elif name.endswith("weight_shape"):
            values = np.array([8, 64], "<i8").tobytes()
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [len(data), len(data) + size]}
        data += values
    plain = json.dumps(header).encode()
    return struct.pack("<Q", len(plain)) + plain + data


def mutated(scheme: str, rng: Random) -> tuple[bytes, Any]:
    """A hostile file of a scheme, and hostile options in config.json."""
    data, options = quantized_file(scheme), SCHEMES[scheme][1]
    if rng.random() < 0.7:
        data = mutated_file("model.safetensors", data, rng)
    if rng.random() < 0.5:
        options = changed(options, rng)
    return data, options
