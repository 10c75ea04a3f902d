"""How the rows of a pass are laid out: known tokens of the block first, in order, then its masks.

A known token sees what is before it in the order of the slots, as in any text. A mask sees everything. In a
model for whole masked texts every row sees everything, and there is nothing that could be kept.
"""

from __future__ import annotations

from collections.abc import Sequence

from glassloop.engine.tasks.masked import Mask, MaskedRow, Pass
from glassloop.ops.quant import Float32


class MaskedRows:
    """The rows of a text with a hole: `before`, the places to fill, `after`."""

    def __init__(self, before: Sequence[int], width: int, after: Sequence[int], mask: Mask) -> None:
        self.mask = mask
        self.start = len(before)
        self._before, self._after = list(before), list(after)
        end = self.start + width
        # The last token before the masks is not in the tree: its row may be computed again for its logits.
        self.tokens = [] if mask.whole else self._before[:-1]
        self.kept: list[MaskedRow] = []
        if not mask.whole:
            last = [MaskedRow(token, self.start - 1) for token in self._before[-1:]]
            self.kept = last + [MaskedRow(token, end + place) for place, token in enumerate(after)]

    def of_pass(self, tokens: Sequence[int | None]) -> Pass:
        """Returns the pass over places with these tokens; None is a mask."""
        if self.mask.whole:
            return self._whole(tokens)
        filled = [
            MaskedRow(token, self.start + place) for place, token in enumerate(tokens) if token is not None
        ]
        masks = [
            MaskedRow(self.mask.token, self.start + place, True, self.mask.adapter)
            for place, token in enumerate(tokens)
            if token is None
        ]
        return Pass(filled + masks, len(masks))

    def _whole(self, tokens: Sequence[int | None]) -> Pass:
        inside = [self.mask.token if token is None else token for token in tokens]
        text = [*self._before, *inside, *self._after]
        rows = [
            MaskedRow(token, place, True, self.mask.adapter if token == self.mask.token else 0)
            for place, token in enumerate(text)
        ]
        return Pass(rows, len(text) - self.start + self.mask.shifted)

    def logits(self, results: Float32, tokens: Sequence[int | None]) -> Float32:
        """Returns the rows of a pass's logits that are about its masks, in order."""
        if not self.mask.whole:
            return results
        return results[[place for place, token in enumerate(tokens) if token is None]]

    def scoring(self, tokens: Sequence[int]) -> Pass:
        """Returns a pass whose logits are those of each of these tokens from left to right."""
        rows = [MaskedRow(token, self.start + place) for place, token in enumerate(tokens[:-1])]
        return Pass(rows, len(tokens), again=1)

    def extend(self, tokens: Sequence[int]) -> None:
        """Adds a finished block to the text before the masks. There is no text after them."""
        first = self.start
        self._before += tokens
        self.start += len(tokens)
        if not self.mask.whole:
            self.kept += [MaskedRow(token, first + place) for place, token in enumerate(tokens)]
