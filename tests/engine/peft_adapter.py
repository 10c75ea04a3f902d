"""Random adapters in PEFT's layout."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from glassloop.model.config import ModelConfig
from glassloop.model.weight_names import hf_name
from glassloop.ops.tensor import Tensor
from glassloop.train.write_safetensors import write_safetensors


def write_adapter(folder: Path, config: ModelConfig, rank: int, targets: str, seed: int) -> Path:
    """Writes a random adapter in PEFT's layout that changes the answers."""
    rng, tensors, modules = np.random.default_rng(seed), [], set()
    folder.mkdir()
    for name, shape in config.shapes().items():
        stem = name.removesuffix(".weight")
        if name.startswith("layers.") and stem.split(".")[2] in targets.split():
            theirs = hf_name(config, name)[0].removesuffix(".weight")
            modules.add(theirs.split(".")[-1])
            for part, size in (("A", (rank, shape[1])), ("B", (shape[0], rank))):
                values = (rng.standard_normal(size) * 0.1).astype(np.float32)
                tensors.append(Tensor.of(f"base_model.model.{theirs}.lora_{part}.weight", values))
    write_safetensors(folder / "adapter_model.safetensors", tensors, {"format": "pt"})
    values = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": sorted(modules)}
    (folder / "adapter_config.json").write_text(json.dumps(values))
    return folder
