"""Text from a model in training. The engine cannot run it: its weights change. The loop here draws with the
same luck as the engine does, so a sample shows what changed in the model and not chance."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from glassloop.decode.luck import luck
from glassloop.ops.kv_cache import Place
from glassloop.train.gradient_ops import SequenceBatch
from glassloop.train.network import Network


def sample_batch(
    network: Network, prompts: torch.Tensor, count: int, seed: int, temperature: float = 1.0
) -> torch.Tensor:
    """Returns prompts of one length with `count` tokens drawn after each: [prompts, length + count]. It is
    for many short texts at once: luck would be a hash for each token and prompt; a GPU draws faster from its
    own generator."""
    generator = torch.Generator(network.device).manual_seed(seed)
    ids = prompts.to(network.device)
    sequences = len(ids)
    with torch.no_grad():
        for _ in range(count):
            length = ids.shape[1]
            places = torch.arange(length, device=network.device).repeat(sequences)
            last = torch.arange(1, sequences + 1, device=network.device) * length - 1
            logits = network.logits(
                SequenceBatch(ids.reshape(-1), places, sequences, length, wanted=last)
            ).float()
            chances = torch.empty_like(logits).exponential_(generator=generator)
            drawn = (logits / temperature - chances.log()).argmax(-1)
            ids = torch.cat([ids, drawn[:, None]], dim=1)
    return ids


def after_end(ids: torch.Tensor, ends: tuple[int, ...]) -> torch.Tensor:
    """Returns which tokens come after the first token of `ends` in their row: [rows, length]."""
    is_end = torch.zeros_like(ids, dtype=torch.bool)
    for end in ends:
        is_end |= ids == end
    return (is_end.cumsum(1) - is_end.long()) > 0


def sample_tokens(
    network: Network,
    prompt: list[int],
    count: int,
    temperature: float,
    seed: int,
    ends: tuple[int, ...] = (),
    stopped: Callable[[], bool] = lambda: False,
) -> list[int]:
    """Returns `count` tokens after a prompt, or fewer if one of `ends` is drawn, or if it is to stop. The
    model sees as many of the last tokens as fit into its context."""
    ids = list(prompt)
    every = np.arange(network.config.vocab_size)
    kept = GrowingText(network)
    with torch.no_grad():
        for position in range(len(prompt), len(prompt) + count):
            if stopped():
                break
            row = kept.logits(ids).double().cpu().numpy()
            if temperature > 0:
                row = row / temperature + luck(seed, 0, position, every)
            ids.append(int(row.argmax()))
            if ids[-1] in ends:
                break
    return ids[len(prompt) :]


class GrowingText:
    """The keys and values of a text that grows, so that each token is computed once."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._past: dict[Place, tuple[torch.Tensor, torch.Tensor]] = {}
        self._count = 0  # tokens that `_past` has

    def logits(self, ids: list[int]) -> torch.Tensor:
        """Returns the logits after a text, which begins with the text of the call before. A text that is
        longer than the context loses its first token with each call, which moves all others: nothing is
        kept then."""
        context = self._network.config.context
        new = ids[self._count :] if len(ids) <= context else ids[-context:]
        first = self._count if len(ids) <= context else 0
        tokens, last = (torch.tensor(x, device=self._network.device) for x in (new, [len(new) - 1]))
        places = torch.arange(first, first + len(new), device=self._network.device)
        past = self._past if len(ids) <= context else None
        self._count = len(ids)
        return self._network.logits(SequenceBatch(tokens, places, 1, len(new), wanted=last, past=past))[0]
