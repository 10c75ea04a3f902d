"""The second half of the validator: the columns of a `.glass` file. `check_plan` runs before they are
uncompressed, `check_columns` before tokens are made of them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from glassloop.errors import TraceError
from glassloop.record.format.check_header import MOST_ID
from glassloop.record.format.columns import Column, Plan
from glassloop.record.format.packing import COLUMNS, MAY_BE_UNKNOWN, logprobs

_ROUNDING = 1e-3  # a log-probability may exceed 0 by this


def check_plan(plan: Plan, records: int, most: int) -> None:
    """Raises unless every column is listed once, with its type and the length that the number of records
    allows, and all together have at most `most` bytes."""
    lengths: dict[str, int] = {"records": records}
    total = 0
    for name, kind, size in plan:
        if name not in COLUMNS or name in lengths:
            raise TraceError(
                f"columns has {name[:40]!r}, which is listed twice or not a column of the format"
            )
        if kind != COLUMNS[name].type:
            raise TraceError(f"column {name} is of type {kind!r}; {COLUMNS[name].type} is expected")
        width = int(kind[1])
        if size % width:
            raise TraceError(f"column {name} has {size} bytes; a multiple of {width} is expected")
        lengths[name] = size // width
        total += size
    for name in COLUMNS:
        if name not in lengths:
            raise TraceError(f"column {name} is missing")
    if total > most:
        raise TraceError(f"columns have {total} bytes; at most {most} are expected")
    for name, spec in COLUMNS.items():
        if spec.length and lengths[name] != lengths[spec.length]:
            raise TraceError(
                f"column {name} has {lengths[name]} numbers; {lengths[spec.length]} are expected"
            )


def check_columns(columns: dict[str, Column], unknown: bool = False) -> None:
    """Raises unless every number is one that the writer could have written. The plan was checked before.
    With `unknown`, numbers of a choice may be NaN: another engine did not give them."""
    for name, spec in COLUMNS.items():
        if spec.range is not None:
            low, high = spec.range
            values = columns[name]
            right = (values >= low) & (values <= high)
            if unknown and name in MAY_BE_UNKNOWN:
                right |= np.isnan(values)
            _all(name, values, right, f"a number from {low:g} to {high:g}")
    slots, ids = int(columns["slots"].sum(dtype=np.int64)), columns["ids"]
    if slots != len(ids):
        raise TraceError(f"column slots names {slots} ids; there are {len(ids)}")
    for name in ("odd_raw_at", "odd_after_at"):
        _all(name, columns[name], columns[name] < len(ids), "the place of a slot")
    for name, values in zip(("logits", "changes"), logprobs(columns), strict=True):
        # Minus infinity is a log-probability (a stage removed the token), NaN is not.
        right = values <= _ROUNDING
        _all(
            name,
            values,
            right | np.isnan(values) if unknown else right,
            "what makes a log-probability",
        )
    # Every id that is named has a piece, so that a run can be shown without its model.
    steps = columns["piece_steps"]
    _all("piece_steps", steps, (steps > 0) | (np.arange(len(steps)) == 0), "a number from 1")
    piece_ids = np.cumsum(steps, dtype=np.int64)
    if len(piece_ids) and piece_ids[-1] > MOST_ID:
        raise TraceError(f"column piece_steps adds up to {piece_ids[-1]}; at most {MOST_ID} is expected")
    runners_up = columns["runner_up"]
    named = {"ids": ids, "runner_up": runners_up[runners_up >= 0], "odd_bytes_ids": columns["odd_bytes_ids"]}
    for name, used in named.items():
        _all(name, used, np.isin(used, piece_ids), "an id with a piece")


def _all(name: str, values: Column, right: NDArray[np.bool_], expected: str) -> None:
    if not right.all():
        place = int(np.argmin(right))
        raise TraceError(f"column {name} has {values[place]} at {place}; {expected} is expected")
