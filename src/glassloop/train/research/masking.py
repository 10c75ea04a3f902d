"""Which tokens of a text are masked, and how the rows of a training batch are laid out.

Two layouts. In `holes` spans of a text are masked: the clean rows are the other tokens, in order, then the
tokens of the spans that are filled already, and the masked rows see all of them. In `blocks` each of several
blocks of a text is masked, in part or whole, as if the text ended with it, and all blocks are computed beside
one text. Everything is a function of the arrays and the generator given.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from glassloop.train.machine import send
from glassloop.train.research.masked_ops import MaskedBatch, Two

Ints = NDArray[np.int64]
LONGEST_SPAN = 16
_LEAST_BEFORE = 8  # tokens before a block


@dataclass(frozen=True)
class Layout:
    """The rows of a batch, before they go to a device: [sequences, clean] and [sequences, masked]."""

    clean_tokens: Ints
    clean_positions: Ints
    masked_positions: Ints
    targets: Ints  # the tokens of the masked rows
    text: int = 0  # how many of the clean rows are the text; only in the layout `blocks`
    clean_blocks: Ints | None = None  # of the clean rows after the text: the block of each, [sequences, …]
    masked_blocks: Ints | None = None  # of each masked row: its block
    starts: Ints | None = None  # [sequences, blocks] where each block begins

    @property
    def rows(self) -> int:
        return self.clean_tokens.size + self.targets.size

    def batch(self, mask_token: int, device: str = "cpu") -> tuple[MaskedBatch, torch.Tensor]:
        """Returns the batch on a device, and the targets of its masked rows."""

        targets = send(self.targets.reshape(-1), device)
        clean = send(self.clean_positions.reshape(-1), device)
        return MaskedBatch(
            Two(send(self.clean_tokens.reshape(-1), device), torch.full_like(targets, mask_token)),
            Two(clean, send(self.masked_positions.reshape(-1), device)),
            len(self.clean_tokens),
            *self._seen(device),
        ), targets

    def _seen(self, device: str) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        if self.starts is None or self.clean_blocks is None or self.masked_blocks is None:
            return None, None
        starts, kept_blocks, masked = (
            send(each, device) for each in (self.starts, self.clean_blocks, self.masked_blocks)
        )
        sequences, text, kept = len(starts), self.text, kept_blocks.shape[1]
        place = torch.arange(text, device=starts.device)
        before = place < starts.gather(1, masked)[:, :, None]  # [sequences, masked, text]
        beside = torch.cat([kept_blocks, masked], dim=1)[:, None, :] == masked[:, :, None]
        masked_seen = torch.cat([before, beside], dim=2)
        if not kept:
            return None, masked_seen
        clean_seen = torch.zeros(sequences, text + kept, text + kept, dtype=torch.bool, device=starts.device)
        clean_seen[:, :text, :text] = place[:, None] >= place
        clean_seen[:, text:, :text] = place < starts.gather(1, kept_blocks)[:, :, None]
        same = kept_blocks[:, :, None] == kept_blocks[:, None, :]
        clean_seen[:, text:, text:] = same.tril()
        return clean_seen, masked_seen


def holes(tokens: Ints, masked: int, filled: int, rng: np.random.Generator) -> Layout:
    """Masks spans of each text, `masked` tokens and at most half of them: [sequences, length]. Each text is
    used twice, the second time with other spans. `filled` of the masked tokens have been filled before."""
    sequences, length = tokens.shape
    order = span_order(sequences, length, rng)
    hidden = np.concatenate([order[:, :masked], order[:, length - masked :]])
    hidden = rng.permuted(hidden, axis=1)
    return masked_at(np.concatenate([tokens, tokens]), hidden[:, filled:], hidden[:, :filled])


def masked_at(tokens: Ints, hidden: Ints, filled: Ints | None = None) -> Layout:
    """Returns texts with the tokens at these places masked: [sequences, masked]. The tokens at the places
    `filled` were filled in an earlier pass: their rows come after the text, which does not see them."""
    sequences, length = tokens.shape
    hidden = np.sort(hidden, axis=1)
    filled = np.zeros((sequences, 0), np.int64) if filled is None else np.sort(filled, axis=1)
    absent = np.zeros((sequences, length), bool)
    np.put_along_axis(absent, np.concatenate([hidden, filled], axis=1), True, axis=1)
    text = np.nonzero(~absent)[1].reshape(sequences, -1).astype(np.int64)
    clean = np.concatenate([text, filled], axis=1)
    return Layout(np.take_along_axis(tokens, clean, 1), clean, hidden, np.take_along_axis(tokens, hidden, 1))


def span_order(sequences: int, length: int, rng: np.random.Generator) -> Ints:
    """Returns the places of each text in the order in which they are masked: span after span, each span from
    left to right. [sequences, length]

    The longest span of a text is 1, 2, 4, 8 or 16 tokens; its spans are uniform up to that.
    """
    longest = 2 ** rng.integers(0, LONGEST_SPAN.bit_length(), (sequences, 1))
    ends = np.cumsum(rng.integers(1, longest + 1, (sequences, length)), axis=1)
    first = np.zeros((sequences, length + 1), np.int64)
    np.put_along_axis(first, np.minimum(ends, length), 1, axis=1)
    span = np.cumsum(first[:, :length], axis=1)  # the number of each token's span
    key = np.take_along_axis(rng.permuted(np.tile(np.arange(length), (sequences, 1)), axis=1), span, 1)
    return np.argsort(key, axis=1, kind="stable").astype(np.int64)


def blocks(tokens: Ints, width: int, count: int, filled: int, rng: np.random.Generator) -> Layout:
    """Masks `count` blocks of `width` tokens of each text. `filled` of their tokens have been filled before:
    of each text some blocks have none of them, and others have many."""
    sequences, length = tokens.shape
    offset = rng.integers(0, width, (sequences, 1))
    places = np.arange(-(-_LEAST_BEFORE // width), (length - width) // width)
    chosen = rng.permuted(np.tile(places, (sequences, 1)), axis=1)[:, :count]
    starts = np.sort(chosen, axis=1) * width + offset  # [sequences, count]
    # The tokens with the highest sums of two random numbers are given: one for the block, one for the token.
    sums = rng.random((sequences, count, 1)) + rng.random((sequences, count, width))
    order = np.argsort(-sums.reshape(sequences, -1), axis=1)
    shown, hidden = (np.sort(part, axis=1) for part in (order[:, :filled], order[:, filled:]))
    at = (starts[:, :, None] + np.arange(width)).reshape(sequences, -1)  # the places of all blocks
    text = np.tile(np.arange(length), (sequences, 1))
    clean = np.concatenate([text, np.take_along_axis(at, shown, 1)], axis=1)
    masked = np.take_along_axis(at, hidden, 1)
    return Layout(
        np.take_along_axis(tokens, clean, 1),
        clean,
        masked,
        np.take_along_axis(tokens, masked, 1),
        text=length,
        clean_blocks=shown // width,
        masked_blocks=hidden // width,
        starts=starts,
    )
