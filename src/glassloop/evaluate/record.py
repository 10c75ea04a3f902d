"""The file of an evaluation: one JSON object a line, first a header, then what has been finished.

Lines are only ever appended. A process that is killed leaves at most one incomplete line, which is removed
when the file is opened again; what is in the file is not computed again. A header that differs is an error:
results of two set-ups must not be mixed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any

from glassloop.errors import GlassloopError
from glassloop.util.fields import json_object
from glassloop.util.shown import shown

KIND, VERSION = "glassloop evaluation", 1


class RecordError(GlassloopError):
    """A record of an evaluation that is damaged, or of another evaluation."""


class Record:
    """A record that is being written. `rows` has what it held when it was opened."""

    def __init__(self, path: str | Path, header: Mapping[str, Any]) -> None:
        self.path = Path(path)
        self.header = {"kind": KIND, "version": VERSION, **header}
        self.rows: list[dict[str, Any]] = []
        self._start = perf_counter()
        self._session = 0
        self._open()

    def _open(self) -> None:
        plain = json.loads(json.dumps(self.header))
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab+")
        except OSError as error:
            raise RecordError(f"cannot write {self.path}: {error.strerror}") from None
        _lock(self._file.fileno(), self.path)
        whole = _cut_torn_line(self._file, self.path)
        if whole:
            header, self.rows = read(self.path)
            _check_header(self.path, header, plain)
            self._session = 1 + max((row.get("session", 0) for row in self.rows), default=-1)
        else:
            self._write(plain)

    def add(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Appends a row with the session and its clock; the seconds of all sessions are summed from these."""
        stamped = {**row, "session": self._session, "clock": round(perf_counter() - self._start, 3)}
        self._write(stamped)
        self.rows.append(stamped)
        return stamped

    def begin(self) -> None:
        """Starts the clock again, after what was loaded and is not to be counted."""
        self._start = perf_counter()
        self._session += 1

    def _write(self, row: Mapping[str, Any]) -> None:
        try:
            self._file.write(json.dumps(row, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n")
            self._file.flush()
        except OSError as error:
            raise RecordError(f"cannot write {self.path}: {error.strerror}") from None

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Record:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read(path: str | Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Returns the header and the rows of a record. An incomplete last line is left out."""
    lines = _lines(Path(path))
    header = next(lines, None)
    if header is None or header.get("kind") != KIND:
        raise RecordError(f"{path} is not a record of an evaluation: its first line has no kind {KIND!r}")
    if header.get("version") != VERSION:
        raise RecordError(f"{path} has version {shown(header.get('version'))}; {VERSION} is expected")
    return header, list(lines)


def read_parts(paths: Sequence[str | Path]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Returns the header and the rows of records that processes have made of parts of one evaluation."""
    header, rows = read(paths[0])
    for path in paths[1:]:
        other_header, more = read(path)
        _check_header(Path(path), other_header, header)
        sessions = 1 + max((row.get("session", 0) for row in rows), default=-1)
        rows += [{**row, "session": row.get("session", 0) + sessions} for row in more]
    return header, rows


def seconds_of(rows: list[dict[str, Any]]) -> float:
    """Returns the seconds that rows took: each session counts until its last row."""
    ends: dict[int, float] = {}
    for row in rows:
        session = row.get("session", 0)
        ends[session] = max(ends.get(session, 0.0), row.get("clock", 0.0))
    return sum(ends.values())


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    return
                yield json_object(line, f"{path}, line {number}", RecordError)
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror}") from None


def _cut_torn_line(file: Any, path: Path) -> int:
    """Removes what follows the last line end, and returns how many bytes are left."""
    end = file.seek(0, os.SEEK_END)
    place = end
    while place > 0:
        first = max(0, place - 65536)
        file.seek(first)
        line_end = file.read(place - first).rfind(b"\n")
        if line_end >= 0:
            place = first + line_end + 1
            break
        place = first
    if place < end:
        os.truncate(path, place)
    file.seek(0, os.SEEK_END)
    return int(place)


def _check_header(path: Path, header: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    for name in dict.fromkeys([*wanted, *header]):
        if header.get(name) != wanted.get(name):
            raise RecordError(
                f"{path} is the record of another evaluation: its {name} is {shown(header.get(name))}, and"
                f" {shown(wanted.get(name))} is expected; give another file, or the same options"
            )


def _lock(handle: int, path: Path) -> None:
    """Refuses a file that another process writes to. The system drops the lock of a process that dies."""
    try:
        import fcntl
    except ImportError:
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise RecordError(f"{path} is being written by another process") from None
