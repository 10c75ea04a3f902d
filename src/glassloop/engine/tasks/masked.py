"""Masked passes: known text is computed once, then masked rows over it, pass after pass.

A `Masked` is a task like a reading: its rows are planned beside those of other requests, it can be preempted
and cancelled, and it shares with the KV tree what is computed of the text before its masks. What each pass
contains is decided by its `Pilot`, which is given the logits of the pass before. Text that is not a plain
continuation (the text after a hole, the masks) lies on pages of its own, which no other request can match.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from glassloop.decode.stop import Ending
from glassloop.engine.branch import Branch
from glassloop.engine.deadline import Deadline
from glassloop.engine.owner import current_realm
from glassloop.engine.tasks.reading import Reading
from glassloop.engine.tasks.task import Counters, View, WantedRow
from glassloop.engine.tree import KVPath, KVTree
from glassloop.ops.quant import Float32


class Mask(NamedTuple):
    """What masked rows are for a model."""

    token: int  # the token that they carry
    adapter: int = 0  # the number of the adapter that acts on them; 0: none
    whole: bool = False  # the model sees all of a text from every row: it was trained on whole masked texts
    shifted: bool = False  # the logits of a row are about the next position, not about its own
    sha256: str = ""  # of the adapter's file


class MaskedRow(NamedTuple):
    """A row that is not a plain continuation of the text before it."""

    id: int
    position: int
    sees_all: bool = False  # all rows of its pass; else the slots up to its own
    adapter: int = 0


class Pass(NamedTuple):
    """The rows of one pass, which are computed in one step: they may see each other."""

    rows: list[MaskedRow]
    wanted: int  # how many of the last rows have logits that the pilot needs
    again: int = 0  # how many of the last kept rows are computed again, before the rows of the pass


class Pilot(Protocol):
    """Decides what the next pass is. Called on the engine's thread: it must be quick."""

    def advance(self, logits: Float32) -> Pass | None:
        """Returns the next pass after one whose wanted rows had these logits; None: there is no more to do.
        It may add to `kept` of the branch before."""

    def finish(self, ending: Ending) -> bool:
        """Ends before its time. Returns whether what it has by then is a result."""


class MaskedBranch(Branch):
    """The plain text of a masked task, which lies in the tree, and the rows after it, which do not.

    The slots are: `tokens` (in the tree), `kept` (causal rows, computed once), the rows of the pass.
    """

    __slots__ = ("computed", "kept", "next", "scratch")

    def __init__(self, tokens: list[int], kept: list[MaskedRow], first: Pass, realm: str = "") -> None:
        super().__init__(tokens, len(tokens) + 1, realm=realm)  # no row of the plain text is wanted
        self.kept = kept
        self.next = first
        self.computed = 0  # of the kept rows
        self.scratch: KVPath | None = None

    def leave(self, tree: KVTree) -> None:
        if self.scratch is not None:
            tree.release(self.scratch)
        self.scratch, self.computed = None, 0
        super().leave(tree)

    def drop_rejected(self, tree: KVTree) -> None:
        """Keeps what is computed: its rows are no drafts."""

    @property
    def rows_in_one_step(self) -> int:
        """How many rows must be computed together, at least: those of the pass, or one of the kept ones."""
        return 1 if self.computed < len(self.kept) else self.next.again + len(self.next.rows)

    def take(self, tree: KVTree, room: int) -> tuple[KVPath, int, list[int], int, View]:
        """Reserves pages for the next rows: those of the pass, with the kept ones that are not computed yet
        before them; or, if these are more than `room`, as many of the kept ones as fit.

        Returns the path, the first slot, the tokens, how many of the last rows are wanted, and the view.
        """
        assert self.path is not None and not self.pending
        first = min(self.computed, len(self.kept) - self.next.again)
        rows, wanted, computed = [*self.kept[first:], *self.next.rows], self.next.wanted, len(self.kept)
        if len(rows) > room and self.computed < len(self.kept):
            first = self.computed
            rows, wanted = self.kept[first : first + room], 0
            computed = first + len(rows)
        start = len(self.tokens) + first
        if self.scratch is None:
            self.scratch = tree.scratch(self.path)
        tree.reserve(self.scratch, start + len(rows))
        self.computed = computed
        end = start + len(rows)
        view = View(
            [row.position for row in rows],
            [end if row.sees_all else start + place + 1 for place, row in enumerate(rows)],
            [row.adapter for row in rows],
        )
        return self.scratch, start, [row.id for row in rows], wanted, view


class Masked(Reading):
    """A task whose pilot decides on each pass. It has ended when the pilot has no more passes."""

    masked = True

    def __init__(
        self,
        tokens: list[int],
        kept: list[MaskedRow],
        first: Pass,
        pilot: Pilot,
        deadline: Deadline | None = None,
    ) -> None:
        super().__init__(tokens, len(tokens), lambda found: None, None, deadline)
        self.branch = MaskedBranch(tokens, kept, first, current_realm())
        self.branches: Sequence[Branch] = [self.branch]
        self.cached_tokens = 0
        self._pilot = pilot

    def begin(self, now: float, cached: int) -> None:
        super().begin(now, cached)
        self.cached_tokens = min(cached, len(self.branch.tokens))

    def count(self, counters: Counters) -> None:
        counters.finished += 1
        counters.prompt_tokens += len(self.branch.tokens)
        counters.prompt_tokens_cached += self.cached_tokens

    def advance(self, rows: Sequence[WantedRow]) -> None:
        first = rows[0].place
        following = self._pilot.advance(self.host(rows[0].results[first : first + len(rows)]))
        if following is None:
            self._end(None)
        else:
            self.branch.next = following

    def overdue(self) -> Ending | None:
        ending = super().overdue()
        if ending is not None and not self.deadline.cancelled:
            return Ending("timeout", f"after {self.deadline.seconds:g} s")
        return ending

    def finish(self, ending: Ending) -> None:
        if self._pilot.finish(ending):
            self._end(None)
        elif ending.reason == "timeout":
            self._end(self.deadline.error())
        else:
            super().finish(ending)
