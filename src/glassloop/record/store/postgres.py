"""A store's database in PostgreSQL, which many machines share (extra: `postgres`).

The tables are in the schema `glassloop`. When the connection is lost, because the server restarts for
example, a statement is executed again on a new one, within a bounded time: every statement of the store has
the same effect if it is executed twice. No message contains the password.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from glassloop.errors import StoreError, TraceError
from glassloop.record.format.check_header import replace_surrogates
from glassloop.record.store.database import DatabaseConnection, Rows, SearchStopped, Stop, Upgrade
from glassloop.record.store.tables import ADDED, OWNERS

if TYPE_CHECKING:
    import psycopg

_SCHEMES = ("postgresql:", "postgres:")
_SCHEMA = "glassloop"
_PREPARING = 0x676C617373  # the advisory lock under which the tables are created
_PAUSES = (0.05, 1.0)  # seconds before the first retry, and the most
_CANCEL = 5.0  # seconds to reach a server that is asked to end a statement
_STATEMENT = 60.0  # seconds for one statement, such as a search
_TABLES = (
    f"CREATE SCHEMA IF NOT EXISTS {_SCHEMA}",
    "CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    # Ids are compared byte by byte, as in SQLite. `folded` has the texts that are searched, in lower case.
    """CREATE TABLE runs (
    number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id TEXT COLLATE "C" NOT NULL UNIQUE,
    request TEXT COLLATE "C" NOT NULL,
    parent TEXT COLLATE "C",
    created DOUBLE PRECISION NOT NULL,
    model TEXT NOT NULL,
    prompt TEXT,
    text TEXT NOT NULL,
    tokens INTEGER NOT NULL,
    finish_reason TEXT,
    seed TEXT NOT NULL,
    data BYTEA NOT NULL,
    tree TEXT COLLATE "C",
    name TEXT,
    origin TEXT,
    facts JSON,
    title TEXT,
    talk TEXT,
    added DOUBLE PRECISION,
    writer TEXT,
    pruned_by TEXT,
    folded TEXT[] NOT NULL
)""",
    # The record is compressed already.
    "ALTER TABLE runs ALTER COLUMN data SET STORAGE EXTERNAL",
    "CREATE INDEX runs_parent ON runs (parent)",
    "CREATE INDEX runs_request ON runs (request)",
    "CREATE INDEX runs_tree ON runs (tree)",
    f"CREATE INDEX runs_added ON runs (({ADDED}), id)",
    "CREATE INDEX runs_pruned_by ON runs (pruned_by) WHERE pruned_by IS NOT NULL",
)
_STEPS = (_TABLES, OWNERS)  # what makes each version of the one before
VERSION = len(_STEPS)
T = TypeVar("T")


def is_postgres(location: object) -> bool:
    """Returns whether a store's location is the URL of a PostgreSQL database, or was meant as one."""
    return str(location).startswith(_SCHEMES)


