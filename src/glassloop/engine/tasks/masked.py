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
from glassloop.engine.kv_nodes import KVPath
from glassloop.engine.owner import current_realm
from glassloop.engine.tasks.reading import Reading
from glassloop.engine.tasks.task import Counters, Task, View, WantedRow, Work
from glassloop.engine.tree import KVTree
from glassloop.errors import GlassloopError
from glassloop.model.transformer import Transformer
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

    def check(self, transformer: Transformer) -> None:
        """Raises unless the first pass fits into a step beside others, and all rows are the model's."""
        if self.tokens:
            super().check(transformer)
        self.check_pass(transformer)
        config = transformer.config
        for row in [*self.kept, *self.next.rows]:
            if not 0 <= row.id < config.vocab_size or not 0 <= row.position < config.context:
                raise GlassloopError(
                    f"a row has the token {row.id} at the position {row.position}; a token below"
                    f" {config.vocab_size} at a position below {config.context} is expected"
                )

    def check_pass(self, transformer: Transformer, field: str | None = None) -> None:
        """Raises unless the next pass fits into a step beside others. `field` is the option that has the
        number of its rows."""
        config, rows = transformer.config, len(self.next.rows)
        if config.is_recurrent:
            raise GlassloopError("the model has recurrent layers, whose rows cannot see what is after them")
        # Beside other tasks half of a step is always free. A model for whole masked texts has no such tasks.
        most = transformer.ops.step_rows // 2 if config.mask_token is None else config.context
        if 0 < rows <= most:
            return
        expected = f"1 to {most} are expected, since they are computed in one step"
        if field is None:
            raise GlassloopError(f"a pass has {rows} rows; {expected}")
        raise GlassloopError.about(field, f"makes a pass of {rows} rows; {expected}")

    def take(self, task: Task, tree: KVTree, room: int) -> Work:
        """Reserves pages for the next rows of its task: those of the pass, with the kept ones that are not
        computed yet before them; or, if these are more than `room`, as many of the kept ones as fit."""
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
        return Work(task, self.scratch, start, [row.id for row in rows], wanted, None, view)


class PassTask(Task):
    """What tasks have in common that compute a plain text, then passes over masks after it."""

    is_plain = False
    branch: MaskedBranch

    @property
    def pass_rows(self) -> int:
        return 0 if self.branch.pending else self.branch.rows_in_one_step

    def waits_for_a_token(self) -> bool:
        return False

    def next_rows(self, tree: KVTree, guess: list[int], room: int) -> list[Work]:
        branch = self.branch
        if branch.pending:
            return super().next_rows(tree, guess, room)
        return [] if branch.rows_in_one_step > room else [branch.take(self, tree, room)]


class Masked(PassTask, Reading):
    """A task whose pilot decides on each pass. It has ended when the pilot has no more passes."""

    def __init__(
        self,
        tokens: list[int],
        kept: list[MaskedRow],
        first: Pass,
        pilot: Pilot,
        deadline: Deadline | None = None,
    ) -> None:
        super().__init__(tokens, len(tokens), lambda results: None, None, deadline)
        self.branch = MaskedBranch(tokens, kept, first, current_realm())
        self.branches = [self.branch]
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
