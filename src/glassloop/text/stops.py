"""Stop strings, looked for in the byte stream of a branch: between the tokens and the reader.

Bytes that could still become a stop string are held back, so nothing of one is ever given out, wherever the
borders of tokens and characters fall. All strings are followed at once (Aho–Corasick), so ten thousand cost
no more per byte than one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple


class Fed(NamedTuple):
    """What became certain with some bytes."""

    data: bytes  # may be given out
    stop: str | None = None  # the stop string that ended it; what was fed after it is dropped


class StopStrings:
    """The strings of one request as an automaton. It never changes, so branches may share it.

    A state is the longest end of what was fed that begins a stop string; its depth is how many bytes that
    is, which is how many must be held back.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        self._next: list[dict[int, int]] = [{}]
        self._fallback = [0]
        self.depth = [0]
        self.found: list[str | None] = [None]  # the longest stop string that ends in this state
        for string in strings:
            self._add(string)
        self._link()

    def _add(self, string: str) -> None:
        state = 0
        for byte in string.encode():
            following = self._next[state].get(byte)
            if following is None:
                following = self._next[state][byte] = len(self._next)
                self._next.append({})
                self._fallback.append(0)
                self.depth.append(self.depth[state] + 1)
                self.found.append(None)
            state = following
        self.found[state] = string

    def _link(self) -> None:
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            if self.found[state] is None:
                self.found[state] = self.found[self._fallback[state]]
            for byte, following in self._next[state].items():
                self._fallback[following] = self.step(self._fallback[state], byte)
                queue.append(following)

    def step(self, state: int, byte: int) -> int:
        while state and byte not in self._next[state]:
            state = self._fallback[state]
        return self._next[state].get(byte, 0)


class StopStream:
    """One branch's way through the strings."""

    def __init__(self, strings: StopStrings, include_stop: bool = False) -> None:
        self._strings = strings
        self._include_stop = include_stop
        self._state = 0
        self._held = b""

    def feed(self, data: bytes, may_stop: bool = True) -> Fed:
        """The bytes that are now certain. The first string to be complete ends it; of two that are complete
        with the same byte, the longer. With `may_stop` false a string is let through like any text."""
        held = self._held + data
        strings, state = self._strings, self._state
        for place, byte in enumerate(data, len(self._held) + 1):
            state = strings.step(state, byte)
            stop = strings.found[state]
            if stop is not None:
                if may_stop:
                    self._state, self._held = 0, b""
                    return Fed(held[: place if self._include_stop else place - len(stop.encode())], stop)
                state = 0
        self._state = state
        certain = len(held) - strings.depth[state]
        self._held = held[certain:]
        return Fed(held[:certain])

    def flush(self) -> bytes:
        """The end: what was held back was no stop string. The stream is then as new."""
        held, self._held, self._state = self._held, b"", 0
        return held
