"""Which client sent a request: the API keys that its headers offer, and the name under which it has a share
of what clients hold.

All of it is read from headers on the event loop before the key is checked, so each step costs at most a pass
over them.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from hashlib import pbkdf2_hmac
from urllib.parse import parse_qsl, unquote_to_bytes

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import Scope

from glassloop.engine.owner import current_owner

COOKIE = "glassloop-key"
_LONGEST = 1024  # bytes of a key in a cookie
_MOST_FIELDS = 100  # of the query of a page
_NAMED = "glassloop.client"  # in the scope of a request that has shown a key
_KEY = "key "  # before the digest of one
_ROUNDS = 20_000  # of the digest: about 10 ms, once for each key of a server


def offered_keys(scope: Scope) -> list[bytes]:
    """Returns the keys that a request offers: in `Authorization` or `X-Api-Key`, else in the cookie and, for
    the page at `/`, in the query."""
    headers = Headers(scope=scope)
    kind, _, token = headers.get("authorization", "").partition(" ")
    # A header is bytes; clients write a key that is not ASCII as UTF-8.
    keys = [token.strip().encode("latin-1")] if kind.lower() == "bearer" else []
    keys += [headers["x-api-key"].encode("latin-1")] if "x-api-key" in headers else []
    if keys:
        return keys
    cookie = _cookie(headers.get("cookie", ""))
    keys = [] if cookie is None else [unquote_to_bytes(cookie)]
    if scope["path"] == "/":
        keys += _queried(scope["query_string"].decode("latin-1"))
    return keys


def _cookie(header: str) -> str | None:
    """Returns the value of the server's own cookie, which is percent-encoded: there are no quotes to undo."""
    for part in header.split(";"):
        name, _, value = part.partition("=")
        if name.strip() == COOKIE:
            return value.strip()[:_LONGEST]
    return None


def _queried(query: str) -> list[bytes]:
    try:
        fields = parse_qsl(query, max_num_fields=_MOST_FIELDS)
    except ValueError:
        return []
    return [value.encode("utf-8", "replace") for name, value in fields if name == "key"]


def remember_key(scope: Scope, key: bytes) -> None:
    """Notes the key that a request has shown, as a digest: it never leaves the headers as it is."""
    scope[_NAMED] = _KEY + _digest(key)


@lru_cache(maxsize=1024)
def _digest(key: bytes) -> str:
    """Returns the digest of a key. It is stored with runs, so it is the same in all servers, and slow enough
    that a key is not found out from it by trying words."""
    return pbkdf2_hmac("sha256", key, b"glassloop owner", _ROUNDS, 16).hex()


def owner_of_runs() -> str:
    """Returns whose the runs are that are made in this context: the digest of the key, or nothing for a
    client without one, whose address is neither stored nor proof of who it is."""
    owner = current_owner()
    return owner if owner.startswith(_KEY) else ""


class SharedPlaces:
    """Places that clients share, such as open streams. A client may have as many as would still be free for
    others if it took one more: alone it has half of them, and a new one always finds some."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._taken: Counter[str] = Counter()

    def take(self, client: str) -> bool:
        """Takes a place for a client, if there is one for it."""
        taken, free = self._taken[client], self.most - self._taken.total()
        if free < 1 or taken >= free:
            return False
        self._taken[client] += 1
        return True

    def give_back(self, client: str) -> None:
        self._taken[client] -= 1
        if not self._taken[client]:
            del self._taken[client]


def client_of(request: HTTPConnection) -> str:
    """Returns which client sent a request: the digest of its key if the server has keys, else its address."""
    named: str | None = request.scope.get(_NAMED)
    if named is not None:
        return named
    return "address " + (request.client.host if request.client is not None else "unknown")
