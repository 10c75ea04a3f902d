"""How a token is chosen from logits: the options of one request, checked where they enter."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import isfinite
from typing import Any

from glassloop.errors import SamplingError


@dataclass(frozen=True)
class Sampling:
    temperature: float = 1.0  # 0 is greedy
    seed: int | None = None  # None draws one, and the run records it
    max_tokens: int = 256

    def __post_init__(self) -> None:
        if not _is_number(self.temperature) or not 0 <= self.temperature <= 100:
            raise _wrong("temperature", self.temperature, "a number from 0 to 100")
        if self.seed is not None and (type(self.seed) is not int or not 0 <= self.seed < 1 << 64):
            raise _wrong("seed", self.seed, "a whole number from 0 to 2^64 - 1")
        if type(self.max_tokens) is not int or self.max_tokens < 1:
            raise _wrong("max_tokens", self.max_tokens, "a whole number from 1 up")

    @classmethod
    def from_dict(cls, options: dict[str, Any]) -> Sampling:
        """From JSON or keyword arguments. An unknown name is an error, never ignored."""
        known = [field.name for field in fields(cls)]
        for name in options:
            if name not in known:
                raise SamplingError(f"{name} is not a sampling option; the options are {', '.join(known)}")
        return cls(**options)


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and isfinite(value)  # type: ignore[arg-type]


def _wrong(name: str, value: object, expected: str) -> SamplingError:
    return SamplingError(f"{name} is {value!r}; {expected} is expected")
