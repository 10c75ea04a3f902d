"""Decodes the bytes of a branch's tokens to text as they come.

A character may be split over tokens, so a token's bytes are not always text. The stream holds back the few
bytes that could still become a character and gives out the rest.
"""

from __future__ import annotations

import codecs


class TextStream:
    """However the bytes are split, the texts given out join to `all_bytes.decode("utf-8", "replace")`."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data: bytes) -> str:
        """Returns the text that is complete. Bytes that cannot be text become U+FFFD."""
        return self._decoder.decode(data)

    def flush(self) -> str:
        """Returns what was held back at the end of the text, as U+FFFD, and resets the stream."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text

    def fork(self) -> TextStream:
        """Returns another stream in the same state."""
        twin = TextStream()
        twin._decoder.setstate(self._decoder.getstate())
        return twin
