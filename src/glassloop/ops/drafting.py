"""What an op set needs to run a chain of drafts by itself (`model/drafter.py`): its own part of the protocol,
since only the native op set has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from glassloop.ops.batch import Batch, Int32
from glassloop.ops.kv_cache import Pages, Place
from glassloop.ops.protocol import Array, Forward, Ops
from glassloop.ops.quant import Float32


class ChainRequest(NamedTuple):
    """How the drafts of one branch are drawn, and when its chain stops."""

    branch_key: int | None  # of the luck; None: the highest logit wins
    position: int  # of the first draft
    scale: float  # of the logits
    most: int  # drafts
    chances: Sequence[float]  # by the class of its margin: the chance that a draft is right
    keep: Sequence[float]  # by number: the least chance of a draft and all before it, for it to be kept
    following: Sequence[float]  # the same, for another one to be drawn after it


class Drawn(NamedTuple):
    """The drafts of one branch. The first `kept` of them are worth a row."""

    tokens: list[int]
    margins: list[int]  # the class of the margin by which each one led
    kept: int


class DraftChain(Protocol):
    most: int  # drafts of a chain
    margins: int  # classes of margins

    def draw(
        self, batch: Batch, pages: Sequence[Pages], states: Float32, requests: Sequence[ChainRequest]
    ) -> list[Drawn]:
        """Draws drafts for the rows of a batch, each the only one of its branch: its token is the last one,
        which is not computed yet, and its position that of the token before, whose state is given. Nothing is
        written to the pages."""


@runtime_checkable
class DraftOps(Ops, Protocol):
    """An op set that can run chains."""

    def chain(self, compute: Forward[list[Array]], ids: Int32) -> DraftChain:
        """Returns a chain of drafts: `compute` returns the logits of the tokens `ids` and the next state,
        from the state before, which it takes from `given`."""

    def given(self, width: int) -> Array:
        """Returns the input of a program, one row for each of the batch: [rows, width]."""

    def keep(self, k: Array, v: Array, place: Place) -> None:
        """Writes keys and values to their pages: the first half of `attention`."""
