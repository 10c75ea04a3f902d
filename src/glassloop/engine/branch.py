"""A branch: one sequence of tokens that is being computed, and its text as a reader sees it."""

from __future__ import annotations

from copy import copy

from glassloop.decode.compiled import Compiled
from glassloop.decode.stop import Ending
from glassloop.engine.kv_nodes import KVPath
from glassloop.engine.tree import KVTree
from glassloop.errors import GlassloopError
from glassloop.model.transformer import Transformer
from glassloop.text.stops import StopStream
from glassloop.text.stream import TextStream


class Branch:
    """A sequence of tokens. What is still to compute is its tokens less those in the tree; whether that is a
    prompt, one new token or a token that was forced makes no difference."""

    __slots__ = ("adapter", "path", "realm", "recorded", "tokens")

    def __init__(self, tokens: list[int], recorded: int, adapter: int = 0, realm: str = "") -> None:
        self.tokens = tokens
        self.realm = realm  # only branches of the same realm share pages
        self.adapter = adapter  # the number of the adapter that acts on all of its rows; 0: none
        # Number of leading tokens that need no logits. Every later one is scored if it is known, else chosen.
        self.recorded = recorded
        self.path: KVPath | None = None  # None: it holds no pages of the tree

    @property
    def pending(self) -> int:
        return len(self.tokens) - (0 if self.path is None else self.path.length)

    @property
    def first_wanted(self) -> int:
        """The position of the first row whose results are wanted: they are about the token after it."""
        return self.recorded - 1

    def check(self, transformer: Transformer) -> None:
        """Raises unless the tokens are the model's and fit into its context. Who made the branch has checked
        that already; but a row that a batch cannot compute would be an error of all tasks in it."""
        tokens, size, context = self.tokens, transformer.config.vocab_size, transformer.config.context
        if not tokens or len(tokens) > context:
            raise GlassloopError(f"there are {len(tokens)} tokens; 1 to {context} are expected")
        if min(tokens) < 0 or max(tokens) >= size:
            wrong = next(token for token in tokens if not 0 <= token < size)
            raise GlassloopError(f"there is a token id {wrong}; ids from 0 to {size - 1} are expected")

    def enter(self, tree: KVTree) -> None:
        """Holds what the tree has of the rows whose results are not wanted."""
        self.path = tree.match(self.tokens, self.first_wanted, self.adapter, self.realm)

    def leave(self, tree: KVTree) -> None:
        if self.path is not None:
            tree.release(self.path)
            self.path = None

    def go_back(self, tree: KVTree, length: int) -> None:
        """Takes back all tokens but the first `length`. If the branch holds pages, these tokens are looked up
        in the tree again: pages that it sees again through a window may be gone."""
        del self.tokens[length:]
        self.recorded = length
        if self.path is not None:
            self.leave(tree)
            self.enter(tree)

    def drop_rejected(self, tree: KVTree) -> None:
        """Gives back the rows of draft tokens that were not accepted: the last token is not computed yet."""
        if self.path is not None and self.path.length >= len(self.tokens):
            tree.cut(self.path, len(self.tokens) - 1)

    def fork(self, tree: KVTree) -> Branch:
        twin = Branch(self.tokens.copy(), self.recorded, self.adapter, self.realm)
        twin.path = None if self.path is None else tree.fork(self.path)
        return twin


class BranchText:
    """The text of a branch: its bytes, without stop strings, as characters."""

    def __init__(self, compiled: Compiled) -> None:
        sampling, stops = compiled.sampling, compiled.stops
        self._stops = None if stops is None else StopStream(stops, sampling.include_stop)
        self._characters = TextStream()
        self._min_tokens = sampling.min_tokens
        self._fed = 0
        self.ending: Ending | None = None

    def feed(self, data: bytes, may_stop: bool = True) -> str:
        """Adds the bytes of a token and returns the text that has become certain. With `may_stop` false, a
        stop string that ends in it is text like any other: the token is known already, and others follow."""
        self._fed += 1
        if self._stops is not None:
            fed = self._stops.feed(data, may_stop and self._fed > self._min_tokens)
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
