"""The second half of the validator: the columns of a `.glass` file. `check_plan` is asked before they are
inflated, `check_columns` before tokens are made of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from glassloop.errors import TraceError
from glassloop.trace.columns import Column, Plan
from glassloop.trace.packing import OTHERS, PER_RECORD, PER_SLOT, SOURCES, logprobs
from glassloop.trace.validate import MOST_ID

_TYPES = PER_RECORD | PER_SLOT | OTHERS
_PAIRS = (  # of the same length
    ("odd_raw_at", "odd_raw"),
    ("odd_after_at", "odd_after"),
    ("piece_steps", "piece_lengths"),
    ("odd_bytes_ids", "odd_bytes_lengths"),
)
# What JSON and arithmetic have to be able to take. A margin is infinite where nobody else was left.
_FINITE = ("entropy", "log_sum_exp", "log_sum_exp_after", "scale", "luck", "seconds")
_ROUNDING = 1e-3  # a log-probability may exceed 0 by this


def check_plan(plan: Plan, records: int, most: int) -> None:
    """Each column is there once, with its type and the size that the number of records allows, and all
    together have at most so many bytes."""
    numbers: dict[str, int] = {}
    total = 0
    for name, kind, size in plan:
        if name not in _TYPES or name in numbers:
            raise TraceError(f"columns has {name[:40]!r}, which is twice there or no column of the format")
        if kind != _TYPES[name]:
            raise TraceError(f"column {name} is of type {kind!r}; {_TYPES[name]} is expected")
        width = int(kind[1])
        if size % width:
            raise TraceError(f"column {name} has {size} bytes; a multiple of {width} is expected")
        numbers[name] = size // width
        total += size
    for name in _TYPES:
        if name not in numbers:
            raise TraceError(f"column {name} is missing")
    if total > most:
        raise TraceError(f"columns have {total} bytes; at most {most} are expected")
    for name in PER_RECORD:
        _check_size(name, numbers[name], records)
    for name in PER_SLOT:
        _check_size(name, numbers[name], numbers["ids"])
    for first, second in _PAIRS:
        _check_size(second, numbers[second], numbers[first])


def _check_size(name: str, found: int, expected: int) -> None:
    if found != expected:
        raise TraceError(f"column {name} has {found} numbers; {expected} are expected")


def check_columns(columns: dict[str, Column]) -> None:
    """Every number is one that the writer could have written. The plan was checked."""
    slots, ids = columns["slots"], columns["ids"]
    _all("slots", slots, slots >= 1, "a number from 1")
    if int(slots.sum(dtype=np.int64)) != len(ids):
        raise TraceError(f"column slots names {int(slots.sum(dtype=np.int64))} ids; there are {len(ids)}")
    _all("ids", ids, ids >= 0, "a token id")
    for name in ("runner_up", "survivors"):
        _all(name, columns[name], columns[name] >= -1, "a number from -1")
    _all("source", columns["source"], columns["source"] < len(SOURCES), f"a number below {len(SOURCES)}")
    for name in _FINITE:
        _all(name, columns[name], np.isfinite(columns[name]), "a finite number")
    _all("seconds", columns["seconds"], columns["seconds"] >= 0, "a number from 0")
    _all("margin", columns["margin"], ~np.isnan(columns["margin"]), "a number")
    for name in ("odd_raw_at", "odd_after_at"):
        _all(name, columns[name], columns[name] < len(ids), "the place of a slot")
    for name, made in zip(("logits", "changes"), logprobs(columns), strict=True):
        # Minus infinity is a log-probability (a stage removed the token), NaN is none.
        _all(name, made, made <= _ROUNDING, "what makes a log-probability")
    _check_pieces(columns)


def _check_pieces(columns: dict[str, Column]) -> None:
    """Every id that is named has a piece, so that a run is shown without its model."""
    steps = columns["piece_steps"]
    _all("piece_steps", steps, (steps > 0) | (np.arange(len(steps)) == 0), "a number from 1")
    known = np.cumsum(steps, dtype=np.int64)
    if len(known) and known[-1] > MOST_ID:
        raise TraceError(f"column piece_steps adds up to {known[-1]}; at most {MOST_ID} is expected")
    runners_up = columns["runner_up"]
    for name, used in (
        ("ids", columns["ids"]),
        ("runner_up", runners_up[runners_up >= 0]),
        ("odd_bytes_ids", columns["odd_bytes_ids"]),
    ):
        _all(name, used, np.isin(used, known), "an id with a piece")


def _all(name: str, values: Column, right: Any, expected: str) -> None:
    if not right.all():
        place = int(np.argmin(right))
        raise TraceError(f"column {name} has {values[place]} at {place}; {expected} is expected")
