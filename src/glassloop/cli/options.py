"""The options that commands share. Those of `Sampling` are made from its fields; each one is a flag."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import MISSING, fields
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any

import typer

from glassloop.cli.terminal import Color, visible
from glassloop.decode.sampling import Sampling
from glassloop.errors import SamplingError, TextError
from glassloop.model import registry
from glassloop.model.registry.catalog import DEFAULT_MODEL as DEFAULT_MODEL
from glassloop.shown import shown

# Other names of flags, and what the help says of them: `-n` and `--n` look alike.
_ALSO = {"max_tokens": "-n", "n": "--samples"}
_NOTES = {"max_tokens": " (-n is this one; --n is --samples.)", "n": " (Not -n, which is --max-tokens.)"}
# The type of a flag for each kind of option; `Sampling` checks the values.
_TYPES: dict[str, Any] = {
    "number": float,
    "whole": int,
    "flag": bool,
    "text": str,
    "texts": list[str],
    "ids": list[int],
    "biases": list[str],
    "schema": str,
}
_METAVARS = {"biases": "ID=VALUE", "schema": "FILE|JSON"}


def complete_model(start: str) -> list[str]:
    """Returns the names of models that begin like this, for shell completion."""
    names = dict.fromkeys([*registry.CATALOG, *(item.name for item in registry.installed())])
    return [name for name in names if name.startswith(start)]


def _model(help: str) -> Any:
    return typer.Option("--model", "-m", help=help, autocompletion=complete_model)


Prompt = Annotated[str, typer.Argument(help="The text to continue; '-' reads it from stdin.")]
Model = Annotated[str, _model("A model: a name, a .gguf file or a folder with safetensors.")]
RunModel = Annotated[str | None, _model("The model to use, if not the one that the run names.")]
AnyModel = Annotated[str | None, _model(f"The model to use, if not the run's or {DEFAULT_MODEL}.")]
Ops = Annotated[str | None, typer.Option("--ops", help="The op set: torch (on a GPU), native or reference.")]
KVMemory = Annotated[
    str | None,
    typer.Option(help="Memory for keys and values, such as 2GB. Default: a part of what is free."),
]
Draft = Annotated[
    str | None, typer.Option(help="A smaller model that proposes drafts, or 'off' for no drafts.")
]
Keep = Annotated[
    bool, typer.Option("--store/--no-store", help="Keep runs in the store for explain, replay and runs.")
]
Colors = Annotated[
    Color,
    typer.Option(
        "--color", help="When to write colours: 'auto' is on a terminal, 'always' in a pipe too, or 'never'."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def read_text(text: str) -> str:
    """Returns the text of an argument; '-' stands for stdin."""
    if text != "-":
        return text
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise TextError(f"stdin is not UTF-8 text: byte {error.start} is 0x{byte:02X}") from None


def takes_sampling(command: Callable[..., None], panel: str | None = None, unset: bool = False) -> None:
    """Gives a command with `**options` a flag for each field of `Sampling`, in a panel of the help. If
    `unset`, flags have no defaults, and options that are not given are None."""
    own = signature(command, eval_str=True)
    parameters = [each for each in own.parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
    taken = {each.name for each in parameters}
    flags = [flag for flag in _flags(panel, unset) if flag.name not in taken]
    command.__signature__ = own.replace(parameters=[*parameters, *flags])  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in [*parameters, *flags]}


def given(options: dict[str, Any]) -> dict[str, Any]:
    """Returns the options that were given on the command line, as `Sampling` takes them."""
    found = {name: value for name, value in options.items() if value not in (None, [])}
    if "logit_bias" in found:
        found["logit_bias"] = dict(map(_bias, found["logit_bias"]))
    for name in ("json_schema", "grammar"):
        if name in found and (path := Path(found[name])).suffix and is_file(path):
            found[name] = path.read_text(encoding="utf-8")
        elif name in found and name == "json_schema" and isinstance(json_or_text(found[name]), str):
            problem = f"is {shown(found[name])}, which is neither an existing file nor JSON"
            raise SamplingError.about("--json-schema", problem)
    if "stages" in found:
        found["stages"] = [name for part in found["stages"] for name in part.split(",") if name]
    return found


def changed_options(sampling: Sampling) -> str:
    """Returns the options that differ from the defaults, in one line."""
    plain = Sampling().to_dict()
    changed = {name: value for name, value in sampling.to_dict().items() if value != plain[name]}
    return visible(", ".join(f"{name}={value}" for name, value in changed.items()), newlines=False)


def json_or_text(value: str) -> Any:
    """Returns the value of a JSON text, or the text itself if it is not JSON."""
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a text that cannot be a path
        return False


def _flags(panel: str | None, unset: bool) -> list[Parameter]:
    flags = []
    for field in fields(Sampling):
        kind, flag = field.metadata["kind"], "--" + field.name.replace("_", "-")
        names = [flag, _ALSO[field.name]] if field.name in _ALSO else [flag]
        if kind == "flag":
            names = [f"{flag}/--no-{flag[2:]}"]
        default = None if unset or field.default in (MISSING, ()) else field.default
        option = typer.Option(
            *names,
            help=field.metadata["help"] + _NOTES.get(field.name, ""),
            show_default=default not in (None, False),
            metavar=_METAVARS.get(kind),
            rich_help_panel=panel,
        )
        takes = _TYPES[kind] if default is not None else _TYPES[kind] | None
        flags.append(
            Parameter(
                field.name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[takes, option]
            )
        )
    return flags


def _bias(text: str) -> tuple[str, float]:
    token, _, value = text.partition("=")
    try:
        return str(int(token)), float(value)
    except ValueError:
        raise SamplingError(f"logit_bias is {text!r}; ID=VALUE, such as 42=-1.5, is expected") from None