class Postgres:
    """A PostgreSQL database. The tables are created when it is first used.

    `patience` is how many seconds a statement waits for locks, and for the server to come back once there has
    been a connection. A first connection that fails is an error at once.
    """

    path: Path | None = None
    contains = "EXISTS (SELECT 1 FROM unnest(folded) AS part WHERE position(? IN part) > 0)"
    brief_facts = """json_build_object(
        'sampling', json_build_object('beam_width', facts #> '{sampling,beam_width}'),
        'prompt_ids', CASE WHEN title IS NULL THEN facts -> 'prompt_ids' END,
        'diffusion', json_typeof(facts -> 'diffusion')
    )::text"""
    search_columns: tuple[str, ...] = ("folded",)

    def __init__(self, url: str, patience: float) -> None:
        try:
            from psycopg.conninfo import conninfo_to_dict
        except ImportError as error:
            raise TraceError(
                "store is a PostgreSQL URL, which needs the package psycopg:"
                f" pip install 'glassloop[postgres]' ({' '.join(str(error).split())[:200]})"
            ) from None
        import psycopg

        try:
            settings = conninfo_to_dict(url)
        except psycopg.Error:  # its message may quote the password
            raise TraceError(
                "store is not a valid PostgreSQL URL; postgresql://USER:PASSWORD@HOST:PORT/DATABASE is"
                " expected, with % before two hex digits for special characters"
            ) from None
        self._password = str(settings.get("password") or "")
        self.name = _shown(settings)
        self._patience = patience
        seconds = max(2, ceil(patience))
        defaults: dict[str, Any] = {
            "connect_timeout": min(seconds, 10),
            "keepalives_idle": 5,
            "keepalives_interval": 2,
            "keepalives_count": 3,
            "tcp_user_timeout": 1000 * seconds,
            "application_name": "glassloop",
        }
        self._parameters = {**defaults, **settings}
        self._has_connected = False
        self._before = VERSION  # the version that the last connection found
        self._reader = DatabaseConnection(self.connect)
        self._writer = DatabaseConnection(self.connect)
        self._searcher = DatabaseConnection(self.connect)

    def search_values(self, texts: Sequence[str | None]) -> tuple[object, ...]:
        return ([text.casefold() for text in texts if text],)

    def exists(self) -> bool:
        return True

    def check(self) -> None:
        self.execute("UPDATE settings SET value = value WHERE name = 'version'", ())

    def select(self, query: str, values: Sequence[object]) -> Rows:
        marked, cleaned = _translated(query), _clean(values)
        return self.attempt(self._reader, lambda connection: connection.execute(marked, cleaned).fetchall())

    def search(self, query: str, values: Sequence[object], stop: Stop) -> Rows:
        marked, cleaned = _translated(query), _clean(values)

        def work(connection: psycopg.Connection[Any]) -> Rows:
            with stop.interrupting(lambda: _cancel(connection)):
                connection.execute(f"SET statement_timeout = {ceil(1000 * stop.left) + 1}")
                return connection.execute(marked, cleaned).fetchall()

        try:
            return self.attempt(self._searcher, work)
        except StoreError as error:
            if _state(error.__cause__) == _STOPPED:
                raise SearchStopped(f"the search took longer than {stop.seconds:g} s") from None
            raise

    def execute(self, statement: str, values: Sequence[object]) -> int:
        marked, cleaned = _translated(statement), _clean(values)
        return self.attempt(self._writer, lambda connection: connection.execute(marked, cleaned).rowcount)

    def execute_many(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        cleaned = [_clean(row) for row in rows]

        def work(connection: psycopg.Connection[Any]) -> None:
            with connection.transaction(), connection.cursor() as cursor:
                cursor.executemany(_translated(statement), cleaned)

        self.attempt(self._writer, work)

    def settle(self) -> None:
        pass

    def backup(self, target: Path) -> int:
        raise TraceError(
            f"the store {self.name} is in PostgreSQL, whose own program makes a copy:"
            f" pg_dump --schema={_SCHEMA} --format=custom --file={shlex.quote(str(target))} URL"
        )

    def upgrade(self) -> Upgrade:
        upgrading = DatabaseConnection(lambda: self.connect(upgrades=True))
        self.attempt(upgrading, lambda connection: None)
        upgrading.close()
        return Upgrade(self._before, VERSION, None)

    def close(self) -> None:
        self._reader.close()
        self._writer.close()
        self._searcher.close()

    # ── connections ────────────────────────────────────────────────────────────────────────────────────────

    def attempt(
        self,
        connection: DatabaseConnection[psycopg.Connection[Any]],
        work: Callable[[psycopg.Connection[Any]], T],
    ) -> T:
        """Returns the result of `work`, which is done again on a new connection if the server went away
        meanwhile, or chose this transaction to end a deadlock: once at least, as this machine itself may have
        stood still."""
        import psycopg

        end, (pause, longest) = time.monotonic() + self._patience, _PAUSES
        while True:
            try:
                with connection.used() as opened:
                    return work(opened)
            except (psycopg.Error, OSError) as error:
                lost = _is_lost(error)
                if lost:
                    connection.close()
                again = self._has_connected if lost else _state(error) in _CONFLICTS
                if not again or (pause > _PAUSES[0] and time.monotonic() + pause > end):
                    raise self._error(error, lost) from error
            time.sleep(pause)
            pause = min(2 * pause, longest)

    def connect(self, upgrades: bool = False) -> psycopg.Connection[Any]:
        """Returns a new connection, with the tables in place. It commits each statement by itself."""
        import psycopg
        from psycopg.types.string import TextLoader

        connection = psycopg.connect(**self._parameters, autocommit=True)
        try:
            connection.adapters.register_loader("json", TextLoader)  # the store reads JSON itself
            connection.execute(f"SET search_path = {_SCHEMA}")
            connection.execute(f"SET lock_timeout = {int(1000 * self._patience) + 1}")
            connection.execute(f"SET statement_timeout = {int(1000 * max(_STATEMENT, self._patience))}")
            self._before = self._prepare(connection, upgrades)
        except BaseException:
            connection.close()
            raise
        self._has_connected = True
        return connection

    def _prepare(self, connection: psycopg.Connection[Any], upgrades: bool) -> int:
        """Creates the tables, or with `upgrades` brings them to this version. Returns the version they had.
        Raises if they are older, as servers of that version may be running."""
        before = self._version(connection)
        if before == VERSION:
            return before
        if before and not upgrades:
            reason = f"it is of version {before}, and this glassloop uses version {VERSION}"
            remedy = "'glassloop runs upgrade' upgrades it; make a copy before, with pg_dump"
            raise StoreError(f"cannot use the store {self.name}: {reason}; {remedy}", reason)
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_PREPARING,))
            # Another process may have done it meanwhile.
            for statements in _STEPS[self._version(connection) :]:
                for statement in statements:
                    connection.execute(statement)
            connection.execute(
                "INSERT INTO settings VALUES ('version', %s)"
                " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                (str(VERSION),),
            )
        return before

    def _version(self, connection: psycopg.Connection[Any]) -> int:
        # A query of the catalog sees tables that were created while the lock was waited for.
        query = "SELECT 1 FROM pg_catalog.pg_tables WHERE schemaname = %s AND tablename = 'settings'"
        if connection.execute(query, (_SCHEMA,)).fetchone() is None:
            return 0
        row = connection.execute("SELECT value FROM settings WHERE name = 'version'").fetchone()
        version = int(row[0]) if row and row[0].isdigit() else 0
        if version > VERSION:
            raise TraceError(
                f"the store {self.name} is of version {version}; this glassloop uses up to {VERSION}:"
                " update it"
            )
        return version

    def _error(self, error: Exception, lost: bool) -> StoreError:
        details = " ".join(str(error).split()) or type(error).__name__
        if self._password:
            details = details.replace(self._password, "***")
        # Clients of a server see the reason: it names no host and no path.
        stated = getattr(getattr(error, "diag", None), "message_primary", None)
        reason = "the database cannot be reached" if lost else str(stated or "the database refused it")
        state = _state(error)
        return StoreError(
            f"cannot use the store {self.name}: {details}",
            reason,
            busy=lost or state in _CONFLICTS or state == "55P03",  # lock_not_available
            full=state == "53100",
        )


