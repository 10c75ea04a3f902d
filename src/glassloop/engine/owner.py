"""The owner of a request: the client whose request it is. Drafts for one owner are never made from the text
of another one.

A server sets the owner for all that it does for a client; `Request` takes it from here, so that searches,
edits and forks have it too. Python and the terminal have one owner, whose name is empty.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_OWNER: ContextVar[str] = ContextVar("glassloop_owner", default="")


def current_owner() -> str:
    """Returns the owner of the requests that are made in this context."""
    return _OWNER.get()


@contextmanager
def owned_by(owner: str) -> Iterator[None]:
    """Gives the requests that are made in this context an owner. Threads that it starts have a context of
    their own."""
    before = _OWNER.set(owner)
    try:
        yield
    finally:
        _OWNER.reset(before)
