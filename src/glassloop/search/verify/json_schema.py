"""Checks a JSON value against a JSON schema: the keywords that describe a value's own shape.

Written here because a verifier needs a bounded cost and no library beside the core ones. llguidance, which
makes the model follow a schema, cannot judge a text of another origin: it accepts the properties of an object
only in the schema's order and numbers only as it would write them, and it has no `not`, `oneOf`, `contains`
and `uniqueItems`. A schema with a keyword that is not known is refused, so that nothing is silently left
unchecked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from math import isfinite
from typing import Any

from glassloop.engine.deadline import Deadline
from glassloop.errors import GlassloopError
from glassloop.search.verify.patterns import check_pattern, is_found, pattern_seconds
from glassloop.util.shown import shown

_DEEPEST = 64
_MOST = 100_000  # schemas and entries of `enum` that are looked at for one value, the same ones each time
_LEAST_MULTIPLE = 1e-300
_WHAT = "the check of the schema"
_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
    "number": (int, float),
    "integer": (int, float),
}
_SAID_ONLY = frozenset(
    (
        "$schema",
        "$id",
        "$comment",
        "title",
        "description",
        "default",
        "examples",
        "format",
        "$defs",
        "definitions",
    )
)
_KNOWN = _SAID_ONLY | {
    *("type", "enum", "const", "allOf", "anyOf", "oneOf", "not", "$ref"),
    *("properties", "required", "additionalProperties", "minProperties", "maxProperties"),
    *("items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains"),
    *("minLength", "maxLength", "pattern"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
Schema = Mapping[str, Any] | bool


def check_schema(schema: Any, until: Deadline | None = None) -> None:
    """Raises GlassloopError for a schema that is invalid or has a keyword that is not supported, or whose
    patterns take too long to compile."""
    schemas, references = dict[int, Any](), list[str]()
    _check(schema, pattern_seconds(until, _WHAT), schemas, references, 0)
    for reference in references:
        target = _resolve(reference, schema)
        is_schema = isinstance(target, bool) or id(target) in schemas
        _expect(is_schema, "$ref", reference, "a reference to a schema")


def _check(schema: Any, until: Deadline, schemas: dict[int, Any], references: list[str], depth: int) -> None:
    """Checks a part of a schema. Adds each schema in it to `schemas`, by its id, and what refers to others to
    `references`."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        raise GlassloopError.about(
            "schema", f"has {shown(schema)}; an object of at most {_DEEPEST} levels is expected"
        )
    schemas[id(schema)] = schema
    for name, value in schema.items():
        if name not in _KNOWN:
            raise GlassloopError.about("schema", f"has {shown(name)}, which is not supported")
        if name in ("properties", "$defs", "definitions"):
            _expect(isinstance(value, Mapping), name, value, "an object")
            for each in value.values():
                _check(each, until, schemas, references, depth + 1)
        elif name in ("allOf", "anyOf", "oneOf", "prefixItems"):
            _expect(isinstance(value, list) and bool(value), name, value, "a list of schemas")
            for each in value:
                _check(each, until, schemas, references, depth + 1)
        elif name in ("items", "contains", "not", "additionalProperties"):
            _check(value, until, schemas, references, depth + 1)
        elif name == "type":
            for each in [value] if isinstance(value, str) else value if isinstance(value, list) else [None]:
                is_type = isinstance(each, str) and each in _TYPES
                _expect(is_type, name, value, f"one of {', '.join(_TYPES)}")
        elif name == "pattern":
            _expect(isinstance(value, str), name, value, "a regular expression")
            check_pattern(value, until)
        elif name == "enum":
            _expect(isinstance(value, list), name, value, "a list")
        elif name == "required":
            texts = isinstance(value, list) and all(isinstance(each, str) for each in value)
            _expect(texts, name, value, "a list of names")
        elif name == "multipleOf":
            _expect(
                _is_number(value) and value >= _LEAST_MULTIPLE,
                name,
                value,
                f"a number of at least {_LEAST_MULTIPLE}",
            )
        elif name.startswith(("min", "max", "exclusive")):
            _expect(_is_number(value), name, value, "a number")
        elif name == "$ref":
            _expect(
                isinstance(value, str) and value.startswith("#"), name, value, "a reference into the schema"
            )
            references.append(value)


def _is_number(value: object) -> bool:
    """Returns whether a value is a number of JSON: neither true nor false, and not NaN."""
    if isinstance(value, float):
        return isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def _expect(true: bool, name: str, value: object, expected: str) -> None:
    if not true:
        raise GlassloopError.about(f"schema.{name}", f"is {shown(value)}; {expected} is expected")


class _Work:
    """The schema that references point into, how many more steps a check may take, and until when."""

    def __init__(self, schema: Schema, until: Deadline) -> None:
        self.schema = schema
        self.until = until
        self._left = _MOST

    def step(self, count: int = 1) -> None:
        self._left -= count
        if self._left < 0:
            raise GlassloopError.about("schema", f"takes more than {_MOST} steps to check")


def mismatch(value: Any, schema: Schema, until: Deadline | None = None) -> str | None:
    """Returns what is wrong with a value, with its place, or None if it follows the schema. Raises
    GlassloopError for a schema that takes too long: references can make a small one endless, and all of its
    patterns together have the seconds of one."""
    return _mismatch(value, schema, _Work(schema, pattern_seconds(until, _WHAT)), "$", 0)


