"""Flags from dataclasses. A command takes a dataclass as one parameter; each of its fields is a flag:

    @dataclass(frozen=True)
    class LimitFlags(Flags, group="Limits"):
        queue: int = flag(256, "The most requests that wait.", min=1)

    @takes_flags()
    def serve(*, limits: LimitFlags, engine: Annotated[EngineFlags, Only("ops", "draft")]) -> None: ...

A field may also have an annotation that a command could have by itself (`ops: Ops = None`). A command with
`**options` has the flags of `Sampling` too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, field, fields
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, ClassVar, cast, get_args, get_origin, get_type_hints

import typer

from glassloop.cli.sampling_flags import sampling_parameters

Command = Callable[..., None]
REQUIRED = MISSING  # the default of a flag that must be given
_METAVARS = {int: "N", float: "X", Path: "FILE"}


class Flags:
    """The base of dataclasses of flags. `group` is their group in the help."""

    group: ClassVar[str | None] = None

    def __init_subclass__(cls, group: str | None = None) -> None:
        cls.group = group


_PARAMETERS: dict[type[Flags], dict[str, Parameter]] = {}  # those that have been made


class Only:
    """Names the fields of a dataclass that are flags of a command. The others have their defaults."""

    def __init__(self, *names: str) -> None:
        self.names = names


def flag(default: Any, help: str, *names: str, **settings: Any) -> Any:
    """Returns the field of a dataclass that is a flag. Without `names`, the flag has the name of the field;
    `settings` are those of `typer.Option`, with `group` for another group in the help."""
    return field(default=default, metadata={"help": help, "names": names, "settings": settings})


def takes_flags(prefix: str = "", unset: bool = False) -> Callable[[Command], Command]:
    """Gives a command a flag for each field of the dataclasses among its parameters.

    For `**options` it has a flag for each field of `Sampling`, in groups of the help whose names begin with
    `prefix`. If `unset`, these have no defaults, and options that are not given are None.
    """

    def decorated(command: Command) -> Command:
        parameters: list[Parameter] = []
        parts: dict[str, tuple[type[Flags], tuple[str, ...]]] = {}
        has_sampling = False
        for each in signature(command, eval_str=True).parameters.values():
            part = _part(each.annotation)
            if each.kind is Parameter.VAR_KEYWORD:
                has_sampling = True
            elif part is None:
                parameters.append(each)
            else:
                parts[each.name] = part
                parameters += [_declared(part[0])[name] for name in part[1]]
        if has_sampling:
            parameters += sampling_parameters(prefix, unset, {each.name for each in parameters})
        expanded = Signature(parameters)

        def call(*arguments: Any, **options: Any) -> None:
            bound = expanded.bind(*arguments, **options)
            bound.apply_defaults()
            values = dict(bound.arguments)
            for name, (kind, names) in parts.items():
                values[name] = kind(**{field_name: values.pop(field_name) for field_name in names})
            command(**values)

        call.__doc__, call.__name__ = command.__doc__, command.__name__
        call.__signature__ = expanded  # type: ignore[attr-defined]
        call.__annotations__ = {each.name: each.annotation for each in parameters}
        return call

    return decorated


def _part(annotation: Any) -> tuple[type[Flags], tuple[str, ...]] | None:
    """Returns a dataclass of flags and the names of those that a command takes, or None for another type."""
    kind, *notes = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
    if not (isinstance(kind, type) and issubclass(kind, Flags)):
        return None
    return kind, next((note.names for note in notes if isinstance(note, Only)), tuple(_declared(kind)))


def _declared(kind: type[Flags]) -> dict[str, Parameter]:
    """Returns the parameter of a command for each field of a dataclass of flags."""
    if kind not in _PARAMETERS:
        hints, declared = get_type_hints(kind, include_extras=True), fields(cast(Any, kind))
        _PARAMETERS[kind] = {each.name: _parameter(each, hints[each.name], kind.group) for each in declared}
    return _PARAMETERS[kind]


def _parameter(declared: Field[Any], hint: Any, group: str | None) -> Parameter:
    default = Parameter.empty if declared.default is REQUIRED else declared.default
    if declared.metadata:
        settings = {"group": group, "metavar": _metavar(hint), **declared.metadata["settings"]}
        names, panel = declared.metadata["names"], settings.pop("group")
        option = typer.Option(*names, help=declared.metadata["help"], rich_help_panel=panel, **settings)
        hint = Annotated[hint, option]
    return Parameter(declared.name, Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def _metavar(hint: Any) -> str | None:
    """Returns what stands for the value of a flag in the help: of a number, a path, or a list of these."""
    return next((_metavar(part) for part in get_args(hint) if _metavar(part)), None) or _METAVARS.get(hint)
