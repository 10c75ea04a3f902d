"""What a masked adapter has learned: how often its likeliest token is the right one, against the model that
reads from the left."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from glassloop.train.hole_network import HoleNetwork
from glassloop.train.masked_ops import MaskedBatch, Two
from glassloop.train.masking import Ints, masked_at

_AT_ONCE = 1 << 15  # rows of a forward pass


@dataclass(frozen=True)
class Guesses:
    """The guesses of one method: an entry for each token."""

    right: NDArray[np.bool_]  # whether the likeliest token is the right one
    nats: NDArray[np.float32]  # -log p of the right one

    def __str__(self) -> str:
        return f"{self.right.mean():.1%} right, {self.nats.mean():.3f} nats"


def guess_masked(network: HoleNetwork, tokens: Ints, hidden: Ints) -> Guesses:
    """Fills the masked places of texts all at once: [sequences, length], [sequences, masked]."""
    found = []
    at_once = max(1, _AT_ONCE // tokens.shape[1])
    for at in range(0, len(tokens), at_once):
        layout = masked_at(tokens[at : at + at_once], hidden[at : at + at_once])
        batch, targets = layout.batch(network.mask_token, network.device)
        found.append(_guesses(network, batch, targets))
    return _joined(found)


def guess_from_left(network: HoleNetwork, tokens: Ints, hidden: Ints) -> Guesses:
    """Predicts the tokens at these places by the model itself, each from the tokens before it."""
    sequences, length = tokens.shape
    found = []
    at_once = max(1, _AT_ONCE // length)
    for at in range(0, sequences, at_once):
        some, places = tokens[at : at + at_once], np.sort(hidden[at : at + at_once], axis=1)

        def send(array: Ints) -> torch.Tensor:
            return torch.from_numpy(np.ascontiguousarray(array).reshape(-1)).to(network.device)

        none = torch.zeros(0, dtype=torch.int64, device=network.device)
        batch = MaskedBatch(
            Two(send(some), none),
            Two(send(np.tile(np.arange(length), (len(some), 1))), none),
            len(some),
            wanted=send(places - 1 + length * np.arange(len(some))[:, None]),
        )
        found.append(_guesses(network, batch, send(np.take_along_axis(some, places, 1))))
    return _joined(found)


def _guesses(network: HoleNetwork, batch: MaskedBatch, targets: torch.Tensor) -> Guesses:
    with torch.no_grad():
        logits = network.logits(batch).float()
        nats = F.cross_entropy(logits, targets, reduction="none")
        return Guesses((logits.argmax(-1) == targets).cpu().numpy(), nats.cpu().numpy())


def _joined(parts: list[Guesses]) -> Guesses:
    return Guesses(
        np.concatenate([part.right for part in parts]), np.concatenate([part.nats for part in parts])
    )


def middle(count: int, length: int, width: int) -> Ints:
    """Returns the places of a hole of `width` tokens in the middle of each text. [count, width]"""
    return np.tile(np.arange(width) + (length - width) // 2, (count, 1)).astype(np.int64)
