"""The lock of a server on its store: two servers on one store would prune and rewrite each other's runs.

It is a lock of the operating system on a file beside the store, so it ends with the process in any case.
Other programs, such as `glassloop runs`, do not take it and may use the store meanwhile.
"""

from __future__ import annotations

from pathlib import Path

from glassloop.errors import TraceError


class ServerLock:
    """Held from the moment it is made until `release`."""

    def __init__(self, store: Path) -> None:
        from filelock import FileLock, Timeout

        try:
            store.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path = store.with_name(store.name + ".lock")
            self._lock = FileLock(path, mode=0o600, thread_local=False, blocking=False)
            self._lock.acquire()
        except Timeout as error:
            raise TraceError(
                f"the store {store} is in use by another server; one at a time is allowed"
            ) from error
        except OSError as error:
            raise TraceError(f"cannot use the store {store}: {error.strerror or error}") from error

    def release(self) -> None:
        self._lock.release()
