"""LoRA: a low-rank adapter beside the matrices of a model, in the layout of PEFT.

Only the adapter is trained; the weights stay as they are. It is written as `adapter_config.json` and
`adapter_model.safetensors`, which PEFT reads, and can be merged into the weights.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from glassloop.errors import ModelError
from glassloop.fields import Fields
from glassloop.files import write_text
from glassloop.model.config import ModelConfig
from glassloop.model.safetensors import read_file, read_json
from glassloop.ops.quant import Float32
from glassloop.ops.tensor import Tensor
from glassloop.shown import printable
from glassloop.train.config import TrainConfig, TrainError
from glassloop.train.hf_layout import hf_name
from glassloop.train.tokens import sha256_of
from glassloop.train.write_safetensors import write_safetensors

if TYPE_CHECKING:
    from glassloop.train.network import Network

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_MOST_RANK = 4096


def target_names(config: ModelConfig, targets: tuple[str, ...]) -> list[str]:
    """Returns the matrices that get an adapter: `layers.0.q` and so on. Raises if the model has none, or
    stores one of them as a part of a larger matrix, for which PEFT has no layout."""
    found = [
        name.removesuffix(".weight")
        for name in config.shapes()
        if name.startswith("layers.") and name.endswith(".weight") and name.split(".")[2] in targets
    ]
    for name in found:
        if hf_name(config, f"{name}.weight")[1] is not None:
            raise TrainError.about(
                "lora_targets",
                f"has {name.split('.')[2]!r}, which {config.family} models keep in one matrix with others;"
                " o, up and down are expected",
            )
    if not found:
        raise TrainError.about("lora_targets", f"names no matrix of this {config.family} model")
    return found


def add_adapters(network: Network, config: TrainConfig) -> None:
    """Adds an adapter to each target matrix and trains these instead of the weights. As in PEFT, `down`
    begins with uniform random numbers and `up` with zeros, so that the model begins unchanged."""
    import torch

    from glassloop.train.ops import Adapter

    random = np.random.default_rng(config.seed)
    for weight in network.weights.values():
        weight.requires_grad_(False)
    network.parameters = {}
    for name in target_names(network.config, config.lora_targets):
        matrix = network.ops.matrices[f"{name}.weight"]
        out, into = matrix.weight.shape
        first = random.uniform(-(into**-0.5), into**-0.5, (config.lora_rank, into)).astype(np.float32)
        down = torch.from_numpy(first).to(network.device).requires_grad_()
        up = torch.zeros(out, config.lora_rank, device=network.device, requires_grad=True)
        matrix.adapter = Adapter(down, up, config.lora_alpha / config.lora_rank, config.lora_dropout)
        network.parameters |= {f"{name}.lora_A": down, f"{name}.lora_B": up}


def write_adapter(folder: Path, network: Network, config: TrainConfig) -> str:
    """Writes the adapter of a network and returns the SHA-256 of its weights."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors, modules = [], set()
    for name, weight in network.parameters.items():
        stem, _, part = name.rpartition(".")
        theirs = hf_name(network.config, f"{stem}.weight")[0].removesuffix(".weight")
        modules.add(theirs.rpartition(".")[2])
        tensors.append(Tensor.of(f"{_PREFIX}{theirs}.{part}.weight", weight.detach().cpu().numpy()))
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


def read_adapter(folder: Path, config: ModelConfig) -> dict[str, Float32]:
    """Returns what a PEFT adapter adds to each weight of a model: `layers.0.q.weight` → [out, in].

    Raises a ModelError for an adapter that does more than LoRA does here (DoRA, biases, other modules), or
    that does not fit the model.
    """
    where = folder / CONFIG
    fields = Fields(str(where), read_json(where))
    for key, only in (("peft_type", "LORA"), ("bias", "none"), ("use_dora", False)):
        if fields.get(key, only) != only:
            raise fields.error(key, f"is {fields.get(key)!r}; only {only!r} is supported")
    for key in ("rank_pattern", "alpha_pattern", "modules_to_save", "layer_replication"):
        if fields.get(key):
            raise fields.error(key, "is not supported")
    rank, alpha = fields.whole("r", most=_MOST_RANK), fields.number("lora_alpha")
    scaling = alpha / (rank**0.5 if fields.flag("use_rslora", False) else rank)
    tensors = read_file(folder / WEIGHTS)
    added: dict[str, Float32] = {}
    used: set[str] = set()
    for name, shape in config.shapes().items():
        theirs, part = hf_name(config, name)
        names = [f"{_PREFIX}{theirs.removesuffix('.weight')}.lora_{x}.weight" for x in "AB"]
        if part is not None or len(shape) != 2 or names[0] not in tensors:
            continue
        down, up = (tensors[each].float32() if each in tensors else None for each in names)
        if down is None or up is None or down.shape != (rank, shape[1]) or up.shape != (shape[0], rank):
            raise ModelError(f"{folder / WEIGHTS}: {names[0]} does not fit {name} {shape} with rank {rank}")
        added[name] = np.asarray(up @ down * np.float32(scaling), np.float32)
        used.update(names)
    for name in tensors:
        if name not in used:
            raise ModelError(
                f"{folder / WEIGHTS}: {printable(name)} has no place in this {config.family} model"
            )
    if not added:
        raise ModelError(f"{folder / WEIGHTS}: has no adapter")
    return added


def merged(config: ModelConfig, weights: dict[str, Float32], folder: Path) -> dict[str, Float32]:
    """Returns the weights of a model with an adapter merged into them."""
    added = read_adapter(folder, config)
    return {name: values + added[name] if name in added else values for name, values in weights.items()}