def _mismatch(value: Any, schema: Schema, work: _Work, at: str, depth: int) -> str | None:
    work.step()
    if schema is True:
        return None
    if schema is False or depth > _DEEPEST:
        return f"{at} is not allowed" if schema is False else f"{at} is nested too deeply"
    assert isinstance(schema, Mapping)
    if "$ref" in schema:
        wrong = _mismatch(value, _resolve(schema["$ref"], work.schema), work, at, depth + 1)
        if wrong is not None:
            return wrong
    return (
        _wrong_value(value, schema, work, at)
        or _wrong_combination(value, schema, work, at, depth)
        or (_wrong_object(value, schema, work, at, depth) if isinstance(value, dict) else None)
        or (_wrong_array(value, schema, work, at, depth) if isinstance(value, list) else None)
    )


def _resolve(reference: str, root: Schema) -> Schema:
    target: Any = root
    for part in reference.lstrip("#").strip("/").split("/"):
        if part:
            name = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(target, Mapping) or name not in target:
                raise GlassloopError.about(
                    "schema.$ref", f"is {shown(reference)}, which the schema does not have"
                )
            target = target[name]
    return target  # type: ignore[no-any-return]


def _is_type(value: Any, name: str) -> bool:
    if isinstance(value, bool) and name in ("number", "integer"):
        return False
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES[name])


def _wrong_value(value: Any, schema: Mapping[str, Any], work: _Work, at: str) -> str | None:
    if "type" in schema:
        names = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
        if not any(_is_type(value, name) for name in names):
            return f"{at} is {shown(value)}; {' or '.join(names)} is expected"
    if "const" in schema and not _same(value, schema["const"]):
        return f"{at} is {shown(value)}; {shown(schema['const'])} is expected"
    if "enum" in schema:
        work.step(len(schema["enum"]))
        if not any(_same(value, each) for each in schema["enum"]):
            return f"{at} is {shown(value)}; one of {shown(schema['enum'])} is expected"
    if isinstance(value, str):
        return _out_of_range(len(value), schema, "minLength", "maxLength", f"the length of {at}") or (
            f"{at} does not match {shown(schema['pattern'])}"
            if "pattern" in schema and not is_found(schema["pattern"], value, work.until)
            else None
        )
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return _wrong_number(value, schema, at)
    return None


def _wrong_number(value: float, schema: Mapping[str, Any], at: str) -> str | None:
    if "exclusiveMinimum" in schema and value <= schema["exclusiveMinimum"]:
        return f"{at} is {value}; more than {schema['exclusiveMinimum']} is expected"
    if "exclusiveMaximum" in schema and value >= schema["exclusiveMaximum"]:
        return f"{at} is {value}; less than {schema['exclusiveMaximum']} is expected"
    if "multipleOf" in schema and not _is_multiple(value, schema["multipleOf"]):
        return f"{at} is {value}; a multiple of {schema['multipleOf']} is expected"
    return _out_of_range(value, schema, "minimum", "maximum", at)


def _is_multiple(value: float, of: float) -> bool:
    if isinstance(value, float) and not isfinite(value):
        return False
    try:
        quotient = value / of
        return abs(quotient - round(quotient)) <= 1e-9
    except OverflowError:  # it is beyond all floats
        return Fraction(value) % Fraction(of) == 0


def _out_of_range(value: float, schema: Mapping[str, Any], least: str, most: str, what: str) -> str | None:
    if least in schema and value < schema[least]:
        return f"{what} is {value}; at least {schema[least]} is expected"
    if most in schema and value > schema[most]:
        return f"{what} is {value}; at most {schema[most]} is expected"
    return None


def _wrong_combination(value: Any, schema: Mapping[str, Any], work: _Work, at: str, depth: int) -> str | None:
    def wrongs(name: str) -> Iterator[str | None]:
        return (_mismatch(value, each, work, at, depth + 1) for each in schema.get(name, ()))

    for wrong in wrongs("allOf"):
        if wrong is not None:
            return wrong
    if "anyOf" in schema and all(problems := list(wrongs("anyOf"))):
        return problems[0]
    if "oneOf" in schema and sum(wrong is None for wrong in wrongs("oneOf")) != 1:
        return f"{at} follows not exactly one of its schemas"
    if "not" in schema and _mismatch(value, schema["not"], work, at, depth + 1) is None:
        return f"{at} follows a schema that it must not follow"
    return None


def _wrong_object(
    value: dict[str, Any], schema: Mapping[str, Any], work: _Work, at: str, depth: int
) -> str | None:
    for name in schema.get("required", ()):
        if name not in value:
            return f"{at} has no {shown(name)}"
    properties = schema.get("properties", {})
    for name, each in value.items():
        wanted = properties[name] if name in properties else schema.get("additionalProperties", True)
        wrong = _mismatch(
            each, wanted, work, f"{at}.{name}" if name.isidentifier() else f"{at}[…]", depth + 1
        )
        if wrong is not None:
            return wrong
    return _out_of_range(len(value), schema, "minProperties", "maxProperties", f"the size of {at}")


def _wrong_array(value: list[Any], schema: Mapping[str, Any], work: _Work, at: str, depth: int) -> str | None:
    first = schema.get("prefixItems", ())
    for place, each in enumerate(value):
        wanted = first[place] if place < len(first) else schema.get("items", True)
        if wrong := _mismatch(each, wanted, work, f"{at}[{place}]", depth + 1):
            return wrong
    if schema.get("uniqueItems") and len({_key(each) for each in value}) < len(value):
        return f"{at} has an entry twice"
    if "contains" in schema and all(
        _mismatch(each, schema["contains"], work, at, depth + 1) for each in value
    ):
        return f"{at} has no entry that follows 'contains'"
    return _out_of_range(len(value), schema, "minItems", "maxItems", f"the length of {at}")


def _key(value: Any) -> str:
    import json

    return re.sub(r"\b(\d+)\.0\b", r"\1", json.dumps(value, sort_keys=True))


def _same(one: Any, other: Any) -> bool:
    """Returns whether two JSON values are equal: 1 and 1.0 are, 1 and true are not."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    return bool(one == other)
