"""Typed look-ups in a mapping that comes from a file (`config.json`, GGUF metadata). A value of the wrong
type or size is an error that names the file and the field.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from glassloop.errors import GlassloopError, ModelError
from glassloop.util.shown import shown

_LEAST, _MOST = 1e-30, 1e30  # what float32 can hold, and its reciprocal


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
        value = self.get(key, default)
        if type(value) is not int or not 0 < value <= most:
            raise self._wrong(key, value, f"a whole number from 1 to {most}")
        return value

    def whole_or_none(self, key: str) -> int | None:
        return None if self.get(key) is None else self.whole(key)

    def number(self, key: str, default: float | None = None) -> float:
        value = self.get(key, default)
        if type(value) not in (int, float) or not _LEAST <= value <= _MOST:  # NaN is neither
            raise self._wrong(key, value, "a positive number")
        return float(value)

    def number_or_none(self, key: str) -> float | None:
        return None if self.get(key) is None else self.number(key)

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def inner(self, key: str) -> Fields | None:
        """Returns the fields of a nested object, or None if it is absent."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._wrong(key, value, "an object")
        return Fields(f"{self.where}: {key}", value)

    def _wrong(self, key: str, value: Any, expected: str) -> GlassloopError:
        if value is None:
            return self.error(key, f"is missing; {expected} is expected")
        return self.error(key, f"is {shown(value)}; {expected} is expected")
