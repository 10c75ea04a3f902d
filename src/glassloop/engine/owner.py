"""The owner of a request: the client whose request it is. Drafts for one owner are never made from the text
of another one, and where a server keeps its clients apart, neither runs nor keys and values are shared.

A server sets the owner for all that it does for a client; `Request` takes it from here, so that searches,
edits and forks have it too. Python and the terminal have one owner, whose name is empty.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_OWNER: ContextVar[str] = ContextVar("glassloop_owner", default="")
_REALM: ContextVar[str] = ContextVar("glassloop_realm", default="")


def current_owner() -> str:
    """Returns the owner of the requests that are made in this context."""
    return _OWNER.get()


def current_realm() -> str:
    """Returns the owner if it is kept apart from the others, else nothing. Only requests of the same realm
    share keys and values."""
    return _REALM.get()


@contextmanager
def owned_by(owner: str, *, apart: bool = False) -> Iterator[None]:
    """Gives the requests that are made in this context an owner, which is kept `apart` from the others or
    not. Threads that it starts have a context of their own."""
    before, realm = _OWNER.set(owner), _REALM.set(owner if apart else "")
    try:
        yield
    finally:
        _OWNER.reset(before)
        _REALM.reset(realm)
