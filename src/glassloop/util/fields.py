"""JSON objects from files, and typed look-ups in them or in another mapping of a file (GGUF metadata). A
value of the wrong type or size is an error that names the file and the field.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from glassloop.errors import GlassloopError, ModelError
from glassloop.util.check import FLAG, OBJECT, ValueRule, number_between, or_none, whole_between
from glassloop.util.shown import printable, shown

# float32 holds it and its reciprocal
_POSITIVE = ValueRule("a positive number", number_between(1e-30, 1e30).fits)


def json_object(
    data: bytes | str, where: str, kind: type[GlassloopError], once: bool = False
) -> dict[str, Any]:
    """Returns the JSON object that a file or a line consists of. `where` names it in errors, which are of
    this kind; with `once` a key that appears twice is an error."""
    try:
        value = json.loads(data, object_pairs_hook=_unique if once else None)
    except (ValueError, RecursionError) as error:
        raise kind(f"{where}: is not JSON: {printable(str(error))}") from None
    if not isinstance(value, dict):
        raise kind(f"{where}: is {shown(value)}; an object is expected")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a key appears twice")
    return members


class Fields:
    """Look-ups of keys that begin with `prefix`. `kind` is the class of the errors."""

    def __init__(
        self,
        where: str,
        values: Mapping[str, Any],
        prefix: str = "",
        kind: type[GlassloopError] = ModelError,
    ) -> None:
        self.where = where
        self.values = values
        self.prefix = prefix
        self.kind = kind

    def error(self, key: str, what: str) -> GlassloopError:
        return self.kind(f"{self.where}: {self.prefix}{key} {what}")

    def get(self, key: str, default: Any = None) -> Any:
        """Returns the raw value; null counts as absent."""
        value = self.values.get(self.prefix + key)
        return default if value is None else value

    def whole(self, key: str, default: int | None = None, most: int = 1 << 32) -> int:
        value: int = self._checked(key, default, whole_between(1, most))
        return value

    def whole_or_none(self, key: str) -> int | None:
        return None if self.get(key) is None else self.whole(key)

    def number(self, key: str, default: float | None = None) -> float:
        return float(self._checked(key, default, _POSITIVE))

    def number_or_none(self, key: str) -> float | None:
        return None if self.get(key) is None else self.number(key)

    def flag(self, key: str, default: bool) -> bool:
        value: bool = self._checked(key, default, FLAG)
        return value

    def inner(self, key: str) -> Fields | None:
        """Returns the fields of a nested object, or None if it is absent."""
        value = self._checked(key, None, or_none(OBJECT))
        return None if value is None else Fields(f"{self.where}: {key}", value)

    def _checked(self, key: str, default: Any, rule: ValueRule) -> Any:
        value = self.get(key, default)
        if not rule.fits(value):
            problem = "is missing" if value is None else f"is {shown(value)}"
            raise self.error(key, f"{problem}; {rule.expected} is expected")
        return value
