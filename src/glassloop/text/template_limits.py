"""The limits of a chat template, apart from the renderer, which is imported when something is rendered."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    source: int = 100_000  # characters of the template; the largest in use have some 20,000
    text: int = 8_000_000  # characters of the result
    seconds: float = 5.0  # to compile it, and for each rendering
    memory: int = 256 << 20  # bytes of address space, Python's own 25 MB included