_STOPPED = "57014"  # query_canceled
_CONFLICTS = ("40001", "40P01")  # serialization_failure, deadlock_detected
_SHUTDOWNS = ("57P01", "57P02", "57P03", "57P05")  # the server stops, starts, or closed an idle connection


def _state(error: BaseException | None) -> str:
    return str(getattr(error, "sqlstate", None) or "")


def _is_lost(error: Exception) -> bool:
    """Returns whether the connection to the server is gone, or could not be made."""
    import psycopg

    state = _state(error)
    # The library's own errors about a connection have no state.
    return (
        state in _SHUTDOWNS
        or state.startswith("08")
        or (not state and isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError, OSError)))
    )


def _cancel(connection: psycopg.Connection[Any]) -> None:
    """Asks the server to end the statement of a connection. If it cannot be reached, there is none."""
    import psycopg

    with suppress(psycopg.Error, OSError):
        connection.cancel_safe(timeout=_CANCEL)


@cache
def _translated(statement: str) -> Any:
    """Returns a statement with the driver's marks for values. The store's statements have no other `?`."""
    return statement.replace("%", "%%").replace("?", "%s")


def _clean(values: Sequence[object]) -> list[object]:
    """Returns values that PostgreSQL can hold: its texts have no NUL, and are valid UTF-8."""
    return [_clean_value(value) for value in values]


def _clean_value(value: object) -> object:
    if isinstance(value, str):
        return replace_surrogates(value).replace("\x00", "\ufffd")
    return [_clean_value(part) for part in value] if isinstance(value, list) else value


def _shown(settings: dict[str, Any]) -> str:
    """Returns the URL without the password and options."""
    user = f"{settings['user']}@" if settings.get("user") else ""
    port = f":{settings['port']}" if settings.get("port") else ""
    return f"postgresql://{user}{settings.get('host') or ''}{port}/{settings.get('dbname') or ''}"
