"""Stop strings, searched in the byte stream of a branch.

Bytes that could still become a stop string are held back, so no part of one is ever given out, wherever
tokens and characters end. All strings are matched at once, so ten thousand cost no more per byte than one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from glassloop.text.automaton import Automaton


class Fed(NamedTuple):
    """The result of feeding some bytes."""

    data: bytes  # that may be given out
    stop: str | None = None  # the stop string that ended the text; bytes after it are dropped


class StopStrings(Automaton):
    """The stop strings of one request. As many bytes as the state is deep must be held back."""

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = strings
        super().__init__([string.encode() for string in strings])

    def stop_at(self, state: int) -> str | None:
        """Returns the longest stop string that is complete in this state."""
        place = self.found[state]
        return None if place < 0 else self._strings[place]


class StopStream:
    """The search for stop strings in one branch."""

    def __init__(self, strings: StopStrings, include_stop: bool = False) -> None:
        self._strings = strings
        self._include_stop = include_stop
        self._state = 0
        self._held = b""

    def feed(self, data: bytes, may_stop: bool = True) -> Fed:
        """Returns the bytes that may be given out. The first complete string ends the text; of two that end
        with the same byte, the longer. With `may_stop` false stop strings are text like any other."""
        held = self._held + data
        strings, state = self._strings, self._state
        for place, byte in enumerate(data, len(self._held) + 1):
            state = strings.step(state, byte)
            stop = strings.stop_at(state)
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
        """Returns what was held back at the end of the text, and resets the stream."""
        held, self._held, self._state = self._held, b"", 0
        return held
