"""A choice and its reasons, written down in one piece of bytes.

An op set writes it in one go; a number is read when somebody asks for it. A run keeps one for every token,
and most are never looked at.
"""

from __future__ import annotations

from struct import Struct

import numpy as np
from numpy.typing import NDArray

from glassloop.ops.vocabulary import Float64, Int32

# What is written down: first these, then any number of alternatives. `choosing.c` has the same.
NUMBERS = np.dtype(
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
_WHOLE, _REAL = Struct("q"), Struct("d")


class _Number:
    """One of the numbers, by its name."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._at: int = NUMBERS.fields[name][1]  # type: ignore[index]


class _Whole(_Number):
    def __get__(self, chosen: Chosen, owner: type) -> int:
        found: int = _WHOLE.unpack_from(chosen.data, self._at)[0]
        return found


class _Real(_Number):
    def __get__(self, chosen: Chosen, owner: type) -> float:
        found: float = _REAL.unpack_from(chosen.data, self._at)[0]
        return found


class _Perhaps(_Number):
    """None is written as -1."""

    def __get__(self, chosen: Chosen, owner: type) -> int | None:
        found: int = _WHOLE.unpack_from(chosen.data, self._at)[0]
        return None if found < 0 else found


class Chosen:
    """Log-probabilities and ranks are over the whole vocabulary, ranks from 1."""

    __slots__ = ("data", "id")

    logprob = _Real()  # after the stages
    raw_logprob = _Real()  # the model's own
    rank = _Whole()  # in the model's own order
    rank_after = _Whole()  # among the survivors; 0 for a token that was removed, and forced
    entropy = _Real()  # of the model's own distribution, in nats
    log_sum_exp = _Real()  # of the model's own logits
    log_sum_exp_after = _Real()  # of what the stages left
    scale = _Real()  # by which they multiplied every logit: one over the temperature
    luck = _Real()
    margin = _Real()  # by how much logit + luck exceeded the runner-up's
    runner_up = _Perhaps()
    survivors = _Perhaps()  # how many tokens the stages left; None where nobody needed to count them

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.id: int = _WHOLE.unpack_from(data)[0]

    @classmethod
    def of(cls, told: bytes = b"", **numbers: float | None) -> Chosen:
        """From every number by its name, and what is told of alternatives."""
        if NUMBERS.fields is None or numbers.keys() != NUMBERS.fields.keys():
            raise TypeError(f"a choice has {', '.join(NUMBERS.names or ())}, not {', '.join(numbers)}")
        plain = [numbers[name] for name in NUMBERS.fields]
        written = np.array(tuple(-1 if number is None else number for number in plain), NUMBERS)
        return cls(written.tobytes() + told)

    @property
    def told(self) -> bytes:
        """Of alternatives."""
        return self.data[NUMBERS.itemsize :]

    @property
    def alternatives(self) -> NDArray[np.void]:
        """The model's own favourites: their log-probabilities after the stages (minus infinity for the
        removed) and before."""
        return np.frombuffer(self.told, ALTERNATIVE)

    def __eq__(self, other: object) -> bool:
        """To the last bit."""
        return isinstance(other, Chosen) and self.data == other.data

    def __hash__(self) -> int:
        return hash(self.data)

    def __repr__(self) -> str:
        numbers = ", ".join(f"{name}={getattr(self, name)}" for name in NUMBERS.names or ())
        return f"Chosen({numbers}, alternatives={self.alternatives.tolist()})"


def tell(ids: Int32, logprobs: Float64, raw_logprobs: Float64) -> bytes:
    """Of alternatives, for a Chosen."""
    made = np.empty(len(ids), ALTERNATIVE)
    made["id"], made["logprob"], made["raw_logprob"] = ids, logprobs, raw_logprobs
    return made.tobytes()
