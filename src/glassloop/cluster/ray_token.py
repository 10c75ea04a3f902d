"""The token of a Ray that is started on this machine for a server.

Who may talk to Ray's processes can run code as the user, and other users of the machine reach their ports.
What keeps them out is a token, which Ray itself would write to a file that everybody can read.
"""

from __future__ import annotations

import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path

from glassloop.errors import GlassloopError
from glassloop.util.shown import shown

MODE, TOKEN, FILE = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"


@contextmanager
def private_token(environ: MutableMapping[str, str] = os.environ) -> Iterator[None]:
    """Sets the environment variables that make a Ray started inside this context require a token.

    The token is the user's, if there is one, else a new one in a file that only this user can read, which is
    removed at the end. Enter the context before `ray` is imported: it reads the variables then. Raises if the
    user has turned tokens off, or if other users can read the file with the user's own token."""
    mode = environ.get(MODE) or "token"
    if mode.strip().lower() != "token":
        raise GlassloopError.about(
            MODE,
            f"is {shown(mode)}; token is expected, or no value: without a token, whoever reaches this machine"
            " could run code on it",
        )
    changed = {MODE: "token"}
    folder = None
    if not environ.get(TOKEN) and environ.get(FILE):
        _check_private(Path(environ[FILE]))
    elif not environ.get(TOKEN):
        folder = tempfile.mkdtemp(prefix="glassloop-ray-")  # with mode 0700
        changed[FILE] = str(_write_token(Path(folder) / "token"))
    before = {name: environ.get(name) for name in changed}
    environ.update(changed)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                environ.pop(name, None)
            else:
                environ[name] = value
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _write_token(path: Path) -> Path:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32))
    return path


def _check_private(path: Path) -> None:
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise GlassloopError.about(FILE, f"is {shown(str(path))}: {error.strerror}") from None
    if mode & 0o077:
        raise GlassloopError.about(
            FILE, f"is {shown(str(path))}, which has mode {mode:04o}; 0600 is expected: others could read it"
        )
