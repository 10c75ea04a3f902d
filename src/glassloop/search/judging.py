"""Verdicts on the paths of a search: each verifier is asked once about a path as it is, within the time that
the search has left. A replay takes the verdicts of the record instead."""

from __future__ import annotations

from collections.abc import Mapping
from threading import Thread

from glassloop.errors import GlassloopError
from glassloop.search.verdict import Verdict, Verifier, verdict_of

# The number of the path, how many tokens it had, and which verifier was asked: verify or judge.
Place = tuple[int, int, str]


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

    def ask(self, place: Place, text: str, seconds: float | None) -> Verdict:
        """Returns the verdict on a text and keeps it. One that takes more than `seconds` is against it."""
        found = self._past[place] if place in self._past else self._said(place[2], text, seconds)
        self.verdicts[place] = found
        return found

    def _said(self, by: str, text: str, seconds: float | None) -> Verdict:
        verifier = self._verifiers[by]
        if verifier is None:
            raise GlassloopError.about(by, f"is missing; the method {self._method} asks for it")
        if seconds is None:
            return verdict_of(verifier, text)
        found: list[Verdict | GlassloopError] = []

        def judge() -> None:
            try:
                found.append(verdict_of(verifier, text))
            except GlassloopError as error:
                found.append(error)

        thread = Thread(target=judge, name="glassloop-verifier", daemon=True)
        thread.start()
        thread.join(max(seconds, 0.0))
        if not found:
            return Verdict(False, 0.0, "the verifier took longer than the budget allows")
        if isinstance(found[0], GlassloopError):
            raise found[0]
        return found[0]
