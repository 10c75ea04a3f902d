"""The settings of a server, checked when it starts."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from glassloop.errors import GlassloopError
from glassloop.util.shown import shown

LEVELS = ("debug", "info", "warning", "error")  # of lines of the log
_ORIGIN = re.compile(r"https?://(?:\[[0-9a-f:.]+\]|[a-z0-9.-]+)(?::\d{1,5})?")

_ALIAS = re.compile(r"[A-Za-z0-9._/@-]{1,128}")
_IN_MEMORY = 1000  # runs
_SHORT_KEY = 8  # characters; a shorter one can be guessed
_TEXT, _FLAG, _TEXTS = "a text", "true or false", "a list of texts"
_WHOLE, _SECONDS = "a whole number from 0 up", "seconds from 0 up"


@dataclass(frozen=True)
class ServerSettings:
    model: str
    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = ()
    separate_keys: bool | None = None  # whether keys share no cache and no runs; if there are several
    open_to_all: bool = False  # bind wider than this machine without a key
    keep: int | None = None  # runs that are kept once they have ended; the store keeps all if not given
    # A file, or a PostgreSQL URL, in which they outlive the process; in memory if there is none.
    store: str | Path | None = field(default=None, repr=False)
    most_body: int = 8 << 20  # bytes of a request
    most_prompt: int | None = None  # tokens; the model's context if not given
    most_choices: int = 128  # runs that one request may start
    timeout: float = 600.0  # seconds for one request, its time in the queue included
    grace: float = 30.0  # seconds that running requests have to finish when the server shuts down
    log_prompts: bool = False
    log_level: str = "info"  # the least important lines that are logged: debug, info, warning or error
    access_log: bool = True  # whether each request is logged
    allow_origins: tuple[str, ...] = ()  # sites whose pages may use the API from a browser
    training: Path | None = None  # a folder of training runs whose curves are shown, or one of them
    aliases: tuple[str, ...] = ()  # other names of the model that clients may use
    receipt_key: Path | None = None  # the PEM file of an Ed25519 key that signs receipts
    static: Path = Path(__file__).parent.parent / "static"  # the studio, where it is built

    def __post_init__(self) -> None:
        check_fields(self, _TEXT, "model", "host")
        check_fields(self, _FLAG, "open_to_all", "log_prompts", "access_log")
        check_fields(self, _FLAG, "separate_keys", optional=True)
        check_fields(self, _WHOLE, "port", "most_body", "most_choices")
        check_fields(self, _WHOLE, "keep", "most_prompt", optional=True)
        check_fields(self, _SECONDS, "timeout", "grace")
        check_fields(self, _TEXTS, "allow_origins", "aliases")
        for alias in self.aliases:
            if not _ALIAS.fullmatch(alias):
                expected = "letters, digits, '.', '_', '-', '/' and '@', at most 128, are expected"
                raise GlassloopError(f"--served-model-name is {shown(alias)}; {expected}")
        if not isinstance(self.store, str | Path | None):
            raise GlassloopError.about("store", f"is {shown(self.store)}; a file or a URL is expected")
        if not isinstance(self.api_keys, tuple) or not all(isinstance(key, str) for key in self.api_keys):
            # The message must not show the key.
            problem = f"is a {type(self.api_keys).__name__}; a list of texts is expected, as in [KEY]"
            raise GlassloopError.about("api_keys", problem)
        if any(not key.strip() for key in self.api_keys):
            raise GlassloopError("--api-key is empty; a key of your choice is expected")
        if not self.api_keys and not self.open_to_all and not self.is_local:
            raise GlassloopError(
                f"host is {self.host}, which other machines can reach; --api-key KEY is expected, or --open"
                " to let them in without a key"
            )
        if self.log_level not in LEVELS:
            expected = f"one of {', '.join(LEVELS)} is expected"
            raise GlassloopError.about("log_level", f"is {shown(self.log_level)}; {expected}")
        if self.training is not None and not self.training.is_dir():
            raise GlassloopError(
                f"--training is {shown(str(self.training))}; a folder of training runs is expected"
            )
        for origin in self.allow_origins:
            if not _ORIGIN.fullmatch(origin):
                raise GlassloopError(
                    f"--allow-origin is {shown(origin)}; a site as browsers write it is expected, in lower"
                    " case and without a path, such as https://app.example or http://localhost:5173"
                )

    @property
    def keeps_apart(self) -> bool:
        """Whether clients with different keys share nothing that the engine has computed."""
        return len(self.api_keys) > 1 if self.separate_keys is None else self.separate_keys

    @property
    def separates_runs(self) -> bool:
        """Whether each key has runs of its own. An address is no proof of who a client is, so clients without
        a key share all runs."""
        return self.keeps_apart and bool(self.api_keys)

    @property
    def warnings(self) -> list[str]:
        """What is allowed, but hardly meant."""
        if any(len(key) < _SHORT_KEY for key in self.api_keys):
            return [f"an API key has fewer than {_SHORT_KEY} characters: it can be guessed"]
        return []

    @property
    def in_memory(self) -> int:
        """The number of runs that are kept in memory once they have ended."""
        return _IN_MEMORY if self.keep is None else self.keep

    @property
    def address(self) -> str | None:
        """The address that names the server in its store, or None if any port will do."""
        return f"{self.host}:{self.port}" if self.port else None

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the server."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def served_name(self) -> str:
        """The model's name for clients: of a path only the last part."""
        return public_name(self.model, is_path=Path(self.model).exists())

    @property
    def names(self) -> tuple[str, ...]:
        """All names of the model for clients."""
        return (self.served_name, *(alias for alias in self.aliases if alias != self.served_name))


_FITS: dict[str, Callable[[Any], bool]] = {
    _TEXT: lambda value: isinstance(value, str),
    _FLAG: lambda value: isinstance(value, bool),
    _TEXTS: lambda value: isinstance(value, tuple) and all(isinstance(each, str) for each in value),
    _WHOLE: lambda value: type(value) is int and value >= 0,
    _SECONDS: lambda value: type(value) in (int, float) and value >= 0,
}


def check_fields(owner: object, expected: str, *names: str, optional: bool = False) -> None:
    """Raises GlassloopError for the first of these fields that does not have what is expected: a file of
    options may have a value of any type. `expected` is one of "a text", "true or false", "a list of texts",
    "a whole number from 0 up" and "seconds from 0 up"."""
    for name in names:
        value = getattr(owner, name)
        if not (optional and value is None) and not _FITS[expected](value):
            raise GlassloopError.about(name, f"is {shown(value)}; {expected} is expected")


def public_name(model: str, is_path: bool = False) -> str:
    """Returns the name of a model for clients: of a path only the last part."""
    path = Path(model)
    looks_like_path = path.suffix in (".gguf", ".safetensors") or path.is_absolute() or is_path
    return (path.stem if path.suffix else path.name) if looks_like_path else model
