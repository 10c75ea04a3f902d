"""Random rows of logits, random requests to choose from them, and the comparison of two lists of records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from glassloop.decode.chosen import RECORD, Chosen, record_with
from glassloop.decode.luck import branch_key
from glassloop.decode.rules import Action, RowRequest, Rule
from glassloop.ops.native import chooser as native
from glassloop.ops.quant import Float32
from glassloop.ops.rows import Line

ALTERNATIVES = 5
RECORD_TYPE: Any = record_with(ALTERNATIVES)


def random_rows(rng: np.random.Generator, rows: int, width: int) -> Float32:
    """Returns rows like those of models, of which some are flat and some have many equal logits."""
    spread = rng.choice([0.3, 2.0, 4.0], (rows, 1), p=[0.1, 0.5, 0.4])
    x = rng.normal(0.0, spread, (rows, width))
    x += (rng.random((rows, width)) < 20 / width) * rng.exponential(8.0, (rows, width))
    rounded = rng.random(rows) < 0.2
    x[rounded] = np.round(x[rounded])
    return x.astype(np.float32)


def random_edits(rng: np.random.Generator, width: int) -> list[Rule]:
    """Rules about single tokens, as those of penalties, biases, missing ids and grammars."""

    def some(most: int) -> Any:
        return rng.choice(width, int(rng.integers(0, min(most, width))), replace=False).astype(np.int32)

    edits = []
    for _ in range(int(rng.integers(1, 4))):
        kind, ids = rng.integers(7), some(int(rng.choice([3, 40, 1500])))
        if kind == 0:
            edits.append(Rule(Action.DIVIDE, float(rng.choice([1.3, 0.7])), ids))
        if kind == 1:
            edits.append(Rule(Action.LESS, float(rng.choice([0.5, -2.0])), ids))
        if kind == 2:
            edits.append(Rule(Action.LESS, -1.0, ids, rng.normal(0.0, 5.0, len(ids))))
        if kind == 3:
            edits.append(Rule(Action.REMOVE, 0.0, np.concatenate([ids, ids[:2]])))
        if kind == 4:
            edits.append(Rule(Action.KEEP, 0.0, rng.random(width) < rng.choice([0.01, 0.5, 0.99])))
        if kind == 5:  # few tokens are left, or none
            kept = np.zeros(width, np.bool_)
            kept[some(20)] = True
            edits.append(Rule(Action.KEEP, 0.0, kept))
        if kind == 6:
            edits.append(Rule(Action.LESS, 0.3, ids[:0]))
    return edits


def random_request(rng: np.random.Generator, width: int) -> RowRequest:
    scale = 1.0 / float(rng.choice([1.0, 0.5, 0.8, 1.2]))
    rules = [Rule(Action.SCALE, scale)]
    kind = rng.integers(9)
    if kind in (1, 6):
        rules.append(Rule(Action.FIRST, int(rng.integers(1, 50))))
    if kind in (2, 6):
        rules.append(Rule(Action.MASS, float(rng.choice([0.5, 0.9]))))
    if kind == 3:
        rules.append(Rule(Action.SHARE, 0.05))
    if kind == 4:
        rules.append(Rule(Action.PROBABILITY, 0.01))
    if kind == 5:  # after the scale: a device leaves this to the host
        ids = rng.choice(width, min(20, width - 1), replace=False).astype(np.int32)
        rules.append(Rule(Action(int(rng.choice([0, 1, 2]))), 1.3, ids))
    if rng.random() < 0.6:
        rules = random_edits(rng, width) + rules
    first = scale if rules[0].action is Action.SCALE else 1.0
    key = None if kind == 7 else branch_key(int(rng.integers(1 << 40)), 0)
    return RowRequest(min(64, width), first, rules, key, min(ALTERNATIVES, width))


def random_cuts(rng: np.random.Generator, width: int) -> RowRequest:
    """Returns a request with one to four cuts of any kind, before or after the scale, that may keep most of
    the row."""
    amounts: dict[Action, Any] = {
        Action.FIRST: lambda: int(rng.choice([1, 40, 400, max(width // 2, 1)])),
        Action.MASS: lambda: float(rng.choice([0.3, 0.9, 0.95, 0.999])),
        Action.SHARE: lambda: float(rng.choice([0.5, 0.05, 1e-3])),
        Action.PROBABILITY: lambda: float(rng.choice([0.01, 3e-4, 1e-6])),
        Action.TYPICAL: lambda: float(rng.choice([0.2, 0.9])),
        Action.SIGMA: lambda: float(rng.choice([0.5, 1.0, 3.0])),
        Action.EXCLUDE: lambda: float(rng.choice([0.1, 0.01])),
        Action.ETA: lambda: float(rng.choice([1e-3, 0.05])),
    }
    kinds = rng.choice(len(amounts), int(rng.integers(1, 5)), replace=False)
    rules = [Rule(action, amounts[action]()) for action in (list(amounts)[kind] for kind in kinds)]
    scale = 1.0 / float(rng.choice([1.0, 0.25, 0.7, 2.0]))
    rules.insert(int(rng.integers(len(rules) + 1)), Rule(Action.SCALE, scale))
    if rng.random() < 0.3:
        rules = random_edits(rng, width) + rules
    first = scale if rules[0].action is Action.SCALE else 1.0
    key = branch_key(int(rng.integers(1 << 40)), 0)
    return RowRequest(min(64, width), first, rules, key, min(ALTERNATIVES, width))


def random_lines(
    rng: np.random.Generator, rows: int, width: int, draw: Callable[..., RowRequest] = random_request
) -> list[Line]:
    order = rng.permutation(rows).tolist()
    return [(draw(rng, width), row, int(rng.integers(5000))) for row in order]


def choose_natively(x: Float32, lines: list[Line]) -> list[Chosen]:
    return read_records(native.choose(x.copy(), lines, RECORD_TYPE))


def read_records(made: bytes | bytearray, record: Any = RECORD_TYPE) -> list[Chosen]:
    return [Chosen(bytes(made[at : at + record.itemsize])) for at in range(0, len(made), record.itemsize)]


def compare(expected: list[Chosen], found: list[Chosen]) -> list[str]:
    """Returns the fields that differ, with both values."""
    wrong = []
    for number, (here, there) in enumerate(zip(expected, found, strict=True)):
        if here.id < 0 or there.id < 0:  # no token is left, and no other field is made
            wrong += [f"line {number}: id is {there.id}, not {here.id}"] if here.id != there.id else []
            continue
        wrong += [
            f"line {number}: {name} is {getattr(there, name)}, not {getattr(here, name)}"
            for name in RECORD.names or ()
            if getattr(here, name) != getattr(there, name)
        ]
        if here.packed_alternatives != there.packed_alternatives:
            wrong.append(f"line {number}: other alternatives")
    return wrong
