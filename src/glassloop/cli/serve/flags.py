"""The flags of `glassloop serve`, by their groups in the help.

Their names are also those of environment variables and of a TOML file: see `config.py`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from glassloop.cli.flags import Flags, flag
from glassloop.cli.help import MODEL, OUTPUT
from glassloop.cli.serve.config import read_keys, take_config
from glassloop.errors import GlassloopError

if TYPE_CHECKING:
    from glassloop.server.operation.settings import ServerSettings

_ACCESS, _LIMITS, _CLUSTER = "Address and access", "Limits", "Replicas"
_KEYS_VARIABLE = "GLASSLOOP_API_KEY"


@dataclass(frozen=True)
class AccessFlags(Flags, group=_ACCESS):
    """Where a server listens, and who may use it."""

    config: Path | None = flag(
        None,
        "A TOML file with options, by their names: port = 8000. Those of the command line go before, and so"
        " do variables such as GLASSLOOP_SERVE_PORT.",
        callback=take_config,
        is_eager=True,
    )
    host: str = flag("127.0.0.1", "The address to listen on.", metavar="ADDRESS")
    port: int = flag(8000, "The port; 0 takes any free one.", min=0, max=65535)
    api_key: list[str] | None = flag(
        None,
        f"Require this key; may be repeated. Or set {_KEYS_VARIABLE}, with commas between keys.",
        metavar="KEY",
    )
    api_key_file: Path | None = flag(
        None, "Require one of the keys in this file, one a line. Only its owner may read it (chmod 600)."
    )
    separate_keys: bool | None = flag(
        None,
        "Whether each key has runs and cached prompts of its own, or all keys share them; by default of its"
        " own, if there are several.",
        "--separate-keys/--shared-cache",
    )
    open_to_all: bool = flag(False, "Let other machines in without a key.", "--open")
    allow_origin: list[str] | None = flag(
        None, "Let pages of this site use the API from a browser; may be repeated.", metavar="SITE"
    )

    @property
    def keys(self) -> tuple[str, ...]:
        """The API keys, of the command line or else of the environment, and those of the file."""
        keys = self.api_key or [key for key in os.environ.get(_KEYS_VARIABLE, "").split(",") if key]
        return (*keys, *([] if self.api_key_file is None else read_keys(self.api_key_file)))


@dataclass(frozen=True)
class RecordFlags(Flags, group=OUTPUT):
    """What a server keeps and logs."""

    keep: int | None = flag(
        None,
        "How many finished runs of this server to keep; 0 for none. Runs of other programs stay. Default: all"
        " in the store, 1000 in memory.",
        min=0,
    )
    store: str | None = flag(
        None,
        "The file that keeps the runs, or postgresql://… for a database that many servers share. Default: the"
        " store that all commands use.",
        metavar="FILE|URL",
    )
    no_store: bool = flag(False, "Keep runs in memory only.", "--no-store")
    training: Path | None = flag(
        None,
        "Show the training runs in this folder in the studio: `glassloop train run FOLDER/NAME`.",
        metavar="FOLDER",
    )
    receipt_key: Path | None = flag(
        None, "Sign the receipts of runs with this Ed25519 key, in PEM (docs/receipts.md).", metavar="FILE"
    )
    log_prompts: bool = flag(False, "Whether to log prompts and answers.", "--log-prompts/--no-log-prompts")
    log_level: str = flag(
        "info",
        "What to log: debug (probes of /health, /ready and /metrics too), info, warning or error.",
        metavar="LEVEL",
    )
    access_log: bool = flag(True, "Whether to log each request.", "--access-log/--no-access-log")


@dataclass(frozen=True)
class LimitFlags(Flags, group=_LIMITS):
    """How much a server computes at once, and for one request."""

    running: int | None = flag(None, "The most requests that run at once. Default: 64, on a GPU 256.", min=1)
    queue: int = flag(256, "The most requests that wait; others get status 429.", min=1)
    timeout: float = flag(600.0, "The longest time for one request.", metavar="SECONDS", min=0.001)
    grace: float = flag(30.0, "At shutdown, how long to wait for running requests.", metavar="SECONDS", min=0)
    max_body: str = flag("8MB", "The largest request body.", metavar="SIZE")
    max_prompt: int | None = flag(None, "The longest prompt, in tokens. Default: the model's context.", min=1)


@dataclass(frozen=True)
class ClusterFlags(Flags, group=_CLUSTER):
    """The replicas that compute, if the server does not do it itself."""

    replicas: int | None = flag(
        None,
        "Compute with this many replicas, each a process with the model, on Ray Serve. A stream continues"
        " when its replica dies.",
        min=1,
    )
    most_replicas: int | None = flag(
        None, "Add replicas up to this many while requests queue, and remove them later.", min=1
    )
    address: str | None = flag(
        None,
        "The Ray cluster to join, such as auto or ray-head:6379. Default: one on this machine, for as long as"
        " the server runs.",
        metavar="RAY",
    )
    gpus: float = flag(0.0, "GPUs of a replica; 0.5 shares one.", metavar="N", min=0)
    stall: float = flag(
        5.0,
        "How long a replica may give no sign of life before its streams continue elsewhere.",
        metavar="SECONDS",
        min=1,
    )
    patience: float = flag(
        60.0, "The longest wait for another replica with the same model.", metavar="SECONDS", min=0
    )

    def check_unused(self) -> None:
        """Raises if a flag is given that needs `--replicas`."""
        values = {"most-replicas": self.most_replicas, "address": self.address, "gpus": self.gpus or None}
        for name, value in values.items():
            if value is not None:
                raise GlassloopError(f"--{name} is given without --replicas; --replicas N is expected")


@dataclass(frozen=True)
class ModelsFlags(Flags, group=MODEL):
    """Further models, names for all of them, and what they may take."""

    also: list[str] | None = flag(
        None,
        "Serve this model too, by its name; may be repeated. It is loaded when a request names it, or has"
        " replicas of its own.",
        metavar="MODEL",
    )
    served_model_name: list[str] | None = flag(
        None,
        "Another name by which clients may ask for the model, or NAME=MODEL for one of --also; may be"
        " repeated.",
        metavar="NAME",
    )
    threads: int | None = flag(
        None,
        "Threads that compute, of each replica if there are several. Default: the cores of this machine,"
        " shared by the replicas.",
        min=1,
        max=256,
    )
    memory: str | None = flag(
        None,
        "The most memory that all models together take (--also); the one that was not used for longest makes"
        " room. With --replicas: what Ray sets aside for each.",
        metavar="SIZE",
    )
    unload_after: float = flag(
        900,
        "How long one of several models (--also) stays loaded without a request; 0: until another needs its"
        " memory.",
        metavar="SECONDS",
        min=0,
    )


def settings_of(model: str, access: AccessFlags, record: RecordFlags, limits: LimitFlags) -> ServerSettings:
    """Returns the settings of a server, checked."""
    from glassloop.engine.kv_memory import parse_bytes
    from glassloop.server.operation.settings import ServerSettings

    return ServerSettings(
        model,
        host=access.host,
        port=access.port,
        api_keys=access.keys,
        separate_keys=access.separate_keys,
        open_to_all=access.open_to_all,
        allow_origins=tuple(access.allow_origin or ()),
        keep=record.keep,
        store=record.store,
        training=record.training,
        receipt_key=record.receipt_key,
        log_prompts=record.log_prompts,
        log_level=record.log_level,
        access_log=record.access_log,
        most_body=parse_bytes(limits.max_body, "max-body"),
        most_prompt=limits.max_prompt,
        timeout=limits.timeout,
        grace=limits.grace,
    )
