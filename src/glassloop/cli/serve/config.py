"""Where `glassloop serve` gets its options from beside the command line: environment variables, a file, and
the file of API keys, so that keys are not in the list of processes.

An option of the command line goes before its variable (`GLASSLOOP_SERVE_PORT`), and that before the file.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from glassloop.errors import GlassloopError
from glassloop.util.files import read_at_most
from glassloop.util.shown import printable, shown

PREFIX = "GLASSLOOP_SERVE"
_MOST = 1 << 20  # bytes of a file
_MOST_KEYS = 10_000
_KEY_OPTION = "api_key"


def take_config(ctx: typer.Context, file: Path | None) -> Path | None:
    """Makes the options of a file the defaults of the command. The callback of `--config`, which is read
    before all other options."""
    names = _names(ctx)
    _check_variables(names)
    if file is not None:
        ctx.default_map = {**(ctx.default_map or {}), **read_config(file, ctx.command.params, names)}
    return file


def read_config(file: Path, parameters: Any, names: Mapping[str, tuple[str, bool]]) -> dict[str, Any]:
    """Returns the values of a TOML file by the names of parameters. Its names are those of the options."""
    import tomllib

    text = read_at_most(file, _MOST, GlassloopError)
    try:
        table = tomllib.loads(text.decode())
    except (ValueError, RecursionError) as error:  # a TOMLDecodeError, or no UTF-8
        raise GlassloopError(f"{file}: is no TOML file: {' '.join(str(error).split())}") from None
    by_name = {each.name: each for each in parameters}
    values: dict[str, Any] = {}
    for name, value in table.items():
        if name.replace("_", "-") not in names:
            raise GlassloopError(f"{file}: {_unknown(printable(name), names, 'options')}")
        parameter, negates = names[name.replace("_", "-")]
        if parameter in values:
            raise GlassloopError(f"{file}: {printable(name)} says again what another line says")
        values[parameter] = _value(f"{file}: {printable(name)}", by_name[parameter], value, negates)
    if _KEY_OPTION in values:
        _check_private(file)
    return values


def read_keys(file: Path) -> list[str]:
    """Returns the API keys of a file, one a line; empty lines and lines that begin with # are left out.
    Raises unless only its owner and group can read it."""
    text = read_at_most(file, _MOST, GlassloopError)
    _check_private(file)
    try:
        lines = [line.strip() for line in text.decode("ascii").splitlines()]
    except UnicodeDecodeError:
        raise GlassloopError(f"{file}: a key is not ASCII; one key a line is expected") from None
    keys = [line for line in lines if line and not line.startswith("#")]
    # The messages must not show a key.
    if not 1 <= len(keys) <= _MOST_KEYS:
        raise GlassloopError(f"{file}: has {len(keys)} keys; 1 to {_MOST_KEYS:,} are expected, one a line")
    for number, line in enumerate(lines, 1):
        if line in keys and (not line.isprintable() or " " in line):
            raise GlassloopError(f"{file}: line {number} has spaces or control characters; a key is expected")
    return list(dict.fromkeys(keys))


def _check_private(file: Path) -> None:
    """Raises if others than the owner and the group can read a file with keys, or others than the owner can
    write to it."""
    mode = stat.S_IMODE(file.stat().st_mode)
    if os.name == "posix" and mode & 0o026:
        raise GlassloopError(
            f"{file}: has API keys and mode {mode:04o}, so that others can read or change it; chmod 600 it"
        )


def _names(ctx: typer.Context) -> dict[str, tuple[str, bool]]:
    """Returns the parameter of each name that an option has, without dashes before it, and whether the name
    says no."""
    names = {}
    for each in ctx.command.params:
        if each.name in (None, "config", "help"):
            continue
        for option in each.opts:
            if option.startswith("--"):
                names[option[2:]] = (str(each.name), False)
        for option in each.secondary_opts:
            names[option[2:]] = (str(each.name), True)
    return names


def _check_variables(names: Mapping[str, tuple[str, bool]]) -> None:
    """Raises for a variable that looks like an option and is none."""
    variables = {f"{PREFIX}_{name}".upper() for name, _ in names.values()} | {f"{PREFIX}_CONFIG"}
    for variable in os.environ:
        if variable.startswith(f"{PREFIX}_") and variable not in variables:
            raise GlassloopError(_unknown(printable(variable), sorted(variables), "variables"))


def _unknown(name: str, names: Any, what: str) -> str:
    from glassloop.decode.option import hint

    return f"{name} is not known; {hint(name, names, what)}"


def _value(where: str, parameter: Any, value: Any, negates: bool) -> Any:
    """Returns a value of the file in the form in which the command line would give it."""
    is_list = parameter.multiple
    if getattr(parameter, "is_flag", False):
        if not isinstance(value, bool):
            raise GlassloopError(f"{where} is {shown(value)}; true or false is expected")
        return value != negates
    values = value if is_list and isinstance(value, list) else [value]
    expected = "a text or a number" + (", or a list of them," if is_list else "")
    if not all(isinstance(each, str | int | float) and not isinstance(each, bool) for each in values):
        raise GlassloopError(f"{where} is {shown(value)}; {expected} is expected")
    return [str(each) for each in values] if is_list else str(value)
