"""The kinds of options that a request can have: a number within bounds, a switch, a list, and so on.

Each is a dataclass field with its own check, which returns the value in its normal form or raises an error
that names the field, and with a line of help for the command line.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import Any, TypeGuard

from glassloop.decode.diffusion import Diffusion
from glassloop.errors import SamplingError
from glassloop.util.check import is_number, is_whole
from glassloop.util.shown import shown

Check = Callable[[str, Any], Any]  # (name, value) → the value in its normal form

# The values that an option of a stage can have. A list is held as a tuple.
Scalar = bool | int | float | str | None
OptionValue = Scalar | tuple[Scalar, ...]
StageOptions = Mapping[str, Mapping[str, OptionValue]]  # by the name of the stage and of the option

MOST = (1 << 31) - 1  # of a whole number without a bound of its own: fits every integer that C and NumPy use
DEEPEST = 200  # levels of a JSON schema


def number(
    default: float | None,
    low: float,
    high: float,
    *,
    help: str,
    above: bool = False,
    below: bool = False,
    or_zero: bool = False,
) -> Any:
    """Returns an option that takes a number from `low` to `high`; `above` and `below` leave that bound out.
    With `or_zero`, `low` is the smallest number above 0."""
    start = 0.0 if or_zero else low
    allowed = (
        f"a number {'above' if above else 'from'} {start:g} {'and below' if below else 'to'} {high:g}"
        + (" or None" if default is None else "")
    )

    def check(name: str, value: Any) -> float | None:
        if value is None and default is None:
            return None
        if not is_number(value):
            raise wrong(name, value, allowed)
        inside = (low < value if above else low <= value) and (value < high if below else value <= high)
        if not inside and not (or_zero and value == 0):
            small = or_zero and 0 < value < low
            raise wrong(name, value, f"0, or a number from {low:g} to {high:g}," if small else allowed)
        return float(value)

    return _option(default, check, help, "number")


def whole(default: int | None, low: int, high: int = MOST, *, help: str) -> Any:
    """Returns an option that takes a whole number from `low` to `high`."""
    allowed = f"a whole number from {low} to {_power(high)}" + (" or None" if default is None else "")

    def check(name: str, value: Any) -> int | None:
        if value is None and default is None:
            return None
        if not is_whole(value) or not low <= value <= high:
            raise wrong(name, value, allowed)
        return int(value)

    return _option(default, check, help, "whole")


def flag(default: bool, *, help: str) -> Any:
    def check(name: str, value: Any) -> bool:
        if not isinstance(value, bool):
            raise wrong(name, value, "True or False")
        return value

    return _option(default, check, help, "flag")


def text(default: None, *, help: str) -> Any:
    def check(name: str, value: Any) -> str | None:
        return None if value is None else check_text(name, value)

    return _option(default, check, help, "text")


def items(default: tuple[()] | None, item: Check, *, help: str) -> Any:
    """Returns an option that takes a list, whose items are checked; a text alone is a list of one."""

    def check(name: str, value: Any) -> tuple[Any, ...] | None:
        if value is None and default is None:
            return None
        if isinstance(value, str):
            value = (value,)
        if not isinstance(value, Iterable) or isinstance(value, (bytes, Mapping)):
            raise wrong(name, value, "a list")
        items = tuple(item(f"{name}[{place}]", each) for place, each in enumerate(value))
        if not items and default is None:
            raise wrong(name, [], "a list with at least one item, or None,")
        return items

    return _option(default, check, help, "ids" if item is check_id else "texts")


def biases(*, help: str) -> Any:
    """Returns an option that maps token ids to what is added to their logits. JSON has the ids as text."""

    def check(name: str, value: Any) -> Mapping[int, float]:
        if not isinstance(value, Mapping):
            raise wrong(name, value, "a mapping from token ids to numbers")
        biases = {}
        for key, bias in value.items():
            written = isinstance(key, str) and key.isascii() and key.isdigit() and len(key) <= _DIGITS
            token = int(key) if written else key
            if not is_number(bias) or not -1000 <= bias <= 1000:
                raise wrong(f"{name}[{shown(key)}]", bias, "a number from -1000 to 1000", field=name)
            if not _is_id(token):
                raise wrong(f"a key of {name}", token, _ID, field=name)
            biases[int(token)] = float(bias)
        return biases

    return _option(_NO_BIAS, check, help, "biases", hash=False)


def by_stage(*, help: str) -> Any:
    """Returns an option that takes the options of stages, by the name of the stage and of its option. Here
    only their form and size are checked; the chain compares them with what each stage takes."""

    def check(name: str, value: Any) -> StageOptions:
        by_stage_name: dict[str, Any] = {}
        for stage, options in _entries(name, value, "stages to their options"):
            place = f"{name}.{stage}"
            by_stage_name[stage] = {
                key: check_option_value(f"{place}.{key}", each)
                for key, each in _entries(place, options, "names of options to values")
            }
        length = len(json.dumps(by_stage_name, ensure_ascii=False))
        if length > _MOST_STAGE_OPTIONS:
            problem = f"has {length} characters as JSON; at most {_MOST_STAGE_OPTIONS} are expected"
            raise SamplingError.about(name, problem)
        return by_stage_name

    return _option(_NO_STAGE_OPTIONS, check, help, "stage_options", hash=False)


def _entries(name: str, value: Any, expected: str) -> Iterable[tuple[str, Any]]:
    """Returns the entries of a mapping whose keys are names that are safe in a message."""
    if not isinstance(value, Mapping):
        raise wrong(name, value, f"a mapping from {expected}")
    for key in value:
        if not isinstance(key, str) or not 0 < len(key) <= _LONGEST_NAME or not key.isprintable():
            expected = f"a name of at most {_LONGEST_NAME} printable characters"
            raise wrong(f"a key of {name}", key, expected, field=name)
    return value.items()


def check_option_value(name: str, value: Any) -> OptionValue:
    if isinstance(value, (list, tuple)):
        return tuple(_scalar(f"{name}[{place}]", each) for place, each in enumerate(value))
    return _scalar(name, value)


def _scalar(name: str, value: Any) -> Scalar:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return check_text(name, value) if value else value
    if is_whole(value) and abs(value) < 1 << 63:
        return int(value)
    if is_number(value) and not is_whole(value):
        return float(value)
    raise wrong(name, value, "a finite number, a text, True, False, None, or a list of these")


def anything(help: str) -> Any:
    """Returns an option that takes a JSON schema: an object, its text, or True for any JSON."""

    def check(name: str, value: Any) -> Any:
        if value is None or value is True:
            return value
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError) as error:
                raise wrong(name, value, f"JSON ({error})") from None
        if value is not True and not isinstance(value, Mapping):
            raise wrong(name, value, "a JSON schema (an object), or True for any JSON,")
        _check_depth(name, value)
        try:
            json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise wrong(name, value, f"something that JSON can hold ({error})") from None
        return value

    return _option(None, check, help, "schema", hash=False)


def filling(help: str) -> Any:
    """Returns an option that takes the length of a block, or several options of `Diffusion` by name."""

    def check(name: str, value: Any) -> Diffusion | None:
        return None if value is None else Diffusion.of(value)

    return _option(None, check, help, "diffusion")


def _check_depth(name: str, value: Any) -> None:
    """Refuses what is nested too deeply for the recursive functions that read it later."""
    level: list[Any] = [value]
    for _ in range(DEEPEST):
        level = [child for each in level for child in children(each)]
        if not level:
            return
    raise SamplingError.about(name, f"is more than {DEEPEST} levels deep; fewer are expected")


def children(value: Any) -> Iterable[Any]:
    """Returns the items of a JSON value that is an object or a list, nothing of any other."""
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, (list, tuple)) else ()


def check_text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise wrong(name, value, "a text that is not empty")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise wrong(name, value, "a text without lone surrogates") from None
    return value


def check_id(name: str, value: Any) -> int:
    if not _is_id(value):
        raise wrong(name, value, _ID)
    return int(value)


def check_text_or_ids(name: str, value: Any) -> str | tuple[int, ...]:
    """Returns a text, or token ids that must not follow one another."""
    if isinstance(value, (list, tuple)) and value:
        return tuple(check_id(f"{name}[{place}]", each) for place, each in enumerate(value))
    return check_text(name, value)


def wrong(name: str, value: object, expected: str, *, field: str | None = None) -> SamplingError:
    """Returns the error for a value of an option, which is called `name` in the message."""
    message = f"{name} is {shown(value)}; {expected} is expected"
    return SamplingError(message, field=field or name, expected=expected.rstrip(","))


def hint(name: str, known: Iterable[str], what: str) -> str:
    """Returns the known name that is nearest to an unknown one, as a question, or else all known names."""
    from difflib import get_close_matches

    known = list(known)
    close = get_close_matches(name, known, n=1) if len(name) <= _LONGEST_NAME else []
    return f"did you mean {close[0]}?" if close else f"the {what} are {', '.join(known)}"


def _is_id(value: object) -> TypeGuard[int]:
    return is_whole(value) and 0 <= value < 1 << 31


_LONGEST_NAME = 80  # characters for which a similar name is looked up
_DIGITS = 10  # of the largest token id
_ID = "a token id, a whole number from 0 up,"
_NO_BIAS: Mapping[int, float] = {}
_NO_STAGE_OPTIONS: StageOptions = {}
_MOST_STAGE_OPTIONS = 1 << 16  # characters of the options of all stages, as JSON


def _option(default: Any, check: Check, help: str, kind: str, hash: bool | None = None) -> Any:
    metadata = {"check": check, "help": help, "kind": kind}
    if isinstance(default, dict):
        return field(default_factory=lambda: default, metadata=metadata, hash=hash)
    return field(default=default, metadata=metadata, hash=hash)


def _power(value: int) -> str:
    return f"2^{value.bit_length()} - 1" if value > 1 << 40 else str(value)
