"""The errors that people see.

Each message is one line that says what was wrong, where, and what was expected. The command line prints it
and ends with exit code 2; the Python API raises it; the server answers with it.
"""

from __future__ import annotations

from threading import current_thread, main_thread
from typing import Self


class GlassloopError(Exception):
    """Input that glassloop refuses, for a reason that the caller can correct.

    `field` is the option or argument that is wrong, with the place inside it (`stop[3]`), and `expected` is
    what it may be; each is None where the code that raises the error does not know it.
    """

    def __init__(self, message: str = "", *, field: str | None = None, expected: str | None = None) -> None:
        super().__init__(message)
        self.field = field
        self.expected = expected

    @classmethod
    def about(cls, field: str, problem: str) -> Self:
        """Returns the error for a field, whose name begins the message."""
        return cls(f"{field} {problem}", field=field)


class ModelError(GlassloopError):
    """A model file that is damaged, inconsistent, or of a format that is not supported."""


class NoMemoryError(GlassloopError, MemoryError):
    """Memory that cannot be had: more than is free is wanted for weights, or for keys and values."""


class TextError(GlassloopError):
    """Text, tokens or a chat template that cannot be converted into each other."""


class LengthError(TextError):
    """A prompt that is longer than the model or the server allows."""


class RegistryError(GlassloopError):
    """A model that cannot be found, downloaded, verified or stored."""


class SamplingError(GlassloopError):
    """A decoding option that does not exist or is out of range."""


class TraceError(GlassloopError):
    """A recorded run that cannot be found, read, stored or compared with a model."""


class StoreError(TraceError):
    """A store of runs that cannot be used now. `reason` says why, without the path that the message names."""

    def __init__(self, message: str, reason: str, *, busy: bool = False, full: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.busy = busy  # another process holds its lock
        self.full = full  # there is no room on the disk


def described(error: BaseException) -> str:
    """Returns the message of an error, or its type where it has none, with its notes in parentheses."""
    message, notes = str(error) or type(error).__name__, getattr(error, "__notes__", ())
    return f"{message} ({'; '.join(notes)})" if notes else message


def contained(error: BaseException, who: str) -> Exception:
    """Returns the error that ends one request in place of an exception that `who` has raised: the exception
    itself, or an error that says what it was if it would end a thread or the process, as `sys.exit()` does.
    Raises a KeyboardInterrupt of the main thread again: that is Ctrl-C."""
    if isinstance(error, Exception):
        return error
    if isinstance(error, KeyboardInterrupt) and current_thread() is main_thread():
        raise error
    what = "called sys.exit()" if isinstance(error, SystemExit) else f"raised {type(error).__name__}"
    return GlassloopError(f"{who} {what}")
