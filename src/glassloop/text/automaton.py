"""An Aho–Corasick automaton: follows many patterns at once through a sequence of symbols (bytes, token ids).

A state stands for the longest suffix of the input that begins a pattern. The automaton never changes once it
is built, so branches and threads share it; a branch keeps only the number of its state.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence


class Automaton:
    """State 0 is the start. For each state, `depth` is the number of symbols matched, `found` the index of
    the longest pattern that ends there (-1 for none), and `fallback` the state of the next shorter suffix
    that begins a pattern.

    All transitions are in one dictionary and the rest in arrays: about 150 bytes per symbol of the patterns.
    """

    def __init__(self, patterns: Iterable[Sequence[int]]) -> None:
        self._next: dict[int, int] = {}  # state and symbol in one number → state
        self.depth = array("i", [0])
        self.found = array("i", [-1])
        levels: list[list[int]] = []  # the keys that lead to the states of each depth
        for place, pattern in enumerate(patterns):
            self._add(pattern, place, levels)
        self.fallback = array("i", bytes(4 * len(self.depth)))
        for level in levels:  # shorter suffixes first
            self._link(level)

    def _add(self, pattern: Sequence[int], place: int, levels: list[list[int]]) -> None:
        state, following = 0, self._next
        for depth, symbol in enumerate(pattern):
            key = state << _WIDTH | symbol
            state = following.get(key, 0)
            if not state:
                state = following[key] = len(self.depth)
                self.depth.append(depth + 1)
                self.found.append(-1)
                if depth == len(levels):
                    levels.append([])
                levels[depth].append(key)
        self.found[state] = place

    def _link(self, level: list[int]) -> None:
        fallback, found = self.fallback, self.found
        for key in level:
            before, state = key >> _WIDTH, self._next[key]
            if before:
                fallback[state] = self.step(fallback[before], key & _SYMBOL)
            if found[state] < 0:
                found[state] = found[fallback[state]]

    def step(self, state: int, symbol: int) -> int:
        """Returns the state after one more symbol."""
        following = self._next
        while True:
            next_state = following.get(state << _WIDTH | symbol)
            if next_state is not None:
                return next_state
            if not state:
                return 0
            state = self.fallback[state]

    def follow(self, state: int, symbols: Iterable[int]) -> int:
        """Returns the state after some more symbols."""
        for symbol in symbols:
            state = self.step(state, symbol)
        return state


_WIDTH = 31  # bits of a symbol
_SYMBOL = (1 << _WIDTH) - 1
