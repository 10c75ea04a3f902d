"""LoRA: a low-rank adapter beside the matrices of a model, in the layout of PEFT.

Only the adapter is trained; the weights stay as they are. It is written as `adapter_config.json` and
`adapter_model.safetensors`, which PEFT reads, and can be merged into the weights.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from glassloop.model.adapter import CONFIG, PREFIX, WEIGHTS, read_adapter
from glassloop.model.config import ModelConfig
from glassloop.model.weight_names import hf_name
from glassloop.ops.quant import Float32
from glassloop.ops.tensor import Tensor
from glassloop.train.config import TrainConfig, TrainError
from glassloop.train.write_safetensors import write_safetensors
from glassloop.util.files import sha256_of, write_text

if TYPE_CHECKING:
    from glassloop.train.network import Network


def target_names(config: ModelConfig, targets: tuple[str, ...]) -> list[str]:
    """Returns the matrices that get an adapter: `layers.0.q` and so on. Raises if the model has none, or
    stores one of them as a part of a larger matrix, for which PEFT has no layout."""
    names = [
        name.removesuffix(".weight")
        for name in config.shapes()
        if name.startswith("layers.") and name.endswith(".weight") and name.split(".")[2] in targets
    ]
    for name in names:
        if hf_name(config, f"{name}.weight")[1] is not None:
            raise TrainError.about(
                "lora_targets",
                f"has {name.split('.')[2]!r}, which {config.family} models keep in one matrix with others;"
                " o, up and down are expected",
            )
    if not names:
        raise TrainError.about("lora_targets", f"names no matrix of this {config.family} model")
    return names


def add_adapters(network: Network, config: TrainConfig) -> None:
    """Adds an adapter to each target matrix and trains these instead of the weights. As in PEFT, `down`
    begins with uniform random numbers and `up` with zeros, so that the model begins unchanged."""
    import torch

    from glassloop.train.gradient_ops import TrainedLowRank

    random = np.random.default_rng(config.seed)
    network.freeze()
    for name in target_names(network.config, config.lora_targets):
        matrix = network.ops.matrices[f"{name}.weight"]
        out, into = matrix.weight.shape
        first = random.uniform(-(into**-0.5), into**-0.5, (config.lora_rank, into)).astype(np.float32)
        down = torch.from_numpy(first).to(network.device).requires_grad_()
        up = torch.zeros(out, config.lora_rank, device=network.device, requires_grad=True)
        matrix.adapter = TrainedLowRank(down, up, config.lora_alpha / config.lora_rank, config.lora_dropout)
        network.parameters |= {f"{name}.lora_A": down, f"{name}.lora_B": up}


def write_adapter(folder: Path, network: Network, config: TrainConfig) -> str:
    """Writes the adapter of a network and returns the SHA-256 of its weights."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors, modules = [], set()
    for name, weight in network.parameters.items():
        stem, _, part = name.rpartition(".")
        theirs = hf_name(network.config, f"{stem}.weight")[0].removesuffix(".weight")
        modules.add(theirs.rpartition(".")[2])
        tensors.append(Tensor.of(f"{PREFIX}{theirs}.{part}.weight", weight.detach().cpu().numpy()))
    values: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": config.model,
        "inference_mode": True,
        "r": config.lora_rank,
        "lora_alpha": config.lora_alpha,
        "lora_dropout": config.lora_dropout,
        "target_modules": sorted(modules),
        "bias": "none",
        "fan_in_fan_out": False,
    }
    write_safetensors(folder / WEIGHTS, tensors, {"format": "pt"})
    write_text(folder / CONFIG, json.dumps(values, indent=1) + "\n")
    return sha256_of(folder / WEIGHTS)


def merged(config: ModelConfig, weights: dict[str, Float32], folder: Path) -> dict[str, Float32]:
    """Returns the weights of a model with an adapter merged into them."""
    adapter = read_adapter(folder, config)
    added = {f"{stem}.weight": adapter.delta(stem) for stem in adapter.matrices}
    return {name: values + added[name] if name in added else values for name, values in weights.items()}
