"""The store: runs in an SQLite file or in PostgreSQL, which several processes may use at once.

A run is a row with the bytes of its `.glass` file and columns to find and list it by. A write is one
transaction, so a process that is killed leaves no half-written run, and reading never waits for a writer.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import Any

from glassloop.errors import TraceError
from glassloop.record.format.check_header import replace_surrogates
from glassloop.record.format.glass_file import from_bytes, to_bytes, write
from glassloop.record.run import Run
from glassloop.record.run_name import run_id
from glassloop.record.run_tree import link
from glassloop.record.store.database import Database, Rows, Stop, Upgrade
from glassloop.record.store.entry import BRIEF_TEXT, KeptRun, RunEntry, entry_of, facts_of
from glassloop.record.store.listing import ORDER, Listing, talk_of
from glassloop.record.store.notes import NoteTable
from glassloop.record.store.postgres import Postgres, is_postgres
from glassloop.record.store.pruning import ALL, prune_all, prune_shares
from glassloop.record.store.sqlite import SQLite
from glassloop.record.store.tables import ADDED
from glassloop.record.store.writer import QueuedRun, StoreWriter

_PATIENCE = 30.0  # seconds to wait for another process to finish writing, or for a server to come back
_MOST_COUNTED = 64  # forks of a run that are looked at
_MOST_RELATED = 4096  # runs of a tree that are read with one of them
_SHOWN = "id, created, model, {prompt}, {text}, tokens, finish_reason, seed, parent, length(data), title"
_WHOLE = {"prompt": "prompt", "text": "text", "facts": "facts"}
# Parts of long texts: enough for lists of thousands of runs. The facts are those that the database cuts.
_BRIEF = {
    "prompt": "CASE WHEN title IS NULL THEN prompt END",
    "text": f"substr(text, 1, {BRIEF_TEXT + 1})",
}
_COLUMNS = (
    *("id", "request", "parent", "created", "model", "prompt", "text", "tokens", "finish_reason", "seed"),
    *("data", "name", "origin", "facts", "title", "talk", "added", "writer", "pruned_by", "owner", "tree"),
)
# What a row keeps from when it was first written. An untrusted run stays so, whichever program writes it
# again, and a server that continues the user's own run adds only tokens to it.
_KEPT = {
    "name": "coalesce(excluded.name, runs.name)",
    "origin": "runs.origin",
    "title": "coalesce(excluded.title, runs.title)",
    "added": "coalesce(runs.added, excluded.added)",
    "pruned_by": "runs.pruned_by",
    "owner": "runs.owner",
}


def default_path() -> Path:
    """Returns the file of the user's own store, if that is a file: GLASSLOOP_STORE, else
    $XDG_DATA_HOME/glassloop/runs.db, else ~/.local/share/glassloop/runs.db."""
    named = os.environ.get("GLASSLOOP_STORE")
    if named and not is_postgres(named):
        return Path(named).expanduser().absolute()
    return _own_path()


def _own_path() -> Path:
    data = os.environ.get("XDG_DATA_HOME", "")
    base = Path(data) if Path(data).is_absolute() else Path.home() / ".local" / "share"
    return base / "glassloop" / "runs.db"


def default_location() -> str | Path:
    """Returns where the user's own store is: the URL in GLASSLOOP_STORE, or a file (`default_path`)."""
    named = os.environ.get("GLASSLOOP_STORE", "")
    return named if is_postgres(named) else default_path()


def open_database(location: str | Path | None, patience: float) -> Database:
    """Returns the database at a path or a PostgreSQL URL, or that of the user's own store."""
    if location is None:
        location = default_location()
    if is_postgres(location):
        return Postgres(str(location), patience)
    if isinstance(location, str) and "://" in location:
        scheme = location.split("://")[0][:40]
        raise TraceError(f"store begins with {scheme!r}://; a file or postgresql://… is expected")
    # The folder of the user's own store is made; that of a store with a name of its own has to be there.
    return SQLite(Path(location), patience, makes_folder=Path(location) == _own_path())


