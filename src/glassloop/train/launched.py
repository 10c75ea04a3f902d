"""A step of the optimizer whose results are on their way from the device."""

from __future__ import annotations

import torch


class Launched:
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
