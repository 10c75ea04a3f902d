"""The progress of an evaluation: how many of its items are finished, and how fast tokens come."""

from __future__ import annotations

from time import perf_counter

from glassloop.util.progress import ProgressBar


class ItemProgress(ProgressBar):
    """Shows how many of `total` items are finished; `done` were before."""

    def __init__(self, total: int, done: int) -> None:
        super().__init__(total, done)
        self._items, self._finished, self._tokens, self._what = total, done, 0, ""
        self._start = perf_counter()

    def begin_method(self, what: str) -> None:
        """Notes what is computed from now on, such as the name of a method."""
        self._what = what
        self.now(what, soon=False)

    def finish_item(self, tokens: int) -> None:
        """Notes that one more item is finished, which took so many tokens."""
        self._finished, self._tokens = self._finished + 1, self._tokens + tokens
        seconds = perf_counter() - self._start
        facts = f"{self._finished}/{self._items} {self._what}, {self._tokens} tokens in {seconds:.0f} s"
        if self._tokens:
            facts += f" ({self._tokens / max(seconds, 1e-9):.0f} tokens/s)"
        self.show(self._finished, facts)
