"""The options of a stage: the parameters of its function after `candidates` and `step`.

    def new_opening(candidates: Candidates, step: Step, *, words: int = 2) -> Candidates: ...

The signature is read once, when the stage is registered; the values of a request are checked and bound once,
when its chain is built.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Parameter as Declared
from inspect import signature, unwrap
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from glassloop.decode.option import OptionValue, check_option_value, hint, wrong
from glassloop.errors import SamplingError
from glassloop.util.shown import shown


class Parameter(NamedTuple):
    """One option of a stage. `read` returns a value as the function takes it, or raises `ValueError`."""

    expected: str
    read: Callable[[OptionValue], Any]
    required: bool
    default: OptionValue


def parameters_of(stage: str, function: Callable[..., Any]) -> dict[str, Parameter]:
    """Returns the options that the function of a stage declares, by name. The type is that of the annotation
    or, without one, of the default. A parameter without an annotation whose default is another object is no
    option: the function keeps the default."""
    try:
        declared = list(signature(function).parameters.values())[2:]
    except (TypeError, ValueError):  # a callable whose signature is not known
        return {}
    parameters = {}
    for each in declared:
        if each.kind in (Declared.VAR_POSITIONAL, Declared.VAR_KEYWORD):
            continue
        required = each.default is Declared.empty
        annotation = each.annotation
        if annotation is Declared.empty and not required:
            annotation = type(each.default)
            if annotation in (NoneType, list, tuple):
                annotation = Any
            elif annotation not in _SCALARS:
                continue
        try:
            if isinstance(annotation, str):
                annotation = eval(annotation, getattr(unwrap(function), "__globals__", {}))
            expected, read = _kind(annotation)
        except Exception as error:
            raise SamplingError(
                f"stage {stage!r}: the type of its option {each.name} is {shown(each.annotation)}; bool, int,"
                " float, str, a Literal, a list of one of these, or one of these or None is expected"
            ) from error
        parameters[each.name] = Parameter(expected, read, required, _plain(each.default))
    return parameters


def _plain(default: object) -> OptionValue:
    """Returns a default as JSON can hold it, for lists of options; None for any other object."""
    try:
        return check_option_value("default", default)
    except SamplingError:
        return None


def bind(
    stage: str, parameters: Mapping[str, Parameter], named_values: Mapping[str, OptionValue]
) -> dict[str, Any]:
    """Returns the options of a request as the function of a stage takes them. Raises if one is unknown, wrong
    or missing."""
    for name in named_values:
        if name not in parameters:
            suggestion = hint(name, parameters, "options") if parameters else "it has no options"
            place = f"stage_options.{stage}.{name}"
            raise SamplingError.about(place, f"is not an option of the stage {stage!r}; {suggestion}")
    values = {}
    for name, (expected, read, required, _) in parameters.items():
        place = f"stage_options.{stage}.{name}"
        if name in named_values:
            try:
                values[name] = read(named_values[name])
            except ValueError:
                raise wrong(place, named_values[name], expected) from None
        elif required:
            raise SamplingError.about(place, f"is missing; {expected} is expected")
    return values


_Kind = tuple[str, Callable[[Any], Any]]  # what is expected, in words, and how a value is read


def _kind(annotation: Any) -> _Kind:
    if annotation is Any:
        return "any value", lambda value: value
    if annotation in _SCALARS:
        return _SCALARS[annotation]
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal and all(type(each) in (bool, int, str, NoneType) for each in inner):
        return f"one of {', '.join(map(repr, inner))}", lambda value: _one_of(inner, value)
    if origin in (Union, UnionType):
        kinds = [_kind(each) for each in inner]
        return " or ".join([expected for expected, _ in kinds]), lambda value: _first_of(kinds, value)
    if origin in (list, tuple) and (len(inner) == 1 or (origin is tuple and inner[1:] == (...,))):
        if inner[0] not in _SCALARS:
            raise TypeError("a list of lists")
        expected, read = _SCALARS[inner[0]]
        return f"a list, each {expected},", lambda value: _list_of(origin, read, value)
    raise TypeError("a type that JSON does not have")


def _exactly(kind: type) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if type(value) is not kind:
            raise ValueError
        return value

    return read


def _number(value: Any) -> float:
    if type(value) not in (int, float):
        raise ValueError
    return float(value)


def _one_of(allowed: tuple[Any, ...], value: Any) -> Any:
    if not any(type(value) is type(each) and value == each for each in allowed):
        raise ValueError
    return value


def _first_of(kinds: list[_Kind], value: Any) -> Any:
    for _, read in kinds:
        try:
            return read(value)
        except ValueError:
            pass
    raise ValueError


def _list_of(kind: Callable[[list[Any]], Any], read: Callable[[Any], Any], value: Any) -> Any:
    if not isinstance(value, tuple):
        raise ValueError
    return kind([read(each) for each in value])


_SCALARS: dict[Any, _Kind] = {
    bool: ("True or False", _exactly(bool)),
    int: ("a whole number", _exactly(int)),
    float: ("a number", _number),
    str: ("a text", _exactly(str)),
    NoneType: ("None", _exactly(NoneType)),
    None: ("None", _exactly(NoneType)),
}
