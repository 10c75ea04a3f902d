"""Verdicts on the paths of a search: each verifier is asked once about each text, within the time that the
search has left. A replay takes the verdicts of the record instead.

The verifiers that have names end by themselves when their time is over. A function of the caller is asked on
a thread, as nothing can end it; while one does not return, no other is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from threading import Thread

from glassloop.engine.deadline import Deadline
from glassloop.errors import GlassloopError
from glassloop.search.verdict import TimedVerifier, Verdict, Verifier, verdict_of

# The number of the path, how many tokens it had, and which verifier was asked: verify or judge.
Place = tuple[int, int, str]
_LATE = Verdict(False, 0.0, "the verifier took longer than the budget allows")
_NOT_ASKED = Verdict(False, 0.0, "the verifier was not asked: no time is left")


class Judging:
    """The verifiers of a search, and what they have said. `past` are verdicts of an earlier search."""

    def __init__(
        self,
        method: str,
        verifier: Verifier | None,
        judge: Verifier | None,
        past: Mapping[Place, Verdict] | None,
    ) -> None:
        self.verdicts: dict[Place, Verdict] = {}
        self._method = method
        self._verifiers = {"verify": verifier, "judge": judge}
        self._past = past or {}
        self._stuck: Thread | None = None  # that has a function of the caller which took too long

    def ask(self, place: Place, text: str, seconds: float | None) -> Verdict:
        """Returns the verdict on a text and keeps it. One that takes more than `seconds` is against it."""
        verdict = self._past[place] if place in self._past else self._said(place[2], text, seconds)
        self.verdicts[place] = verdict
        return verdict

    def _said(self, by: str, text: str, seconds: float | None) -> Verdict:
        verifier = self._verifiers[by]
        if verifier is None:
            raise GlassloopError.about(by, f"is missing; the method {self._method} asks for it")
        if seconds is None:
            return verdict_of(verifier, text)
        if seconds <= 0 or (self._stuck is not None and self._stuck.is_alive()):
            return _NOT_ASKED
        if not isinstance(verifier, TimedVerifier):
            return self._on_thread(verifier, text, seconds)
        until = Deadline(seconds, "the verifier")
        verdict = verdict_of(verifier, text, until)
        return _LATE if until.expired and not verdict.passed else verdict

    def _on_thread(self, verifier: Verifier, text: str, seconds: float) -> Verdict:
        results: list[Verdict | GlassloopError] = []

        def judge() -> None:
            try:
                results.append(verdict_of(verifier, text))
            except GlassloopError as error:
                results.append(error)

        thread = Thread(target=judge, name="glassloop-verifier", daemon=True)
        thread.start()
        thread.join(seconds)
        if not results:
            self._stuck = thread
            return _LATE
        if isinstance(results[0], GlassloopError):
            raise results[0]
        return results[0]
