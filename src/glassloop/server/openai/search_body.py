"""The field `search` of a chat: its shape, and the bounds of each value."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from glassloop.server.sampling_options import Body

_MOST_TEXT = 20_000  # characters of an extractor or a verifier: a schema may be long
# What runs no code of the client, and takes a bounded time.
_SAFE = re.compile(
    r"(number|choice|contains|regex|first|json):.{1,}|json|text|last_line|auto|number|choice", re.DOTALL
)


def _check_name(value: str) -> str:
    if _SAFE.fullmatch(value) is None:
        expected = "number, choice, contains, regex or json, with its argument after a colon, is expected"
        raise PydanticCustomError("unknown_name", "{expected}", {"expected": expected})
    return value


SafeName = Annotated[str, Field(min_length=1, max_length=_MOST_TEXT), AfterValidator(_check_name)]
OptionValue = bool | int | float | Annotated[str, Field(max_length=1000)]


MethodName = Literal[
    "vote",
    "best",
    "likelihood",
    "confidence",
    "beam",
    "tree",
    "budget",
    "power",
    "greedy",
    "majority",
    "best_of",
    "confident",
]


class BudgetBody(Body):
    tokens: int | None = Field(None, ge=1)
    seconds: float | None = Field(None, gt=0)
    branches: int | None = Field(None, ge=1)


class SearchBody(Body):
    """How an answer is searched for; docs/thinking.md describes the methods and their options."""

    method: MethodName = "vote"
    n: int | None = Field(None, ge=1, le=1024)
    samples: int | None = Field(None, ge=1, le=1024)
    extract: SafeName = "auto"
    verify: SafeName | None = None
    judge: SafeName | None = None
    budget: BudgetBody | None = None
    options: dict[Annotated[str, Field(max_length=64)], OptionValue] | None = Field(None, max_length=32)
    paths: bool | None = None  # whether the answer has every path and decision
