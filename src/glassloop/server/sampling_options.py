"""The options of `Sampling` as fields of request bodies, made from its declarations, and the server's limits
on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator

from glassloop.decode.defaults import with_defaults
from glassloop.decode.limits import check_size
from glassloop.decode.sampling import Sampling
from glassloop.engine.request_maker import Prompt
from glassloop.server.http.body_fields import many, text_or
from glassloop.server.http.errors import invalid
from glassloop.server.operation.settings import ServerSettings

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
    "stage_options": dict[str, dict[str, Any]],
}
_ONE_TOKEN = 1e-9  # a top_p that keeps the likeliest token only, which others write as 0
_OWN_TYPES: dict[str, Any] = {"bad_words": text_or(many(text_or(many(int, _MOST_ITEMS)), _MOST_ITEMS))}


class Body(BaseModel):
    """A request body. Unknown fields are errors, values are not converted, and None is as good as absent."""

    RENDERS: ClassVar[bool] = False  # whether a chat template renders it, without `messages` or `input`

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        """Drops nulls of unknown names: clients send every field that they know."""
        if not isinstance(value, dict) or None not in value.values():
            return value
        field_names = {field.alias or name for name, field in cls.model_fields.items()}
        return {name: each for name, each in value.items() if each is not None or name in field_names}

    @property
    def given(self) -> dict[str, Any]:
        """The fields that the client has set, by name."""
        return {name: value for name in self.model_fields_set if (value := getattr(self, name)) is not None}

    @property
    def streams(self) -> bool:
        """Whether the answer is to be streamed."""
        return bool(self.given.get("stream"))

    @property
    def renamed(self) -> dict[str, str]:
        """The options of `Sampling` that have another name here, by their field."""
        return {}


_FIELDS: dict[str, Any] = {
    field.name: (
        (_OWN_TYPES.get(field.name) or _TYPES[field.metadata["kind"]]) | None,
        Field(None, description=field.metadata["help"]),
    )
    for field in fields(Sampling)
    if field.name != "diffusion"  # has a field of its own in the bodies that may ask for it
}
SamplingOptions: type[Body] = create_model("SamplingOptions", __base__=Body, **_FIELDS)
SamplingOptions.__doc__ = "Any fields of Sampling; docs/decoding.md says what they do."


def options_of(body: Body) -> dict[str, Any]:
    """Returns the fields of a body that are options of `Sampling`, with the values that other servers take:
    -1 is no seed, no top_k and no max_tokens; other negative seeds are those of 64 bits with a sign."""
    options = {name: value for name, value in body.given.items() if name in _FIELDS}
    for name in ("seed", "top_k", "max_tokens"):
        if options.get(name) == -1:
            del options[name]
    if -(1 << 63) <= options.get("seed", 0) < 0:
        options["seed"] += 1 << 64
    if options.get("top_p") == 0:
        options["top_p"] = _ONE_TOKEN
    if options.get("stop") in ("", [""]):
        del options["stop"]
    return options


def make_sampling(
    options: dict[str, Any], settings: ServerSettings, samples: str = "n", defaults: Sampling | None = None
) -> Sampling:
    """Returns the options, checked and within the server's limits, with the model's `defaults` for those that
    are not given. `samples` is the field that has the number of samples."""
    check_size(options)
    if "json_schema" in options:
        options = {**options, "json_schema": bounded_spaces(options["json_schema"])}
    sampling = Sampling.from_dict(options) if defaults is None else with_defaults(options, defaults)
    for name, value in ((samples, sampling.n), ("beam_width", sampling.beam_width)):
        if value > settings.most_choices:
            raise invalid(name, f"{name} is {value}; at most {settings.most_choices} is expected")
    shorter = settings.timeout if sampling.timeout is None else min(settings.timeout, sampling.timeout)
    return replace(sampling, timeout=shorter)


def bounded_spaces(schema: Any) -> Any:
    """Returns a JSON schema that bounds the white space between values, unless it says how that is written:
    without a bound, a model may write white space until its limit."""
    if schema is True:
        schema = {}
    if not isinstance(schema, Mapping) or "x-guidance" in schema:
        return schema
    return {**schema, "x-guidance": {"whitespace_pattern": _SPACES}}


def without_spaces(schema: Mapping[str, Any] | bool | None) -> Any:
    """Returns a recorded schema as the client gave it."""
    if isinstance(schema, Mapping) and schema.get("x-guidance") == {"whitespace_pattern": _SPACES}:
        return {name: value for name, value in schema.items() if name != "x-guidance"}
    return schema


_SPACES = r"[ \t]{0,2}(\r?\n[ \t]{0,40})?"


def prompts_of(value: str | list[str] | list[int] | list[list[int]], name: str) -> list[Prompt]:
    """Returns the prompts of a field that is one prompt, as text or token ids, or a list of them."""
    if isinstance(value, str) or (value and isinstance(value[0], int)):
        return [value]
    if not value:
        raise invalid(name, f"{name} is an empty list; a text, token ids, or a list of them is expected")
    return list(value)  # type: ignore[arg-type]
