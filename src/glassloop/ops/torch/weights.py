"""Prepares the weights of a recorded forward pass: copies matrices to the device, joins those that one
product reads, and places the matrices of all adapters side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from glassloop.ops.torch.device import Device
from glassloop.ops.torch.matrix import TorchMatrix
from glassloop.ops.torch.recorder import Product, TorchCall, widest_rank


def prepare_weights(calls: Sequence[TorchCall], device: Device) -> list[dict[str, Any]]:
    """Returns the settings of calls with the weights on the device; raises if these do not fit there."""
    groups = {tuple(matrices) for call in calls if (matrices := _matrices(call))}
    expanded, packed = (
        sum(TorchMatrix.missing_bytes(group, each) for group in groups) for each in (False, True)
    )
    stay_packed = device.keeps_packed(expanded, packed)
    device.check_room("the model", packed if stay_packed else expanded)
    for matrix in {matrix for group in groups for matrix in group}:
        matrix.stays_packed |= stay_packed
    return [_with_weights(call, device) for call in calls]


def _matrices(call: TorchCall) -> list[TorchMatrix]:
    """Returns the matrices of a call, which are joined."""
    if call.kind == "embed":
        return [call.settings["table"]]
    return [product.matrix for product in call.settings.get("products", ())]


def _with_weights(call: TorchCall, device: Device) -> dict[str, Any]:
    """Returns the settings of a call, with arrays on the device in place of matrices and products."""
    settings = dict(call.settings)
    if call.kind == "embed":
        settings["table"] = settings["table"].stored
    elif call.kind == "linear":
        products = settings.pop("products")
        in_turn = settings.pop("in_turn", False) or settings.get("gated", False)
        settings["weight"] = TorchMatrix.joined([product.matrix for product in products], in_turn)
        settings["bias"] = _joined_biases(products, in_turn, device)
    elif call.kind in ("down", "up"):
        in_turn = settings.get("in_turn", False)
        settings = _adapter_matrices(call.kind, settings["products"], in_turn, device)
    return settings


def _joined_biases(products: Sequence[Product], in_turn: bool, device: Device) -> torch.Tensor | None:
    """Returns the biases of products in the order of their joined matrix; None if no product has one."""
    if all(product.bias is None for product in products):
        return None
    biases = [
        torch.zeros(product.matrix.out, device=device.torch) if product.bias is None else product.bias
        for product in products
    ]
    return torch.stack(biases, 1).flatten() if in_turn else torch.cat(biases)


def _adapter_matrices(
    kind: str, products: Sequence[Product], in_turn: bool, device: Device
) -> dict[str, Any]:
    """Returns the matrices of all adapters for some products of one input, on the device.

    `down` matrices are [adapters, products * rank, in]: those of the products one below the other. `up`
    matrices are [adapters, out, products * rank]: those of the products along the diagonal, with zeros beside
    them, which add nothing; their rows are in turn if those of the joined matrix are. An adapter with a lower
    rank is filled up with zeros. `places` has the place of each adapter's matrices, by its number, or -1.
    """
    rank, outs = widest_rank(products), [product.matrix.out for product in products]
    numbers = range(max(len(product.parts or ()) for product in products))
    places = np.full(len(numbers), -1, np.int32)
    matrices: list[torch.Tensor] = []
    scales: list[float] = []
    for number in numbers:
        parts = [product.parts[number] if product.parts else None for product in products]
        if not any(part is not None for part in parts):
            continue
        places[number] = len(matrices)
        height, width = len(products) * rank, products[0].matrix.into
        matrix = np.zeros((height, width) if kind == "down" else (sum(outs), height), np.float32)
        for at, part in enumerate(parts):
            if part is None:
                continue
            columns = slice(at * rank, at * rank + part.down.shape[0])
            if kind == "down":
                matrix[columns] = part.down.float32()
            else:
                outputs = slice(at, None, 2) if in_turn else slice(sum(outs[:at]), sum(outs[: at + 1]))
                matrix[outputs, columns] = part.up.float32()
        matrices.append(torch.from_numpy(matrix).to(device.half))
        scales.append(next(part.scale for part in parts if part is not None))
    settings = {
        "weight": torch.stack(matrices).to(device.torch),
        "places": torch.from_numpy(places).to(device.torch),
    }
    if kind == "up":
        settings["scales"] = torch.tensor(scales, device=device.torch)
    return settings
