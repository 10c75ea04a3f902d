"""Messages from the lines of stdin, and the history for the arrow keys.

A line that ends in a backslash continues; three quotes open and close a message of many lines, on a terminal
and in a pipe alike.
"""

from __future__ import annotations

import sys
from pathlib import Path

from glassloop.errors import TextError

_FENCE = '"""'
_KEPT = 1000  # lines of history


class Lines:
    """Reads messages from stdin."""

    def __init__(self, prompt: str, history: Path | None) -> None:
        self._interactive = sys.stdin.isatty()
        # readline can edit lines only if stdin and stdout are the terminal.
        self._edited = self._interactive and sys.stdout.isatty()
        self._prompt = prompt
        self._history = history
        if self._edited:
            self._read_history()

    def message(self) -> str | None:
        """Returns the next message, or None at the end of the input."""
        line = self._line(self._prompt)
        if line is None:
            return None
        fenced = line.lstrip().startswith(_FENCE)
        rest: str | None = line.lstrip()[len(_FENCE) :] if fenced else line
        parts = []
        while rest is not None and (not rest.rstrip().endswith(_FENCE) if fenced else rest.endswith("\\")):
            parts.append(rest if fenced else rest[:-1])
            rest = self._line("… ")
        if rest is not None:
            parts.append(rest.rstrip()[: -len(_FENCE)] if fenced else rest)
        text = "\n".join(parts)
        return text.strip("\n") if fenced else text

    def close(self) -> None:
        """Writes the history to its file."""
        if not self._edited or self._history is None:
            return
        import readline

        try:
            self._history.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            readline.set_history_length(_KEPT)
            readline.write_history_file(self._history)
            self._history.chmod(0o600)
        except OSError as error:
            print(f"glassloop: the history was not kept: {error}", file=sys.stderr)

    def _line(self, prompt: str) -> str | None:
        try:
            if self._edited:
                return input(prompt)
            if self._interactive:
                sys.stderr.write(prompt)
                sys.stderr.flush()
            line = sys.stdin.readline()
        except EOFError:
            return None
        except UnicodeDecodeError as error:
            byte = error.object[error.start]
            raise TextError(f"the line is not UTF-8 text: there is a byte 0x{byte:02X} in it") from None
        return line.rstrip("\r\n") if line else None

    def _read_history(self) -> None:
        try:
            import readline  # makes input() edit lines
        except ImportError:  # on Windows the terminal edits lines
            self._history = None
            return
        readline.set_auto_history(True)
        if self._history is not None and self._history.exists():
            try:
                readline.read_history_file(self._history)
            except OSError:
                self._history = None
