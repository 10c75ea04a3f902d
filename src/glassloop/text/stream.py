"""Bytes in, text out, as soon as it is certain: what stands between the tokens of a branch and a reader.

A character may be split over tokens, so a token's bytes are not always text. The stream holds back the few
bytes that could still become a character and gives out the rest.
"""

from __future__ import annotations

import codecs


class TextStream:
    """Whatever the split, the texts given out join to `all_bytes.decode("utf-8", "replace")`."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data: bytes) -> str:
        """The text that is now certain. Bytes that cannot be text come out as U+FFFD."""
        return self._decoder.decode(data)

    def flush(self) -> str:
        """The end: what was held back was not a whole character. The stream is then as new."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text

    def fork(self) -> TextStream:
        """Another stream that has been fed the same."""
        twin = TextStream()
        twin._decoder.setstate(self._decoder.getstate())
        return twin
