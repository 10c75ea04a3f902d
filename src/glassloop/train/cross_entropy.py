"""The loss of a large vocabulary: the language head and the cross-entropy together, a piece of the rows at a
time. The gradients of a piece are computed beside its loss, so that its logits are needed only once and never
exist for all rows. `head_cross_entropy` compares with tokens, `soft_cross_entropy` with the distributions of
another model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import torch

Piece = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, float | None], tuple[torch.Tensor, torch.Tensor, torch.Tensor]
]


def head_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    softcap: float | None,
    *,
    dtype: torch.dtype,
    most_logits: int,
    compiled: bool = False,
) -> torch.Tensor:
    """Returns the sum of the cross-entropies of `hidden @ weight.T`. Targets below 0 are not counted.

    Products are computed in `dtype`, sums in float32 or more. At most about `most_logits` logits exist at a
    time.
    """
    piece = _compiled_piece() if compiled else _piece
    loss: torch.Tensor = _HeadCrossEntropy.apply(hidden, weight, targets, softcap, dtype, most_logits, piece)
    return loss


class _HeadCrossEntropy(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        targets: torch.Tensor,
        softcap: float | None,
        dtype: torch.dtype,
        most_logits: int,
        piece: Piece,
    ) -> torch.Tensor:
        used, rows = weight.detach().to(dtype), hidden.detach().to(dtype)
        total = torch.zeros((), dtype=_summed(dtype), device=hidden.device)
        to_hidden = torch.empty_like(rows)
        to_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        with torch.autocast(hidden.device.type, enabled=False):
            for part in _parts(len(rows), max(1, most_logits // len(weight))):
                loss, to_hidden[part], slope = piece(rows[part], used, targets[part], softcap)
                total += loss
                if to_weight is not None:
                    _add_product(to_weight, slope.T, rows[part])
        ctx.save_for_backward(to_hidden.to(hidden.dtype), to_weight)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        to_hidden, to_weight = ctx.saved_tensors
        scale = gradients[0]
        by_weight = None if to_weight is None else to_weight * scale.to(to_weight.dtype)
        return to_hidden * scale.to(to_hidden.dtype), by_weight, None, None, None, None, None


def soft_cross_entropy(
    hiddens: Sequence[torch.Tensor],
    weight: torch.Tensor,
    scales: torch.Tensor,
    theirs: torch.Tensor,
    their_weight: torch.Tensor,
    *,
    dtype: torch.dtype,
    most_logits: int,
) -> torch.Tensor:
    """Returns the scaled sum of the cross-entropies of `hidden @ weight.T`, for each of several `hiddens`,
    with respect to the distributions of `theirs @ their_weight.T`, which have no gradient.

    All of `hiddens` and `theirs` have the same rows, so that a distribution is computed once for all of them.
    `scales` has the factor of each row, [hiddens, rows]. Products are computed in `dtype`, sums in float32 or
    more. At most about `most_logits` logits of each kind exist at a time.
    """
    loss: torch.Tensor = _SoftCrossEntropy.apply(
        weight, scales, theirs, their_weight, dtype, most_logits, *hiddens
    )
    return loss


class _SoftCrossEntropy(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any,
        weight: torch.Tensor,
        scales: torch.Tensor,
        theirs: torch.Tensor,
        their_weight: torch.Tensor,
        dtype: torch.dtype,
        most_logits: int,
        *hiddens: torch.Tensor,
    ) -> torch.Tensor:
        used, their_used = weight.detach().to(dtype), their_weight.detach().to(dtype)
        their_rows, own_rows = theirs.detach().to(dtype), [hidden.detach().to(dtype) for hidden in hiddens]
        total = torch.zeros((), dtype=_summed(dtype), device=theirs.device)
        to_hiddens = [torch.empty_like(rows) for rows in own_rows]
        to_weight = torch.zeros_like(weight)
        with torch.autocast(theirs.device.type, enabled=False):
            for part in _parts(len(theirs), max(1, most_logits // len(weight))):
                wanted = (their_rows[part] @ their_used.T).to(total.dtype).softmax(-1)
                for rows, to_hidden, scale in zip(own_rows, to_hiddens, scales, strict=True):
                    loss, to_hidden[part], slope = _soft_piece(rows[part], used, wanted, scale[part])
                    total += loss
                    _add_product(to_weight, slope.T, rows[part])
        ctx.save_for_backward(to_weight, *(each.to(hiddens[0].dtype) for each in to_hiddens))
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        to_weight, *to_hiddens = ctx.saved_tensors
        scale = gradients[0]
        by_hidden = [each * scale.to(each.dtype) for each in to_hiddens]
        return to_weight * scale.to(to_weight.dtype), None, None, None, None, None, *by_hidden


def _soft_piece(
    hidden: torch.Tensor, weight: torch.Tensor, wanted: torch.Tensor, scale: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns the scaled loss of some rows, its gradient by their hidden states, and by their logits."""
    logits = (hidden @ weight.T).to(wanted.dtype)
    total = torch.logsumexp(logits, -1)
    # The sum of products of each row, without an array of all products.
    right = torch.bmm(wanted[:, None], logits[:, :, None])[:, 0, 0]
    loss = ((total - right) * scale).sum()
    slope = logits.sub_(total[:, None]).exp_().sub_(wanted).mul_(scale[:, None]).to(weight.dtype)
    return loss, slope @ weight, slope


def _parts(rows: int, most: int) -> Iterator[slice]:
    """Yields slices of about equal size; all of one size if the number of rows is a power of two."""
    count = 1 << max(0, (-(-rows // most) - 1).bit_length())
    size = max(1, -(-rows // count))
    for at in range(0, rows, size):
        yield slice(at, at + size)


def _piece(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, softcap: float | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns the summed loss of some rows, its gradient by their hidden states, and by their logits."""
    logits = hidden @ weight.T
    logits = logits.to(_summed(logits.dtype))
    if softcap is not None:
        logits = torch.tanh(logits / softcap) * softcap
    total = torch.logsumexp(logits, -1)
    counted = targets >= 0
    right = logits.gather(1, targets.clamp(min=0)[:, None])[:, 0]
    loss = torch.where(counted, total - right, 0.0).sum()
    slope = torch.exp(logits - total[:, None])
    tokens = torch.arange(len(weight), device=hidden.device)
    slope = torch.where(tokens == targets[:, None], slope - 1, slope) * counted[:, None]
    if softcap is not None:
        slope = slope * (1 - (logits / softcap) ** 2)
    slope = slope.to(weight.dtype)
    return loss, slope @ weight, slope


def _add_product(total: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    """Adds `a @ b` to a total in place, without an array for the product where the types allow it."""
    if total.dtype is a.dtype:
        total.addmm_(a, b)
    else:
        total += a @ b


def _summed(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype is torch.float64 else torch.float32


@cache
def _compiled_piece() -> Piece:
    compiled: Piece = torch.compile(_piece)
    return compiled
