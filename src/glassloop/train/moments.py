"""AdamW for the parameters of a run; parameters and moments as the arrays of a checkpoint, and back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from glassloop.ops.quant import Float32
from glassloop.train.checkpoint import PARTS, Arrays, check_shapes
from glassloop.train.config import TrainConfig
from glassloop.train.network import Network

_MOMENTS = ("exp_avg", "exp_avg_sq")  # the names of AdamW's moments in its state


def to_arrays(parameters: Mapping[str, torch.Tensor], optimizer: torch.optim.AdamW) -> dict[str, Float32]:
    """Returns the parameters and their moments, which are 0 before the first step."""
    arrays: dict[str, Float32] = {}
    for name, weight in parameters.items():
        moments = optimizer.state.get(weight, {})
        values = weight, *(moments.get(key, torch.zeros_like(weight)) for key in _MOMENTS)
        for part, value in zip(PARTS, values, strict=True):
            arrays[f"{part}:{name}"] = value.detach().cpu().numpy()
    return arrays


def set_arrays(
    parameters: Mapping[str, torch.Tensor],
    optimizer: torch.optim.AdamW,
    arrays: Arrays,
    step: int,
    path: Path,
) -> None:
    """Sets parameters and moments to the arrays of a checkpoint after `step` steps. `path` is named if they
    are not those of this run."""
    check_shapes(path, arrays, {name: tuple(weight.shape) for name, weight in parameters.items()})
    for name, weight in parameters.items():
        own, first, second = (
            torch.from_numpy(np.array(arrays[f"{part}:{name}"])).to(weight.device) for part in PARTS
        )
        with torch.no_grad():
            weight.copy_(own)
        if step:
            # A fused AdamW counts its steps on the device.
            place = weight.device if optimizer.defaults["fused"] else "cpu"
            count = torch.tensor(float(step), device=place)
            optimizer.state[weight] = {"step": count, "exp_avg": first, "exp_avg_sq": second}


def adamw(config: TrainConfig, network: Network) -> Any:
    """Returns AdamW; matrices have weight decay, vectors have none."""
    parameters = list(network.parameters.values())
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    betas = (config.beta1, config.beta2)
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=config.lr, betas=betas, fused=True)
