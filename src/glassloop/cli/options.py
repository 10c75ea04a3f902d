"""The options of `Sampling` as flags of a command, read off their declarations, so there is none too many or
too few."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any

import typer

from glassloop.decode.sampling import Sampling
from glassloop.errors import SamplingError
from glassloop.model.registry import DEFAULT_MODEL as DEFAULT_MODEL

_SHORT = {"max_tokens": "-n"}
# What a flag of each kind of option takes, before `Sampling` checks it.
_TAKES: dict[str, Any] = {
    "number": float,
    "whole": int,
    "flag": bool,
    "text": str,
    "texts": list[str],
    "ids": list[int],
    "biases": list[str],
    "schema": str,
}


def complete_model(start: str) -> list[str]:
    from glassloop.model import registry

    names = dict.fromkeys([*registry.CATALOG, *(item.name for item in registry.installed())])
    return [name for name in names if name.startswith(start)]


Model = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        help="A name, a .gguf file or a folder with safetensors.",
        autocompletion=complete_model,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def takes_sampling(command: Callable[..., None], panel: str | None = None, unset: bool = False) -> None:
    """Give a command with `**options` a flag for each field of `Sampling`, under a heading of the help. If
    `unset`, none has a default: what is not given is not there."""
    own = signature(command, eval_str=True)
    parameters = [each for each in own.parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
    taken = {each.name for each in parameters}
    flags = [flag for flag in _flags(panel, unset) if flag.name not in taken]
    command.__signature__ = own.replace(parameters=[*parameters, *flags])  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in [*parameters, *flags]}


def given(options: dict[str, Any]) -> dict[str, Any]:
    """What was asked for on the command line, as `Sampling` takes it."""
    found = {name: value for name, value in options.items() if value not in (None, [])}
    if "logit_bias" in found:
        found["logit_bias"] = dict(map(_bias, found["logit_bias"]))
    for name in ("json_schema", "grammar"):
        if name in found and (path := Path(found[name])).suffix and is_file(path):
            found[name] = path.read_text(encoding="utf-8")
    if "stages" in found:
        found["stages"] = [name for part in found["stages"] for name in part.split(",") if name]
    return found


def is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a text that could not be a path
        return False


def _flags(panel: str | None, unset: bool) -> list[Parameter]:
    made = []
    for field in fields(Sampling):
        kind, flag = field.metadata["kind"], "--" + field.name.replace("_", "-")
        names = [flag, _SHORT[field.name]] if field.name in _SHORT else [flag]
        if kind == "flag":
            names = [f"{flag}/--no-{flag[2:]}"]
        default = None if unset or field.default in (MISSING, ()) else field.default
        option = typer.Option(
            *names,
            help=field.metadata["help"],
            show_default=default not in (None, False),
            metavar={"biases": "ID=VALUE", "schema": "FILE|JSON"}.get(kind),
            rich_help_panel=panel,
        )
        takes = _TAKES[kind] if default is not None else _TAKES[kind] | None
        made.append(
            Parameter(
                field.name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[takes, option]
            )
        )
    return made


def _bias(text: str) -> tuple[str, float]:
    token, _, value = text.partition("=")
    try:
        return str(int(token)), float(value)
    except ValueError:
        raise SamplingError(f"logit_bias is {text!r}; ID=VALUE, such as 42=-1.5, is expected") from None
