"""Muon: steps whose matrices are made orthogonal (Jordan et al., 2024), for the matrices of the layers.

The running mean of a gradient is replaced by the nearest orthogonal matrix, so that all directions of a
matrix learn alike. Embeddings and vectors stay with AdamW. Matrices of one shape are computed together.
"""

from __future__ import annotations

from typing import Any

import torch

_MOMENTUM = 0.95
_FACTORS = (3.4445, -4.7750, 2.0315)  # of the quintic iteration, which brings singular values near 1
_ROUNDS = 5
_SIZE = 0.2  # the root mean square of a step, about that of AdamW: one learning rate serves both


class Muon(torch.optim.AdamW):  # type: ignore[misc]
    """Muon for parameter groups with `orthogonal`, AdamW for the others. The running mean of a matrix has the
    name of AdamW's first moment."""

    param_groups: list[dict[str, Any]]

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self) -> None:
        every = self.param_groups
        try:
            self.param_groups = [group for group in every if not group["orthogonal"]]
            super().step()
        finally:
            self.param_groups = every
        for group in every:
            if group["orthogonal"]:
                self._step_matrices(group)

    def _step_matrices(self, group: dict[str, Any]) -> None:
        shapes: dict[torch.Size, list[torch.Tensor]] = {}
        for matrix in group["params"]:
            shapes.setdefault(matrix.shape, []).append(matrix)
        # As in AdamW, nothing changes after a gradient that was not finite.
        found = getattr(self, "found_inf", None)
        for shape, matrices in shapes.items():
            gradients = torch.stack([matrix.grad for matrix in matrices])
            before = torch.stack([self._mean(matrix) for matrix in matrices])
            mean = torch.lerp(before, gradients, 1 - _MOMENTUM)
            update = orthogonal(torch.lerp(gradients, mean, _MOMENTUM)).float() * (_SIZE * max(shape) ** 0.5)
            decay: Any = group["lr"] * group["weight_decay"]
            if found is not None:
                mean = torch.where(found > 0, before, mean)
                update = torch.where(found > 0, 0.0, update)
                decay = decay * (1 - found)
            for matrix, own_mean, own_update in zip(matrices, mean, update, strict=True):
                self.state[matrix]["exp_avg"] = own_mean.clone()
                matrix.mul_(1 - decay).sub_(own_update, alpha=group["lr"])

    def _mean(self, matrix: torch.Tensor) -> torch.Tensor:
        mean: torch.Tensor | None = self.state[matrix].get("exp_avg")
        return torch.zeros_like(matrix) if mean is None else mean


def orthogonal(matrices: torch.Tensor) -> torch.Tensor:
    """Returns about the nearest orthogonal matrices, by Newton-Schulz iterations: [count, rows, columns]."""
    a, b, c = _FACTORS
    x = matrices.to(torch.bfloat16) if matrices.is_cuda else matrices
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    x = x / (x.flatten(1).norm(dim=1)[:, None, None] + 1e-7)
    for _ in range(_ROUNDS):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x.mT if tall else x
