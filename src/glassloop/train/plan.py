"""What a run is going to do, in a line before its first step."""

from __future__ import annotations

from glassloop.train.config import TrainConfig


def plan_text(config: TrainConfig, steps: int, data: int) -> str:
    """Returns what `steps` steps read, where the data has this many tokens for training."""
    times = config.tokens_per_step / max(1, data)
    each = (
        f"it {times:.1f} times"
        if times >= 1.05
        else "it once"
        if times > 0.95
        else f"{100 * times:.3g} % of it"
    )
    sequences = config.batch * config.accumulate
    return (
        f"{steps:,} {'step' if steps == 1 else 'steps'} of {config.tokens_per_step:,} tokens"
        f" ({sequences} × {config.length}); the data has {data:,} tokens: a step reads {each},"
        f" all of them read it {steps * times:,.1f} times"
    )
