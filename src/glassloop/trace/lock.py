"""The lock of a server on its store: two servers on one store would prune and rewrite each other's runs.

It is a lock of the system on a file beside the store, so it goes with the process however that ends. Other
programs, such as `glassloop runs`, do not ask for it and may use the store meanwhile.
"""

from __future__ import annotations

import os
from pathlib import Path

from glassloop.errors import TraceError


class ServerLock:
    """Held from the moment it is made until `release`."""

    def __init__(self, store: Path) -> None:
        path = store.with_name(store.name + ".lock")
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
        except OSError as error:
            raise TraceError(f"cannot use the store {store}: {error.strerror or error}") from error
        try:
            import fcntl
        except ImportError:  # as on Windows
            return
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._handle)
            raise TraceError(
                f"the store {store} is in use by another server; one at a time is allowed"
            ) from error

    def release(self) -> None:
        os.close(self._handle)
