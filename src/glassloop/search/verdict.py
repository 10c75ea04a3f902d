"""What a verifier says of a text, and the types of verifiers and extractors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from glassloop.engine.deadline import Deadline
from glassloop.engine.thread import Busy
from glassloop.errors import GlassloopError, described
from glassloop.util.shown import printable, shown


@dataclass(frozen=True)
class Verdict:
    """A verifier's opinion of the text of a path."""

    passed: bool
    score: float  # from 0 to 1, the best
    reason: str = ""


Verifier = Callable[[str], "Verdict | bool | float"]
Extractor = Callable[[str], "str | None"]  # text → the answer in canonical form, or None if it has none


@dataclass(frozen=True)
class TimedVerifier:
    """A verifier that can be given a deadline, and ends when it is over by raising an error."""

    judge: Callable[[str, Deadline | None], Verdict]
    check: Callable[[], None] | None = None  # raises GlassloopError if this machine lacks what it needs

    def __call__(self, text: str, until: Deadline | None = None) -> Verdict:
        return self.judge(text, until)

    def within(self, until: Deadline | None) -> Verifier:
        """Returns the same verifier with a deadline for all that it is asked."""
        return lambda text: self.judge(text, until)


@dataclass(frozen=True)
class TimedExtractor:
    """An extractor that can be given a deadline, and ends when it is over by raising an error."""

    find: Callable[[str, Deadline | None], str | None]

    def __call__(self, text: str, until: Deadline | None = None) -> str | None:
        return self.find(text, until)


def verdict_of(verifier: Verifier, text: str, until: Deadline | None = None) -> Verdict:
    """Returns what a verifier says of a text, by a deadline if it can be given one. True and False are scores
    of 1 and 0; a score passes if it is 1. An exception of the verifier is a verdict against the text; so is
    an exit, which would end the caller's program. `Busy` is passed on, as it says nothing about the text."""
    try:
        said = verifier(text, until) if isinstance(verifier, TimedVerifier) else verifier(text)
    except Busy:
        raise
    except (Exception, SystemExit) as error:
        return Verdict(False, 0.0, printable(f"{type(error).__name__}: {described(error)}", 200))
    if isinstance(said, Verdict):
        return said
    if isinstance(said, (bool, int, float)) and 0 <= said <= 1:
        return Verdict(said >= 1, float(said))
    problem = f"returned {shown(said)}; a Verdict, True, False or a score from 0 to 1 is expected"
    raise GlassloopError.about("verify", problem)


def answer_of(extractor: Extractor, text: str, until: Deadline | None = None) -> str | None:
    """Returns the answer that an extractor finds in a text, checked: answers are counted and recorded. Those
    that can be given a deadline raise an error when it is over."""
    answer = extractor(text, until) if isinstance(extractor, TimedExtractor) else extractor(text)
    if answer is not None and not isinstance(answer, str):
        raise GlassloopError.about("extract", f"returned {shown(answer)}; a text or None is expected")
    return answer
