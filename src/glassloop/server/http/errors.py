"""Errors as clients get them: in the shape of their protocol, always with an HTTP status."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.routing import Match

from glassloop.engine.deadline import TimedOut
from glassloop.engine.protocol import Unavailable
from glassloop.engine.thread import Busy
from glassloop.errors import GlassloopError, LengthError
from glassloop.server.http.error_shapes import TOO_LONG, ErrorAnswer, shape_of, shaped
from glassloop.util.shown import printable

# Parameters of OpenAI and of other servers that are not supported, and why, or what to use instead.
UNSUPPORTED = {
    "suffix": "text is only continued, never filled in before a suffix",
    "audio": "only text is generated",
    "prediction": "drafts are made by the server itself, and never change an answer",
    "functions": "it is long deprecated; use tools",
    "function_call": "it is long deprecated; use tool_choice",
    "web_search_options": "the server reaches nothing outside itself",
    "previous_response_id": "only /v1/responses goes on from a response; send the whole conversation",
    "conversation": "only /v1/responses goes on from a conversation; send its messages",
    "prompt_cache_retention": "the cache of prefixes is always on, and has no clock",
    "max_tool_calls": "the server describes tools to the model and never calls them",
    "moderation": "texts are not judged",
    "prompt": "prompts are not kept by the server; send messages or input",
    # Names that other servers have for what is here under another one.
    "n_predict": "use max_tokens",
    "num_predict": "use max_tokens",
    "repeat_penalty": "use repetition_penalty",
    "ebnf": "use grammar, in GBNF or Lark's notation",
}


def errors_of(shape: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """Returns the error responses that every endpoint of a protocol may give, as the OpenAPI document lists
    them. FastAPI builds a validator for each model of each route, which would take most of the server's
    start. One of them brings the schema into the document; the others refer to it."""
    reference = {"$ref": f"#/components/schemas/{shape.__name__}"}
    by_reference = {"content": {"application/json": {"schema": reference}}}
    return {
        status: {"description": what, **({"model": shape} if status == 500 else by_reference)}
        for status, what in _MEANINGS.items()
    }


_MEANINGS = {
    400: "Something in the request is wrong, or not supported",
    401: "An API key is expected",
    403: "Asked by a page of another site, or under another name than localhost",
    404: "There is no such thing",
    405: "Another method is expected",
    408: "The request was not complete in time, or took longer than the server allows",
    409: "It is not in a state for that",
    413: "The body is too large",
    415: "Another content type is expected",
    422: "The body cannot be read",
    431: "The headers are too large",
    429: "Too many requests wait already; the header Retry-After says when to come again",
    500: "Something went wrong in the server",
    501: "This server cannot do that",
    503: "The server is shutting down, or has no engine that could answer",
}
ERRORS = errors_of(ErrorAnswer)


class APIError(Exception):
    """An error response. `param` is the field of the request that is wrong, `code` a word for programs."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = headers

    @property
    def body(self) -> dict[str, Any]:
        """The error in OpenAI's shape."""
        return self.shaped(ErrorAnswer)

    def shaped(self, shape: type[BaseModel]) -> dict[str, Any]:
        """Returns the error in the shape of a protocol."""
        return shaped(shape, self.status, self.message, self.param, self.code)

    def response_for(self, path: str) -> JSONResponse:
        """Returns the error in the shape that a client of this path reads."""
        return JSONResponse(self.shaped(shape_of(path)), self.status, self.headers)


def invalid(param: str, message: str) -> APIError:
    """Returns the error for a field with a wrong value."""
    return APIError(400, message, param=param)


def unsupported(name: str, why: str) -> APIError:
    return APIError(400, f"{name} is not supported: {why}", param=name, code="unsupported_parameter")


def unknown_parameter(name: str, known: Iterable[str], param: str | None = None) -> APIError:
    """Returns the error for a field that does not exist; `param` is its full path if it is a nested one."""
    close = get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]}?" if close else "see /docs for what there is"
    param = param or name
    return APIError(400, f"{param} is not a parameter; {hint}", param=param, code="unknown_parameter")


def too_many(message: str, code: str) -> APIError:
    """Returns the error for a client that should come back a little later."""
    return APIError(429, message, code=code, headers={"Retry-After": "2"})


def shutting_down() -> APIError:
    return APIError(503, "the server is shutting down", code="shutting_down")


