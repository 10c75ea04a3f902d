"""The settings of a server, checked when it starts."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

from glassloop.errors import GlassloopError
from glassloop.shown import shown

_ORIGIN = re.compile(r"https?://(?:\[[0-9a-f:.]+\]|[a-z0-9.-]+)(?::\d{1,5})?")

_IN_MEMORY = 1000  # runs


@dataclass(frozen=True)
class Settings:
    model: str
    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = ()
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
    allow_origins: tuple[str, ...] = ()  # sites whose pages may use the API from a browser
    training: Path | None = None  # a folder of training runs whose curves are shown, or one of them
    static: Path = Path(__file__).parent.parent / "static"  # the studio, where it is built

    def __post_init__(self) -> None:
        if any(not key.strip() for key in self.api_keys):
            raise GlassloopError("--api-key is empty; a key of your choice is expected")
        if not self.api_keys and not self.open_to_all and not self.is_local:
            raise GlassloopError(
                f"host is {self.host}, which other machines can reach; --api-key KEY is expected, or --open"
                " to let them in without a key"
            )
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


def public_name(model: str, is_path: bool = False) -> str:
    """Returns the name of a model for clients: of a path only the last part."""
    path = Path(model)
    looks_like_path = path.suffix in (".gguf", ".safetensors") or path.is_absolute() or is_path
    return (path.stem if path.suffix else path.name) if looks_like_path else model
