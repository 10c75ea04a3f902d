"""A branch: one sequence of tokens that is being computed, and the text that becomes of it."""

from __future__ import annotations

from copy import copy

from glassloop.decode.compiled import Compiled
from glassloop.decode.stop import Ending
from glassloop.engine.tree import KVTree, Path
from glassloop.text.stops import StopStream
from glassloop.text.stream import TextStream


class Branch:
    """What is still to compute are its tokens less those in the tree; whether that is a prompt, one new token
    or a token that was forced makes no difference."""

    __slots__ = ("path", "recorded", "tokens")

    def __init__(self, tokens: list[int], recorded: int) -> None:
        self.tokens = tokens
        # Tokens up to here need no logits; for each one after it, known or not, they are wanted.
        self.recorded = recorded
        self.path: Path | None = None  # None: nothing of it is held in the tree

    @property
    def pending(self) -> int:
        return len(self.tokens) - (0 if self.path is None else self.path.length)

    def enter(self, tree: KVTree) -> int:
        """Take what the tree has of it. The token before the first that wants logits must be computed."""
        self.path = tree.match(self.tokens, self.recorded - 1)
        return self.path.length

    def leave(self, tree: KVTree) -> None:
        if self.path is not None:
            tree.release(self.path)
            self.path = None

    def fork(self, tree: KVTree) -> Branch:
        twin = Branch(self.tokens.copy(), self.recorded)
        twin.path = None if self.path is None else tree.fork(self.path)
        return twin


class BranchText:
    """From a branch's bytes to what a reader sees: stop strings, then characters."""

    def __init__(self, compiled: Compiled) -> None:
        sampling, stops = compiled.sampling, compiled.stops
        self._stops = None if stops is None else StopStream(stops, sampling.include_stop)
        self._characters = TextStream()
        self._min_tokens = sampling.min_tokens
        self._fed = 0
        self.ending: Ending | None = None

    def feed(self, data: bytes) -> str:
        """The text that is certain with one more token."""
        self._fed += 1
        if self._stops is not None:
            fed = self._stops.feed(data, self._fed > self._min_tokens)
            data = fed.data
            if fed.stop:
                self.ending = Ending("stop", fed.stop)
        return self._characters.feed(data)

    def flush(self) -> str:
        held = b"" if self._stops is None else self._stops.flush()
        return self._characters.feed(held) + self._characters.flush()

    def fork(self) -> BranchText:
        twin = copy(self)
        twin._stops = copy(self._stops)
        twin._characters = self._characters.fork()
        return twin
