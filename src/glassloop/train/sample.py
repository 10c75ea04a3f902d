"""Text from a model in training. The engine cannot run it: its weights change. The loop here has no cache;
it draws with the same luck as the engine does, so a sample shows what changed in the model and not chance."""

from __future__ import annotations

import numpy as np
import torch

from glassloop.decode.luck import luck
from glassloop.train.network import Network
from glassloop.train.ops import Packed


def sample_tokens(
    network: Network, prompt: list[int], count: int, temperature: float, seed: int, ends: tuple[int, ...] = ()
) -> list[int]:
    """Returns `count` tokens after a prompt, or fewer if one of `ends` is drawn. The model sees as many of
    the last tokens as fit into its context."""
    ids = list(prompt)
    every = np.arange(network.config.vocab_size)
    with torch.no_grad():
        for position in range(len(prompt), len(prompt) + count):
            seen = torch.tensor(ids[-network.config.context :], device=network.device)
            last = torch.tensor([len(seen) - 1], device=network.device)
            places = torch.arange(len(seen), device=network.device)
            logits = network.logits(Packed(seen, places, 1, len(seen), wanted=last))[0]
            row = logits.double().cpu().numpy()
            if temperature > 0:
                row = row / temperature + luck(seed, 0, position, every)
            ids.append(int(row.argmax()))
            if ids[-1] in ends:
                break
    return ids[len(prompt) :]
