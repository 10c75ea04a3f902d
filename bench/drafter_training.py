"""`python -m bench.drafter_training TOKENS`: the time of a training step of a drafter for the default model,
in turns with a loss that is computed step by step of the chain, with all logits at once.

TOKENS is a folder of token files (`glassloop train prepare`, or the text of `glassloop train drafter`). The
two losses and their gradients are compared too.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import torch
import torch.nn.functional as F

from bench.machine import describe
from glassloop.model.loader import ModelFiles
from glassloop.model.registry import DEFAULT_MODEL, fetch
from glassloop.train.research.drafter_training import Documents, DrafterTrainer, DrafterTraining, Target
from glassloop.train.token_files import TokenFiles


def main() -> None:
    given = _options()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    files = ModelFiles(fetch(DEFAULT_MODEL))
    target = Target(files.config, files.weights, device, bf16=device == "cuda")
    training = DrafterTraining(batch=given.rows, length=given.length, held_out=0)
    trainer = DrafterTrainer(target, TokenFiles(given.tokens), training)
    batch = next(trainer.batches(0))
    ways: dict[str, Callable[[Documents], torch.Tensor]] = {
        "step by step": lambda batch: plain_loss(trainer, batch),
        "in pieces": trainer.loss,
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    found: dict[str, list[torch.Tensor]] = {}
    for _ in range(given.rounds):
        for name, loss in ways.items():
            began, busy = perf_counter(), process_time()
            value = loss(batch)
            made = torch.autograd.grad(value, list(trainer.parameters.values()))
            if device == "cuda":
                torch.cuda.synchronize()
            times[name].append((perf_counter() - began, process_time() - busy))
            found[name] = [value.detach(), *made]
    apart = max(
        float((one - other).abs().max() / other.abs().max().clamp_min(1e-12))
        for one, other in zip(found["in pieces"], found["step by step"], strict=True)
    )
    facts: dict[str, Any] = {
        "rows": batch.tokens.numel(),
        "rounds": given.rounds,
        "largest_difference": apart,
    }
    for clock, place in (("seconds", 0), ("processor_seconds", 1)):
        for name, seen in times.items():
            facts[f"{name}, {clock}"] = median(each[place] for each in seen)
        pairs = zip(times["step by step"], times["in pieces"], strict=True)
        facts[f"ratio, {clock}"] = median(one[place] / other[place] for one, other in pairs)
    print("\n".join(f"{name}: {value:.4g}" for name, value in facts.items()))
    print(json.dumps({**facts, "machine": describe(torch.get_num_threads())}))


def plain_loss(trainer: DrafterTrainer, batch: Documents) -> torch.Tensor:
    """Returns the loss of `DrafterTrainer.loss` by its definition."""
    target = trainer.target
    ids = torch.from_numpy(trainer.tokens.astype("int64")).to(target.device)
    total, weights = torch.zeros((), device=target.device), 0.0
    with target.precision():
        features, hidden = target.features(batch.packed, trainer.config.features)
        head = target.head()[ids]
        for number, state in enumerate(trainer.chain(batch, features)):
            rows = batch.rows(number)
            with torch.no_grad():
                wanted = F.softmax(F.linear(hidden[rows + number + 1], head).float(), dim=-1)
            own = F.log_softmax(trainer.drafter.logits(state[rows]).float(), dim=-1)
            total = total - 0.8**number * (wanted * own).sum() / max(1, len(rows))
            weights += 0.8**number
    return total / weights


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokens", type=Path)
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


if __name__ == "__main__":
    main()
