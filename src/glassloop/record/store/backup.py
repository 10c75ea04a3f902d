"""A copy of a store in an SQLite file that other processes may be writing to."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from glassloop.errors import TraceError


def copy_database(source: sqlite3.Connection, target: Path) -> int:
    """Copies a database into a new file, whole and as it is at one moment, and returns the number of runs.
    Writers do not wait. The file appears only when it is complete, is one file without a log beside it, and
    can be read by its owner alone. Raises `TraceError` if there is a file already or it cannot be made."""
    if target.exists():
        raise TraceError(f"{target}: exists already; a new file is expected")
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        with closing(sqlite3.connect(part, isolation_level=None)) as copy:
            source.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")
            check_result = copy.execute("PRAGMA quick_check(1)").fetchone()[0]
            if check_result != "ok":
                raise TraceError(f"the store is damaged ({check_result}); no copy was made")
            count = int(copy.execute("SELECT count(*) FROM main.runs").fetchone()[0])
        with part.open("rb") as file:
            os.fsync(file.fileno())
        os.link(part, target)  # unlike a renaming, this never replaces a file
    except FileExistsError:
        raise TraceError(f"{target}: exists already; a new file is expected") from None
    except (OSError, sqlite3.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise TraceError(f"cannot write {target}: {reason}") from None
    finally:
        for left in (part, part.with_name(part.name + "-journal")):
            with suppress(OSError):
                left.unlink()
    return count
