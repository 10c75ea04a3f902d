"""A choice and its reasons, kept as one piece of bytes: the fields are defined here, and so is equality.

An op set writes a record in one go, and a field is decoded when it is read. A run keeps a record for every
token, and most are never looked at.
"""

from __future__ import annotations

from functools import cache
from struct import Struct
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from glassloop.decode.rules import Action
from glassloop.errors import GlassloopError
from glassloop.ops.rows import Chooser, Float64, Int32

# A record is these fields, then any number of alternatives. ops/native/choosing.h has the same structures.
RECORD = np.dtype(
    [
        ("id", np.int64),
        ("logprob", np.float64),
        ("raw_logprob", np.float64),
        ("rank", np.int64),
        ("rank_after", np.int64),
        ("entropy", np.float64),
        ("log_sum_exp", np.float64),
        ("log_sum_exp_after", np.float64),
        ("scale", np.float64),
        ("luck", np.float64),
        ("margin", np.float64),
        ("runner_up", np.int64),
        ("survivors", np.int64),
    ]
)
ALTERNATIVE = np.dtype([("id", np.int64), ("logprob", np.float64), ("raw_logprob", np.float64)])
_INT, _FLOAT = Struct("q"), Struct("d")
T = TypeVar("T")


@cache
def record_with(alternatives: int) -> np.dtype[np.void]:
    """Returns the type of a record with this many alternatives."""
    return np.dtype([*RECORD.descr, ("alternatives", ALTERNATIVE, (alternatives,))])


class _Field(Generic[T]):
    """A descriptor that reads the field of its name out of the bytes; an optional one is None if negative."""

    def __init__(self, optional: bool = False) -> None:
        self._optional = optional

    def __set_name__(self, owner: type, name: str) -> None:
        self._at: int = RECORD.fields[name][1]  # type: ignore[index]
        self._unpack = (_INT if RECORD[name].kind == "i" else _FLOAT).unpack_from

    def __get__(self, chosen: Chosen, owner: type) -> T:
        (value,) = self._unpack(chosen.data, self._at)
        return None if self._optional and value < 0 else value  # type: ignore[return-value]


class Chosen:
    """The record of a chosen token. Two are equal if all of their bits are.

    Log-probabilities and ranks are over the whole vocabulary; ranks start at 1.
    """

    __slots__ = ("data", "id")

    logprob = _Field[float]()  # after the stages
    raw_logprob = _Field[float]()  # the model's own
    rank = _Field[int]()  # in the model's own order
    rank_after = _Field[int]()  # among the survivors; 0 for a forced token that had been removed
    entropy = _Field[float]()  # of the model's own distribution, in nats
    log_sum_exp = _Field[float]()  # of the model's own logits
    log_sum_exp_after = _Field[float]()  # of the survivors' logits
    scale = _Field[float]()  # by which the stages multiplied every logit: one over the temperature
    luck = _Field[float]()
    margin = _Field[float]()  # by how much logit + luck exceeded the runner-up's; infinite if there was none
    runner_up = _Field[int | None](optional=True)
    survivors = _Field[int | None](optional=True)  # how many tokens the stages left, if they were counted

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.id: int = _INT.unpack_from(data)[0]

    @classmethod
    def of(cls, packed_alternatives: bytes = b"", **fields: float | None) -> Chosen:
        """Makes a record from every field by its name, and `pack_alternatives`."""
        if RECORD.fields is None or fields.keys() != RECORD.fields.keys():
            raise TypeError(f"a choice has {', '.join(RECORD.names or ())}, not {', '.join(fields)}")
        values = [fields[name] for name in RECORD.fields]
        record = np.array(tuple(-1 if value is None else value for value in values), RECORD)
        return cls(record.tobytes() + packed_alternatives)

    @property
    def packed_alternatives(self) -> bytes:
        return self.data[RECORD.itemsize :]

    @property
    def alternatives(self) -> NDArray[np.void]:
        """The model's likeliest tokens with their log-probabilities after the stages (minus infinity for
        removed ones) and before."""
        return np.frombuffer(self.packed_alternatives, ALTERNATIVE)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Chosen) and self.data == other.data

    def __hash__(self) -> int:
        return hash(self.data)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)}" for name in RECORD.names or ())
        return f"Chosen({fields}, alternatives={self.alternatives.tolist()})"


def pack_alternatives(ids: Int32, logprobs: Float64, raw_logprobs: Float64) -> bytes:
    """Returns alternatives in the form that a record has them."""
    alternatives = np.empty(len(ids), ALTERNATIVE)
    alternatives["id"], alternatives["logprob"], alternatives["raw_logprob"] = ids, logprobs, raw_logprobs
    return alternatives.tobytes()


@cache
def check_chooser(chooser: Chooser) -> None:
    """Raises if an op set was compiled with another record or other actions than those of `decode/`."""
    theirs = chooser.layout
    ours = {f"action.{action.name}": int(action) for action in Action}
    for name, kind in (("record", RECORD), ("alternative", ALTERNATIVE)):
        ours[name] = kind.itemsize
        ours |= {f"{name}.{field}": kind.fields[field][1] for field in kind.names or ()}  # type: ignore[index]
    for name in sorted(ours.keys() | theirs.keys()):
        if theirs and ours.get(name) != theirs.get(name):
            raise GlassloopError(
                f"the op set was built from another version of glassloop; build it again ({name} is"
                f" {theirs.get(name)} there and {ours.get(name)} here)"
            )
