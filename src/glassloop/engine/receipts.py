"""Whether a receipt is true: its run is the one that it has the digests of, and a model computes the same
tokens with the same numbers. The tokens are computed as a prompt is, many at a time, so this takes a part of
the time that generating them took."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from glassloop.engine.deadline import Deadline
from glassloop.engine.local import LocalModel
from glassloop.engine.replay import replay_run
from glassloop.errors import TraceError
from glassloop.record.receipt import Receipt, load_receipt
from glassloop.record.run import Run
from glassloop.record.signing import signature_problem
from glassloop.record.verdict import Difference, ReplayVerdict


@dataclass(frozen=True)
class ReceiptVerdict:
    """The result of a verification. True in a condition if the receipt is true."""

    problems: tuple[str, ...]  # what the receipt says that is not so, one sentence for each
    replay: ReplayVerdict | None  # what the model computes; None if the receipt is wrong already
    signer: str | None  # the public key that the receipt is signed with

    @property
    def identical(self) -> bool:
        """Whether the receipt is true to the last bit."""
        return not self.problems and self.replay is not None and self.replay.identical

    @property
    def first(self) -> Difference | None:
        """The first token that the model does not choose or that has other numbers."""
        return None if self.replay is None else self.replay.first

    @property
    def sentence(self) -> str:
        signed = f", signed by {self.signer[:16]}…" if self.signer else ""
        if self.problems:
            return "not the run of the receipt: " + "; ".join(self.problems)
        assert self.replay is not None
        return self.replay.sentence + signed

    def to_dict(self) -> dict[str, Any]:
        """Returns the verdict as JSON has it."""
        replay = None if self.replay is None else self.replay.to_dict()
        plain = {"identical": self.identical, "sentence": self.sentence, "problems": list(self.problems)}
        return plain | {"signer": self.signer, "replay": replay}

    def __bool__(self) -> bool:
        return self.identical

    def __str__(self) -> str:
        return self.sentence


def verify(
    receipt: Receipt | str | os.PathLike[str],
    llm: LocalModel,
    *,
    run: Run | None = None,
    key: str | None = None,
    deadline: Deadline | None = None,
) -> ReceiptVerdict:
    """Checks a receipt, or the file of one, against a run and a model. Without `run`, the receipt must have
    the run itself: it was made in this process, or saved with the text. `key` is the public key, in
    hexadecimal, that the receipt must be signed with."""
    return verify_with(lambda: llm, receipt, run, key, deadline)


def verify_with(
    load: Callable[[], LocalModel],
    receipt: Receipt | str | os.PathLike[str],
    run: Run | None,
    key: str | None,
    deadline: Deadline | None = None,
) -> ReceiptVerdict:
    """Does what `verify` does, with a model that is loaded only if the run is the one of the receipt."""
    if not isinstance(receipt, Receipt):
        receipt = load_receipt(receipt, Run)
    content = receipt.content if run is None else run
    if not isinstance(content, Run):
        raise TraceError.about(
            "run", f"is not given, and the receipt does not have it: the run {receipt.run} is expected"
        )
    problems = receipt.differences(content)
    unsigned = signature_problem(receipt, key)
    if unsigned is not None:
        problems.insert(0, unsigned)
    if problems:
        return ReceiptVerdict(tuple(problems), None, None)
    return ReceiptVerdict((), replay_run(load(), content, deadline=deadline), receipt.key)
