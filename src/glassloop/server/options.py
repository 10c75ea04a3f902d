"""The body of a request as far as all endpoints share it: the options of `Sampling`, read off its
declarations, and what the server itself allows of them.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, create_model

from glassloop.decode.sampling import Sampling
from glassloop.engine.llm import Prompt
from glassloop.errors import SamplingError, TextError
from glassloop.server.fields import many, text_or

_MOST_ITEMS = 65_536  # of any list of options; what Sampling and the server's limits allow is less
_TYPES: dict[str, Any] = {
    "number": float,
    "whole": int,
    "flag": bool,
    "text": str,
    "texts": text_or(many(str, _MOST_ITEMS)),
    "ids": many(int, _MOST_ITEMS),
    "biases": dict[str, float],
    "schema": dict[str, Any] | bool | str,
}
_OWN_TYPES: dict[str, Any] = {"bad_words": text_or(many(text_or(many(int, _MOST_ITEMS)), _MOST_ITEMS))}
# How many of something one request may bring: enough for people, too few to keep the server busy with.
_MOST = {"stop": 64, "bad_words": 1024, "choice": 1024, "logit_bias": 1024, "stop_token_ids": 1024}
_LONGEST_TEXT = 4096  # of a stop string, a bad word or a choice
_LONGEST_GRAMMAR = 100_000


class Body(BaseModel):
    """Unknown fields are errors, and a number is a number. None is as good as absent."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @property
    def given(self) -> dict[str, Any]:
        """What the client has set, by name."""
        return {name: value for name in self.model_fields_set if (value := getattr(self, name)) is not None}


def _fields() -> dict[str, Any]:
    made: dict[str, Any] = {}
    for field in fields(Sampling):
        takes = _OWN_TYPES.get(field.name) or _TYPES[field.metadata["kind"]]
        made[field.name] = (takes | None, Field(None, description=field.metadata["help"]))
    return made


SamplingOptions: type[Body] = create_model("SamplingOptions", __base__=Body, **_fields())
SamplingOptions.__doc__ = "Any fields of Sampling; docs/decoding.md says what they do."
_NAMES = frozenset(field.name for field in fields(Sampling))


def options_of(body: Body) -> dict[str, Any]:
    """Those fields of a body that are options of `Sampling`."""
    return {name: value for name, value in body.given.items() if name in _NAMES}


def make_sampling(options: dict[str, Any], timeout: float) -> Sampling:
    """Checked, and within what the server allows; `timeout` is the longest that a request may take."""
    for name, most in _MOST.items():
        value = options.get(name)
        count = 1 if isinstance(value, str) else len(value or ())
        if count > most:
            raise SamplingError(f"{name} has {count} entries; at most {most} are expected")
        for place, item in enumerate(value if isinstance(value, list) else ()):
            if isinstance(item, str) and len(item) > _LONGEST_TEXT:
                raise SamplingError(
                    f"{name}[{place}] has {len(item)} characters; at most {_LONGEST_TEXT} are expected"
                )
    for name in ("regex", "grammar"):
        value = options.get(name)
        if isinstance(value, str) and len(value) > _LONGEST_GRAMMAR:
            raise SamplingError(
                f"{name} has {len(value)} characters; at most {_LONGEST_GRAMMAR} are expected"
            )
    sampling = Sampling.from_dict(options)
    shorter = timeout if sampling.timeout is None else min(timeout, sampling.timeout)
    return Sampling.from_dict({**options, "timeout": shorter})


def prompts_of(value: str | list[str] | list[int] | list[list[int]], name: str) -> list[Prompt]:
    """One prompt, as text or token ids, or a list of them."""
    if isinstance(value, str) or (value and isinstance(value[0], int)):
        return [value]
    if not value:
        raise TextError(f"{name} is empty; at least one token is expected")
    return list(value)  # type: ignore[arg-type]
