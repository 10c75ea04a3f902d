"""`Run`: the record of a generation, with the methods that a user calls.

Explaining, forking and replaying need the model: they call the `LLM` that made the run. A run that was read
from a file has none until it is attached to one. Files and views are loaded when they are first asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import TYPE_CHECKING, Any, Protocol

from glassloop.errors import TraceError
from glassloop.record.run_record import AttachedModel, RunRecord
from glassloop.record.token import Token
from glassloop.util.check import check_path
from glassloop.util.shown import shown

if TYPE_CHECKING:
    from anywidget import AnyWidget

    from glassloop.decode.explanation import Explanation
    from glassloop.record.receipt import Receipt
    from glassloop.record.run_tree import RunTree
    from glassloop.record.verdict import ReplayVerdict
    from glassloop.record.views.page import Shown


class Maker(AttachedModel, Protocol):
    """What a run needs of an `LLM`: the one that made it, or another with the same model."""

    def explain(self, run: Run, at: int, **overrides: Any) -> Explanation: ...

    def fork(self, run: Run, at: int, **options: Any) -> Run: ...

    def replay(self, run: Run, *, first: int = 0, strict: bool = True) -> ReplayVerdict: ...


@dataclass(eq=False, repr=False)
class Run(RunRecord):
    """One generation, with everything that is known about it and what can be asked of it."""

    llm: Maker | None = field(default=None, repr=False)

    # ── questions ──────────────────────────────────────────────────────────────────────────────────────────

    def explain(self, at: int, *, llm: Maker | None = None, **overrides: Any) -> Explanation:
        """Explains why the token at this place was chosen. Any option of `Sampling` makes it a what-if, with
        the same luck. The place after the last token is that of the token that ended the run."""
        if not self.origin.is_local:  # only its record is known
            from glassloop.record.reported import explain_reported

            return explain_reported(self, at, **overrides)
        return self._maker(llm).explain(self, at, **overrides)

    def fork(self, at: int, *, llm: Maker | None = None, **options: Any) -> Run:
        """Returns a new run with the first `at` tokens of this one. It continues with `token=` or `text=`,
        with other options (`temperature=0.3`), or, if nothing is given, with new luck."""
        return self._maker(llm).fork(self, at, **options)

    def replay(self, llm: Maker | None = None, *, first: int = 0, strict: bool = True) -> ReplayVerdict:
        """Computes the run again, from the token `first` on, and compares every number. If another model made
        the run, this raises, or, unless `strict`, the verdict says so."""
        self.check_computable()
        return self._maker(llm).replay(self, first=first, strict=strict)

    def attach(self, llm: Maker | None) -> None:
        """Makes this the model that explains, forks and replays the run."""
        if llm is not None:
            _check_is_maker(llm)
        if llm is not None and self.model_hash and self.model_hash != llm.model_hash:
            raise TraceError(
                f"run {self.id} was made by another model: {self.model} ({self.model_hash[:12]}…),"
                f" not the one given ({llm.model_hash[:12]}…)",
                field="llm",
            )
        self.llm = llm

    def _maker(self, llm: Maker | None) -> Maker:
        maker = self.llm if llm is None else llm
        if maker is None:
            expected = f"llm= is expected, an LLM with the model {self.model}"
            raise TraceError(f"run {self.id} was read from a file; {expected}", field="llm")
        _check_is_maker(maker)
        return maker

    def tree(self) -> RunTree[Run]:
        """Returns all runs that descend from the same request, by forks and samples, as far as loaded."""
        from glassloop.record.run_tree import RunTree

        return RunTree.of(self)

    # ── files ──────────────────────────────────────────────────────────────────────────────────────────────

    def save(self, path: str | PathLike[str], *, tree: bool = False) -> None:
        """Writes the run and the other samples of its request as a `.glass` file, or nothing if that fails.
        With `tree`, writes all runs of its tree."""
        from glassloop.record.format.glass_bytes import write

        others = [other for other in self.samples if other is not self]
        write(check_path("path", path), self.tree().from_run(self) if tree else [self, *others])

    @staticmethod
    def load(path: str | PathLike[str], *, llm: Maker | None = None) -> Run:
        """Returns the first run of a `.glass` file; the others are in its `samples` and its `tree()`. With
        `llm` it can be explained and forked; raises if that is another model."""
        from glassloop.record.format.glass_bytes import read_as

        runs = read_as(Run, check_path("path", path))
        for run in runs:
            run.attach(llm)
        return runs[0]

    def receipt(self, *, key: str | PathLike[str] | None = None) -> Receipt:
        """Returns a receipt: digests of prompt, options, tokens and numbers, which `glassloop.verify` checks
        with the model. `key` is the PEM file of an Ed25519 key to sign it with. docs/receipts.md."""
        from glassloop.record.receipt import receipt_of

        receipt = receipt_of(self)
        if key is None:
            return receipt
        from glassloop.record.signing import SigningKey

        return receipt.signed(SigningKey(check_path("key", key)))

    def save_html(
        self,
        path: str | PathLike[str],
        *,
        explanations: Mapping[int, Explanation] | None = None,
        extras: Sequence[Shown] = (),
        tree: bool = True,
    ) -> None:
        """Writes a page that shows the run anywhere, without a network: its text, its tree, and the record of
        each token. `explanations` (by place, from `explain`) and `extras` (lenses, comparisons) are added to
        it. Without `tree`, only this run is in it."""
        from glassloop.record.views.page import page
        from glassloop.util.files import write_text

        write_text(check_path("path", path), page(self, explanations, extras, tree))

    # ── notebooks ──────────────────────────────────────────────────────────────────────────────────────────

    def live(self, on_fork: Callable[[Run], None] | None = None) -> AnyWidget:
        """Returns a widget for a notebook: a click on an alternative forks the run, and the widget's `run` is
        then the fork. Needs the extra `notebook`."""
        from glassloop.record.views.live import widget

        return widget(self, Run.fork, on_fork)

    def _repr_html_(self) -> str:
        """Returns the run as a notebook shows it: HTML without a script."""
        from glassloop.record.views.notebook import run_view

        return run_view(self)


class TakenBack(Token):
    """An event of a stream: the last tokens of its sample were taken back. Its numbers are those of the first
    of them, and its text is empty. It is never part of a run."""

    __slots__ = ("run", "taken", "to")

    def __init__(self, first: Token, run: Run, to: int, taken: int) -> None:
        super().__init__(first.chosen, "", b"", first._pieces, first.source, first.seconds, first.sample)
        self.run = run  # the fork that continues
        self.to = to  # how many tokens of the answer are left
        self.taken = taken  # how many were taken back


def check_is_run(run: object) -> None:
    """Raises unless a value that a caller gives as a run is one."""
    if not isinstance(run, Run):
        raise TraceError.about("run", f"is {shown(run)}; a Run is expected")


def _check_is_maker(llm: object) -> None:
    """Raises unless a value that a caller gives as an `LLM` can be used as one."""
    if not all(hasattr(type(llm), name) for name in ("explain", "fork", "replay")):
        raise TraceError.about("llm", f"is {shown(llm)}; an LLM is expected")
