"""Choices from rows on the device, beside those of the native op set."""

from __future__ import annotations

from typing import Any

import torch
from ops.random_choices import RECORD_TYPE, choose_natively, compare, read_records

from glassloop.decode.chosen import Chosen
from glassloop.ops.quant import Float32
from glassloop.ops.rows import Line
from glassloop.ops.torch.chooser import DeviceChooser
from glassloop.ops.torch.device import default_device
from glassloop.ops.torch.device_rows import DeviceRows


def choose_on_device(chooser: DeviceChooser, x: Float32, lines: list[Line], record: Any) -> list[Chosen]:
    device = default_device()
    rows = DeviceRows(torch.from_numpy(x).to(device.torch), device, lambda: 0)
    return read_records(chooser.choose(rows, lines, record), record)


def predictions(
    chooser: DeviceChooser, x: Float32, lines: list[Line]
) -> tuple[list[str], list[tuple[int, int]]]:
    """Returns the differences, and of each line that has a token the predicted and the chosen one."""
    device = default_device()
    rows = DeviceRows(torch.from_numpy(x).to(device.torch), device, lambda: 0)
    records, predicted = chooser.start(rows, lines).finish(RECORD_TYPE)
    chosen = read_records(records)
    pairs = [(told, record.id) for told, record in zip(predicted, chosen, strict=True) if record.id >= 0]
    return compare(choose_natively(x, lines), chosen), pairs


def differences(chooser: DeviceChooser, x: Float32, lines: list[Line]) -> list[str]:
    """Returns the fields that differ from the native op set's, with both values."""
    return compare(choose_natively(x, lines), choose_on_device(chooser, x, lines, RECORD_TYPE))
