"""Compares choices from rows on the device with those of the native op set, for random rows and requests."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from glassloop.decode.chosen import RECORD, Chosen, record_with
from glassloop.decode.luck import branch_key
from glassloop.decode.rules import Action, RowRequest, Rule
from glassloop.ops.native import chooser as native
from glassloop.ops.quant import Float32
from glassloop.ops.rows import Line
from glassloop.ops.torch.device import DEVICE
from glassloop.ops.torch.rows import DeviceChooser, DeviceRows

ALTERNATIVES = 5


def random_rows(rng: np.random.Generator, rows: int, width: int) -> Float32:
    """Returns rows like those of models, of which some are flat and some have many equal logits."""
    spread = rng.choice([0.3, 2.0, 4.0], (rows, 1), p=[0.1, 0.5, 0.4])
    x = rng.normal(0.0, spread, (rows, width))
    x += (rng.random((rows, width)) < 20 / width) * rng.exponential(8.0, (rows, width))
    rounded = rng.random(rows) < 0.2
    x[rounded] = np.round(x[rounded])
    return x.astype(np.float32)


def random_request(rng: np.random.Generator, width: int) -> RowRequest:
    scale = 1.0 / float(rng.choice([1.0, 0.5, 0.8, 1.2]))
    rules = [Rule(Action.SCALE, scale)]
    kind = rng.integers(8)
    if kind in (1, 6):
        rules.append(Rule(Action.FIRST, int(rng.integers(1, 50))))
    if kind in (2, 6):
        rules.append(Rule(Action.MASS, float(rng.choice([0.5, 0.9]))))
    if kind == 3:
        rules.append(Rule(Action.SHARE, 0.05))
    if kind == 4:
        rules.append(Rule(Action.PROBABILITY, 0.01))
    if kind == 5:
        ids = rng.choice(width, min(20, width - 1), replace=False).astype(np.int32)
        rules.insert(0, Rule(Action(int(rng.choice([0, 1, 2]))), 1.3, ids))
    first = scale if rules[0].action is Action.SCALE else 1.0
    key = None if kind == 7 else branch_key(int(rng.integers(1 << 40)), 0)
    return RowRequest(min(64, width), first, rules, key, min(ALTERNATIVES, width))


def random_lines(rng: np.random.Generator, rows: int, width: int) -> list[Line]:
    order = rng.permutation(rows).tolist()
    return [(random_request(rng, width), row, int(rng.integers(5000))) for row in order]


def choose_on_device(chooser: DeviceChooser, x: Float32, lines: list[Line], record: Any) -> list[Chosen]:
    rows = DeviceRows(torch.from_numpy(x).to(DEVICE), lambda: 0)
    return _read(chooser.choose(rows, lines, record), record)


def _read(made: bytes | bytearray, record: Any) -> list[Chosen]:
    return [Chosen(bytes(made[at : at + record.itemsize])) for at in range(0, len(made), record.itemsize)]


def differences(
    chooser: DeviceChooser, x: Float32, lines: list[Line], ignored: tuple[str, ...] = ()
) -> list[str]:
    """Returns the fields that differ, with both values."""
    record: Any = record_with(ALTERNATIVES)
    expected = _read(native.choose(x.copy(), lines, record), record)
    found = choose_on_device(chooser, x, lines, record)
    wrong = []
    for number, (here, there) in enumerate(zip(expected, found, strict=True)):
        names = [name for name in RECORD.names or () if getattr(here, name) != getattr(there, name)]
        wrong += [
            f"line {number}: {name} is {getattr(there, name)}, not {getattr(here, name)}"
            for name in names
            if name not in ignored
        ]
        if here.packed_alternatives != there.packed_alternatives and not ignored:
            wrong.append(f"line {number}: other alternatives")
    return wrong
