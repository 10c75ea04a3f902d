"""Verifiers that run programs in the sandbox: unit tests on code that a model wrote, and Python checks."""

from __future__ import annotations

import re
from collections.abc import Sequence

from glassloop.engine.deadline import Deadline
from glassloop.errors import GlassloopError
from glassloop.search.verdict import TimedVerifier, Verdict, Verifier
from glassloop.search.verify.sandbox import SandboxLimits, check_available, run
from glassloop.util.shown import cut

_FENCED = re.compile(r"```(?:[Pp]ython|py)?[ \t]*\n(.*?)(?:\n```|\Z)", re.DOTALL)
MOST_TESTS = 1000


def code_of(text: str) -> str:
    """Returns the code of an answer: its blocks in Markdown fences, joined in order, or the whole text."""
    blocks = _FENCED.findall(text)
    return "\n\n".join(blocks) if blocks else text


def unit_tests(tests: str | Sequence[str], *, limits: SandboxLimits = SandboxLimits()) -> Verifier:
    """Returns a verifier: the code of the text passes all tests, each a piece of Python such as
    `assert add(2, 3) == 5`. The score is the share that it passes."""
    parts = [tests] if isinstance(tests, str) else list(tests)
    if not parts or len(parts) > MOST_TESTS or not all(isinstance(part, str) for part in parts):
        raise GlassloopError.about("tests", f"is not a list of 1 to {MOST_TESTS} texts, which is expected")

    def verify(text: str, until: Deadline | None) -> Verdict:
        outcome = run(code_of(text), parts, limits=limits, until=until)
        if outcome.failed is not None:
            return Verdict(False, 0.0, f"the code fails: {outcome.failed}")
        passed = sum(result is True for result in outcome.results)
        wrong = next((result for result in outcome.results if result is not True), None)
        reason = "" if wrong is None else f"{passed} of {len(parts)} tests pass; {cut(str(wrong))}"
        return Verdict(passed == len(parts), passed / len(parts), reason)

    return TimedVerifier(verify, check_available)


def python_check(source: str, name: str = "check", *, limits: SandboxLimits = SandboxLimits()) -> Verifier:
    """Returns a verifier: a function of a Python program, called with the text in the sandbox. It returns
    True, False or a score from 0 to 1."""

    def verify(text: str, until: Deadline | None) -> Verdict:
        outcome = run(source, [name], text=text, limits=limits, until=until)
        if outcome.failed is not None:
            return Verdict(False, 0.0, f"the check fails: {outcome.failed}")
        said = outcome.results[0] if outcome.results else "it says nothing"
        if isinstance(said, str):
            return Verdict(False, 0.0, f"the check fails: {said}")
        if not 0 <= said <= 1:
            return Verdict(False, 0.0, f"the check returned {said}; a score from 0 to 1 is expected")
        return Verdict(said >= 1, float(said), cut(outcome.printed))

    return TimedVerifier(verify, check_available)
