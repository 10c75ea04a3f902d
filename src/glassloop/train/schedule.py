"""The learning rate of each step."""

from __future__ import annotations

import math

from glassloop.train.config import TrainConfig


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
