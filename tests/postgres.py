"""A PostgreSQL server for tests: the real one, with its data and its socket in a temporary folder."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

USER, PASSWORD = "tester", "s3cret%word"  # the URL needs the percent sign quoted


def installed() -> Path | None:
    """Returns the folder with PostgreSQL's programs, the newest if there are several."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    if found and (found[-1] / "initdb").exists():
        return found[-1]
    on_path = shutil.which("initdb")
    return Path(on_path).resolve().parent if on_path else None


class PostgresServer:
    """A server that only a socket in its folder reaches, and only with a password. Nothing is flushed to
    disk: a restart keeps all, a crash of the machine would not."""

    def __init__(self, programs: Path) -> None:
        self._programs = programs
        # PostgreSQL refuses to run as root.
        self._options = {"user": _unprivileged(), "group": _unprivileged()} if os.geteuid() == 0 else {}
        self.folder = Path(tempfile.mkdtemp(prefix="glassloop-pg-", dir="/tmp"))  # sockets have short paths
        if self._options:
            shutil.chown(self.folder, _unprivileged(), _unprivileged())
        (self.folder / "password").write_text(PASSWORD)
        (self.folder / "password").chmod(0o644)
        self._call("initdb", "-D", self._data, "-U", USER, "--auth=scram-sha-256", "--no-sync", "-E", "UTF8")
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def _data(self) -> str:
        return str(self.folder / "data")

    def _call(self, program: str, *arguments: str) -> None:
        command = [str(self._programs / program), *arguments]
        if program == "initdb":
            command += ["--pwfile", str(self.folder / "password"), "--locale=C.UTF-8"]
        subprocess.run(command, check=True, capture_output=True, cwd=self.folder, **self._options)

    def start(self) -> None:
        quick = (
            "fsync=off",
            "full_page_writes=off",
            "shared_buffers=16MB",
            "max_connections=60",
            "autovacuum=off",
        )
        self._process = subprocess.Popen(
            [
                *(str(self._programs / "postgres"), "-D", self._data, "-k", str(self.folder), "-h", ""),
                *[part for option in quick for part in ("-c", option)],
            ],
            stdout=subprocess.DEVNULL,
            stderr=(self.folder / "log").open("ab"),
            cwd=self.folder,
            **self._options,
        )
        for _ in range(3000):
            try:
                self.run_sql("SELECT 1")
                return
            except Exception:
                assert self._process.poll() is None, (self.folder / "log").read_text()
                time.sleep(0.02)
        raise AssertionError("PostgreSQL does not start")

    def stop(self) -> None:
        """Stops the server as a restart does: connections are closed at once, and nothing is lost."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        self._process.wait(120)

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database: str = "postgres", password: str = PASSWORD) -> str:
        quoted = password.replace("%", "%25")
        return f"postgresql://{USER}:{quoted}@/{database}?host={self.folder}"

    def new_database(self) -> str:
        """Returns the URL of a database with nothing in it."""
        name = "d" + secrets.token_hex(6)
        self.run_sql(f"CREATE DATABASE {name}")
        return self.url(name)

    def run_sql(self, statement: str, *values: object, database: str = "postgres") -> list[tuple]:
        import psycopg

        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(statement, values or None)
            return cursor.fetchall() if cursor.description else []


def _unprivileged() -> str:
    import pwd

    return "postgres" if "postgres" in {user.pw_name for user in pwd.getpwall()} else "nobody"
