"""The optimizer of a run: AdamW, the learning rate of each step, the results of a step that is under way, and
parameters and moments as the arrays of a checkpoint."""

from __future__ import annotations

import math
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
        own_state, first, second = (
            torch.from_numpy(np.array(arrays[f"{part}:{name}"])).to(weight.device) for part in PARTS
        )
        with torch.no_grad():
            weight.copy_(own_state)
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


def learning_rate(config: TrainConfig, step: int) -> float:
    """Returns the rate of a step (from 0): a linear warm-up, then the schedule down to `final_lr` in the last
    step."""
    if step < config.warmup:
        return config.lr * (step + 1) / (config.warmup + 1)
    if config.schedule == "constant":
        return config.lr
    left = config.steps - 1 - config.warmup
    gone = min(1.0, (step - config.warmup) / left) if left > 0 else 1.0
    share = 1 - gone if config.schedule == "linear" else (1 + math.cos(math.pi * gone)) / 2
    return config.lr * (config.final_lr + (1 - config.final_lr) * share)


class LaunchedStep:
    """A step that was launched, whose results are on their way from the device."""

    def __init__(self, step: int, rate: float, tokens: int, rows: int, facts: torch.Tensor) -> None:
        self.step, self.rate, self.tokens, self.rows = step, rate, tokens, rows
        self._facts, self._event = facts, None
        if facts.is_cuda:
            self._facts = torch.empty(2, dtype=facts.dtype, pin_memory=True)
            self._facts.copy_(facts, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()

    def read(self) -> tuple[float, float]:
        """Returns the loss and the norm of the gradient as soon as they are known."""
        if self._event is not None:
            self._event.synchronize()
        loss, norm = self._facts.tolist()
        return loss, norm