class Store:
    """A store of runs, for use from any thread. A file is created when the first run is added.

    `path` is that of a file, or the URL of a PostgreSQL database (`postgresql://…`). `patience` is how many
    seconds a write waits for other processes. `origin` is stored with every run that is added and marks it as
    untrusted (servers use "server", `runs import` uses "file"). `writer` is the name of a server, stored with
    runs that it computes now, and, with `prunes`, with all that it makes: `prune` can be limited to these.

    A server stores with each run the owner whose request made it. Methods that take an `owner` know no other
    runs then; without it, and in all other methods, the owner does not matter.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        patience: float = _PATIENCE,
        origin: str | None = None,
        writer: str | None = None,
        prunes: bool = False,
    ) -> None:
        self._database = open_database(path, patience)
        self._origin = origin
        self._server = writer
        self._prunes = prunes
        self._columns = _COLUMNS[:-1] + self._database.search_columns + _COLUMNS[-1:]
        self.notes = NoteTable(self._database)
        self._writer = StoreWriter(self._add_all, idle=self._database.settle)
        self._removals: list[Callable[[], Callable[[Run], object] | None]] = []

    @property
    def path(self) -> Path | None:
        """The file, or None if the store is in PostgreSQL."""
        return self._database.path

    @property
    def name(self) -> str:
        """Where the store is, for people: its file, or its URL without the password."""
        return self._database.name

    @classmethod
    def of(cls, store: Store | str | Path | bool | None) -> Store | None:
        """Returns a store: none, the user's own (True), the one at a path or URL, or the given one."""
        if store is None or store is False:
            return None
        if store is True:
            return cls()
        return store if isinstance(store, Store) else cls(store)

    # ── writing ────────────────────────────────────────────────────────────────────────────────────────────

    def check(self) -> None:
        """Raises unless the store can be opened and written. Creates it if there is none."""
        self._database.check()

    def add(self, *runs: Run) -> None:
        """Writes runs; they are on disk when this returns. A run with the same id is replaced."""
        now = time.time()
        self._add_all([QueuedRun(run, added=now + place * 1e-6) for place, run in enumerate(runs)])

    def put(
        self,
        run: Run,
        *,
        tree: str | None = None,
        name: str | None = None,
        added: float | None = None,
        owner: str | None = None,
    ) -> None:
        """Writes a run, as it is now, on the store's thread. `tree`, `name`, `added` and `owner` are for a
        server's list."""
        now = copy(run)
        # The run may be forked or continued before it is written.
        now.tokens, now.prompt_tokens = list(run.tokens), list(run.prompt_tokens)
        now.forks, now.moves = dict(run.forks), list(run.moves)
        now.origin, now.samples = run.origin.copy(), list(run.samples)
        now.timings, now.drafts = copy(run.timings), copy(run.drafts)
        self._writer.put(QueuedRun(now, tree, name, time.time() if added is None else added, owner))

    def written(self) -> Future[None]:
        """Returns a future that is done when each run that was put before has been written, or could not be
        and will be tried again. It does not fail."""
        return self._writer.call(lambda: None)

    def flush(self) -> None:
        """Waits until all runs that were put are written. Raises if some could not be written."""
        self._writer.flush()

    def on_failure(self, tell: Callable[[Run, Exception, bool], None]) -> None:
        """Has `tell` called, on the writing thread, when a run that was put could not be written: with False
        when it will be tried again, and with True when it was given up."""
        self._writer.failed = tell

    def on_removal(self, tell: Callable[[], Callable[[Run], object] | None]) -> None:
        """Has every run told that is removed by its name, after its removal. `tell` is a weak reference to
        the function that is called with it."""
        self._removals.append(tell)

    @property
    def unwritten(self) -> int:
        """How many runs that were put could not be written yet and will be tried again."""
        return self._writer.unwritten

    def remove(self, *names: str) -> int:
        """Deletes runs and returns how many there were. Their forks stay, and are complete without them."""
        ids = [self._id(name) for name in names]
        return sum(self._delete(each) for each in ids)

    def remove_soon(self, id: str, owner: str | None = None) -> Future[int]:
        """Deletes a run on the store's own thread, after all writes that were put before. The result is how
        many there were, 0 or 1."""
        return self._writer.call(lambda: self._delete(id, owner), without=id, owner=owner)

    def prune(self, keep: int, server: str | None = None) -> int:
        """Deletes all runs except the newest `keep`, and returns how many. With `server`, only runs count
        that this server made while it was told to prune; all others stay. Of these each owner keeps a share:
        the oldest of the owner that has the most go first."""
        if keep < 0:
            raise TraceError(f"keep is {keep}; a number of runs from 0 up is expected")
        if not self._database.exists():
            return 0
        return (
            prune_all(self._database, keep) if server is None else prune_shares(self._database, keep, server)
        )

    def call(self, work: Callable[[], Any]) -> Future[Any]:
        """Does some work on the store's own thread, after all writes that were put before."""
        return self._writer.call(work)

    def prune_soon(self, keep: int, server: str) -> Future[int]:
        return self._writer.call(lambda: self.prune(keep, server))

    # ── reading ────────────────────────────────────────────────────────────────────────────────────────────

    def list(self, limit: int | None = None, search: str = "") -> Sequence[RunEntry]:
        """Returns the stored runs, the newest first; with `search` those that contain this text, upper or
        lower case, or whose id begins with it. A row that cannot be read is left out."""
        rows = self._listed(_SHOWN.format(**_WHOLE), Listing(limit, search=search))
        return [entry for row in rows if (entry := entry_of(row)) is not None]

    def kept(self, listing: Listing, brief: bool = False, stop: Stop | None = None) -> Sequence[KeptRun]:
        """Returns a part of the list of runs, with what a server shows of them; if `brief`, without prompts,
        and with the beginnings of long texts. With `stop` it may be ended, by `SearchStopped`."""
        columns = f"{_SHOWN}, tree, name, {{facts}}, {ADDED}, talk IS NOT NULL, writer"
        shown = {**_BRIEF, "facts": self._database.brief_facts} if brief else _WHOLE
        rows = self._listed(columns.format(**shown), listing, stop)
        kept_runs = [self._kept(*row) for row in rows]
        return [each for each in kept_runs if each is not None]

    def messages(self, ids: Sequence[str]) -> dict[str, Any]:
        """Returns the conversations of runs, by id. Runs whose prompt is none are left out."""
        conversations = {}
        for id in ids:
            rows = self._select("SELECT facts FROM runs WHERE id = ? AND talk IS NOT NULL", id)
            with suppress(IndexError, KeyError, TypeError, ValueError):
                conversations[id] = json.loads(rows[0][0])["messages"]
        return conversations

    def added(self, id: str, owner: str | None = None) -> float | None:
        """Returns when a run was first written, by which lists are ordered."""
        rows = self._select(f"SELECT {ADDED} FROM runs WHERE id = ?{_and(owner)}", id, *_of(owner))
        return float(rows[0][0]) if rows else None

    def get(self, name: str) -> Run:
        """Returns a run by its id, by the beginning of its id if that is unique, by the id of a server's
        answer (`chatcmpl-…`), or the `last` one, linked with the other stored runs of its tree
        (`run.tree()`)."""
        full_id = self._id(name)
        run = self.run(full_id)
        if run is None:
            raise TraceError(f"there is no run {full_id!r} in {self.name}")
        self._link_tree(run)
        return run

    def run(self, id: str, owner: str | None = None) -> Run | None:
        """Returns a run by its id, or that of an answer, not linked with others, or None."""
        full_id = run_id(id)
        rows = self._select(f"SELECT data FROM runs WHERE id = ?{_and(owner)}", full_id, *_of(owner))
        return self._read(full_id, rows[0][0]) if rows else None

    def count_forks(self, run: Run, owner: str | None = None) -> None:
        """Counts the forks of a run that are in the store, so that the next one has other luck: the record of
        a run has only those that were made before it was written."""
        latest = f"SELECT id, data FROM runs WHERE parent = ?{_and(owner)} {ORDER} LIMIT {_MOST_COUNTED}"
        for id, data in reversed(self._select(latest, run.id, *_of(owner))):
            with suppress(TraceError):
                child = self._read(id, data)
                run.count_fork(child.fork_at or 0, child.salt)

    def tree_of(self, id: str) -> tuple[str, str | None, str | None]:
        """Returns the tree that a run is in, its name there, and its owner."""
        rows = self._select("SELECT tree, request, name, owner FROM runs WHERE id = ?", id)
        return (str(rows[0][0] or rows[0][1]), *rows[0][2:]) if rows else (id, None, None)

    def writer_of(self, id: str, owner: str | None = None) -> str | None:
        """Returns the name of the server that computes a run, or was ended while it did."""
        query = f"SELECT writer FROM runs WHERE id = ? AND finish_reason IS NULL{_and(owner)}"
        rows = self._select(query, id, *_of(owner))
        return rows[0][0] if rows and isinstance(rows[0][0], str) else None

    def is_from_server(self, id: str) -> bool:
        """Returns whether a server wrote the run, or it was imported from a file, so that its contents are
        untrusted."""
        return bool(self._select("SELECT 1 FROM runs WHERE id = ? AND origin IS NOT NULL", id))

    def export(self, name: str, path: str | Path, *, tree: bool = False) -> None:
        """Writes a run, or with `tree` its whole tree, as a `.glass` file."""
        run = self.get(name)
        write(path, run.tree().from_run(run) if tree else [run])

    def backup(self, path: str | Path) -> int:
        """Copies the store into a new file, whole and as it is at one moment, while others may be writing to
        it. Returns the number of runs. A store in PostgreSQL is copied by `pg_dump`."""
        return self._database.backup(Path(path))

    def upgrade(self) -> Upgrade:
        """Brings a store of an older version to this one, which older versions of glassloop cannot open any
        more. A copy of a file is kept beside it."""
        return self._database.upgrade()

    def __len__(self) -> int:
        rows = self._select("SELECT count(*) FROM runs")
        return int(rows[0][0]) if rows else 0

    def close(self) -> None:
        try:
            self.flush()
        finally:
            self._database.close()

    # ── rows ───────────────────────────────────────────────────────────────────────────────────────────────

    def _add_all(self, items: Iterable[QueuedRun]) -> None:
        rows = [self._row(item) for item in items]
        columns = self._columns
        marks = "?, " * (len(columns) - 1)
        tree = "coalesce(?, (SELECT tree FROM runs WHERE id = ?), (SELECT tree FROM runs WHERE id = ?), ?)"
        update = ", ".join(f"{name} = {_KEPT.get(name, 'excluded.' + name)}" for name in columns[1:])
        self._database.execute_many(
            f"INSERT INTO runs ({', '.join(columns)}) VALUES ({marks}{tree})"
            # Two servers may have continued the same run: the longer record stays.
            f" ON CONFLICT (id) DO UPDATE SET {update} WHERE excluded.tokens >= runs.tokens",
            rows,
        )

    def _row(self, item: QueuedRun) -> tuple[object, ...]:
        run = item.run
        request = run.samples[0].id if run.samples else run.id
        texts = [
            None if text is None else replace_surrogates(text) for text in (run.model, run.prompt, run.text)
        ]
        title, talk = run.known_title, talk_of(run)
        counts = (len(run.tokens), run.finish_reason, str(run.seed))
        # If no tree is given it stays in its old tree, or is put into that of its parent.
        tree = (item.tree, run.id, run.parent, request)
        return (
            *(run.id, request, run.parent, run.created),
            *texts,
            *counts,
            to_bytes([run]),
            *(item.name, self._origin, facts_of(run)),
            *(None if title is None else replace_surrogates(title), talk, item.added),
            *(self._server if run.finish_reason is None else None, self._server if self._prunes else None),
            item.owner,
            *self._database.search_values((title, run.prompt, talk, run.text)),
            *tree,
        )

    def _delete(self, id: str, owner: str | None = None) -> int:
        if not self._database.exists():
            return 0
        tellers = [tell for each in self._removals if (tell := each()) is not None]
        run: Run | None = None
        if tellers:
            with suppress(TraceError):  # a damaged run can be removed too
                run = self.run(id, owner)
        count = self._database.execute(f"DELETE FROM runs WHERE id = ?{_and(owner)}", (id, *_of(owner)))
        if run is not None:
            for tell in tellers:
                tell(run)
        return count

    def _kept(self, *row: Any) -> KeptRun | None:
        *plain, tree, name, facts, added, is_chat, writer = row
        entry = entry_of(plain)
        if entry is None:
            return None
        try:
            if facts is None:  # a row of version 1
                run = self.run(entry.id)
                facts = facts_of(run) if run else None
                update = "UPDATE runs SET facts = ? WHERE id = ? AND facts IS NULL"
                self._writer.call(lambda: self._database.execute(update, (facts, entry.id)))
            parsed_facts = json.loads(facts)
            return KeptRun(
                entry, str(tree or entry.id), name, parsed_facts, float(added), bool(is_chat), writer
            )
        except (TraceError, TypeError, ValueError):  # a bad row must not hide the others
            return None

    def _read(self, id: str, data: Any) -> Run:
        if not isinstance(data, bytes):
            raise TraceError(f"run {id} in {self.name} is damaged")
        run = from_bytes(data, f"run {id} in {self.name}", only_first=True)[0]
        if run.id != id:
            raise TraceError(f"run {id} in {self.name} is damaged: it holds run {run.id}")
        return run

    def _id(self, name: str) -> str:
        if name == "last":
            rows = self._select(f"SELECT id FROM runs {ORDER} LIMIT 1")
            if not rows:
                raise TraceError(f"there is no run in {self.name} yet")
            return str(rows[0][0])
        name = run_id(name)
        # A range, not LIKE, so that wildcards in the name have no meaning.
        rows = self._select("SELECT id FROM runs WHERE id >= ? AND id < ? LIMIT 3", name, name + "\U0010ffff")
        ids = [str(row[0]) for row in rows]
        if name in ids:
            return name
        if not ids or not name:
            raise TraceError(f"there is no run {name!r} in {self.name}; 'glassloop runs list' shows them")
        if len(ids) > 1:
            raise TraceError(f"several runs begin with {name!r}: {', '.join(ids[:2])} …")
        return ids[0]

    def _link_tree(self, run: Run) -> None:
        """Links a run with all stored runs that are connected to it by parents, forks and samples. Rows that
        cannot be read are left out."""
        rows = self._select(
            """WITH RECURSIVE kin(id, request, parent) AS (
                SELECT id, request, parent FROM runs WHERE id = ?
                UNION
                SELECT runs.id, runs.request, runs.parent FROM runs, kin
                WHERE runs.id = kin.parent OR runs.parent = kin.id OR runs.request = kin.request
            ), known AS (SELECT id FROM kin LIMIT ?)
            SELECT runs.id, runs.request, runs.data FROM runs JOIN known ON known.id = runs.id
            ORDER BY runs.number""",
            run.id,
            _MOST_RELATED,
        )
        runs, requests = [], []
        for id, request, data in rows:
            try:
                runs.append(run if id == run.id else self._read(id, data))
            except TraceError:
                continue
            requests.append(request)
        of_request: dict[str, list[str]] = {}
        for each, request in zip(runs, requests, strict=True):
            of_request.setdefault(request, []).append(each.id)
        with suppress(TraceError):  # if parents form a circle, the run is not linked
            link(runs, [of_request[request] for request in requests])

    def _select(self, query: str, *values: object) -> Rows:
        return self._database.select(query, values) if self._database.exists() else []

    def _listed(self, columns: str, listing: Listing, stop: Stop | None = None) -> Rows:
        where, values = listing.where(self._database.contains)
        limit = ALL if listing.limit is None else listing.limit
        query = f"SELECT {columns} FROM runs WHERE {where} {ORDER} LIMIT ?"
        if stop is None or not self._database.exists():
            return self._select(query, *values, limit)
        return self._database.search(query, [*values, limit], stop)


def _and(owner: str | None) -> str:
    """Returns the end of a condition: whose the runs are. `_of` has its values."""
    return "" if owner is None else " AND owner = ?"


def _of(owner: str | None) -> tuple[str, ...]:
    return () if owner is None else (owner,)