def as_api_error(error: BaseException) -> APIError:
    """Returns the error response for an exception. The message of an unexpected one stays in the log."""
    if isinstance(error, APIError):
        return error
    if isinstance(error, Busy):
        return too_many(str(error), "queue_full")
    if isinstance(error, Unavailable):
        return APIError(503, str(error), code="unavailable", headers={"Retry-After": "5"})
    if isinstance(error, TimedOut):
        return APIError(408, str(error), code="timeout")
    if isinstance(error, GlassloopError):
        code = TOO_LONG if isinstance(error, LengthError) else None
        return APIError(400, str(error), param=error.field, code=code)
    if isinstance(error, RecursionError):
        return APIError(400, "the body is nested too deeply; fewer levels are expected")
    return APIError(500, "something went wrong in the server, which its log tells", code="internal_error")


def install(app: FastAPI) -> None:
    """Makes the application answer every exception with an error response."""

    @app.exception_handler(RequestValidationError)
    async def _invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        described = describe(error.errors()[0])  # of a path or a query; bodies are read elsewhere
        return described.response_for(request.url.path)

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> JSONResponse:
        message = {
            404: f"there is no {request.method} {printable(request.url.path)}{_v1(request)}",
            405: f"{printable(request.url.path)} does not take {request.method}",
        }.get(error.status_code, str(error.detail))
        headers = dict(error.headers) if error.headers else None
        return APIError(error.status_code, message, headers=headers).response_for(request.url.path)

    async def _ours(request: Request, error: Exception) -> JSONResponse:
        return as_api_error(error).response_for(request.url.path)

    # For an unexpected `Exception` Starlette sends this response and raises the exception again for the log.
    for kind in (APIError, GlassloopError, RecursionError, Exception):
        app.add_exception_handler(kind, _ours)


def _v1(request: Request) -> str:
    """Returns a hint for a client whose base URL lacks `/v1`."""
    path = f"/v1{request.url.path}"
    scope = {**request.scope, "path": path}
    if not any(route.matches(scope)[0] is Match.FULL for route in request.app.routes):
        return ""
    return f"; it is at {printable(path)}: add /v1 to the base URL"


def describe(error: Mapping[str, Any], known: Sequence[str] = ()) -> APIError:
    """Returns the response for one of pydantic's errors; `known` are the names of the body's fields."""
    kind = error["type"]
    place = [part for part in error["loc"] if part not in ("body", "query", "path")]
    # A union's branches are part of the place, by the names of their types; fields begin in lower case.
    named = [part for part in place if isinstance(part, int) or _is_field(part)]
    if kind == "extra_forbidden" and place:
        name = printable(str(place[-1]))
        if named[-1:] != place[-1:]:
            named.append(name)
        return unknown_parameter(name, known, _path(named))
    param = _path(named) or None
    name, details = param or "the body", error.get("ctx", {})
    code = "invalid_value"
    if kind == "missing":
        message, code = f"{name} is missing", "missing_required_parameter"
    elif kind == "too_short" and details.get("actual_length") == 0:
        message = f"{name} is empty; at least one item is expected"
    elif kind == "too_long":
        message = f"{name} has too many items; at most {details['max_length']} are expected"
    elif kind == "none_required":
        instead = _INSTEAD.get(name, "see /docs for what there is")
        message, code = f"{name} is not a parameter here; {instead}", "unknown_parameter"
    else:
        expected = _expected(kind, details)
        message = f"{name}: {error['msg'][:500]}" if expected is None else f"{name}: {expected} is expected"
    return APIError(400, message, param=param, code=code)


def _expected(kind: str, details: Mapping[str, Any]) -> str | None:
    """Returns what is expected instead of a value with one of pydantic's errors, None if that is not known
    here."""
    if kind == "literal_error":
        return re.sub(r"\b(True|False)\b", lambda match: match[0].lower(), details["expected"])
    for name, words in (
        ("ge", "at least {}"),
        ("le", "at most {}"),
        ("gt", "more than {}"),
        ("lt", "less than {}"),
    ):
        if kind in ("greater_than_equal", "less_than_equal", "greater_than", "less_than") and name in details:
            return words.format(details[name])
    if kind == "string_too_long":
        return f"a text of at most {details['max_length']} characters"
    if kind == "string_too_short":
        return "a text that is not empty"
    return _EXPECTED.get(kind)


def _is_field(part: str) -> bool:
    return re.fullmatch(r"[a-z0-9_\-]+", part) is not None and part not in _TYPES


def _path(place: Sequence[str | int]) -> str:
    """Returns the path of a field, such as `messages[0].content`."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part[:100]}" for part in place)
    return "".join(parts).removeprefix(".")


_INSTEAD = {"max_tokens": "use max_output_tokens", "logprobs": "use include and top_logprobs"}
_TYPES = frozenset(("str", "int", "float", "bool", "list", "dict", "json", "none"))
# What is expected instead, by pydantic's names of errors.
_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}
