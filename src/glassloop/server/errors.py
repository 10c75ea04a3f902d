"""What clients are told when something cannot be done: OpenAI's error shape, always with a status."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from glassloop.decode.sampling import Sampling
from glassloop.engine.deadline import TimedOut
from glassloop.engine.thread import Busy
from glassloop.errors import GlassloopError
from glassloop.shown import printable

_FIELDS = frozenset(field.name for field in fields(Sampling)) | {
    *("at", "dimensions", "input", "messages", "prompt", "stop", "token", "tools"),
}
_TOO_LONG = re.compile(r"\w+ has \d+ (tokens|characters)\b")
_KINDS = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}

# Parameters of OpenAI's that have no meaning here, and why.
UNSUPPORTED = {
    "suffix": "text is only continued, never filled in before a suffix",
    "audio": "only text is generated",
    "prediction": "drafts are made by the server itself, and never change an answer",
    "functions": "it is long deprecated; use tools",
    "function_call": "it is long deprecated; use tool_choice",
    "reasoning_effort": "no model here has such a setting",
    "reasoning": "no model here has such a setting",
    "web_search_options": "the server reaches nothing outside itself",
    "previous_response_id": "responses are not chained by the server; send the whole conversation as input",
    "conversation": "conversations are not kept by the server; send the whole conversation as input",
    "prompt_cache_retention": "the cache of prefixes is always on, and has no clock",
    "max_tool_calls": "tools are text, and called by nobody here",
}


class APIError(Exception):
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
        kind = _KINDS.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {
            "error": {"message": self.message, "type": kind, "param": self.param, "code": self.code},
        }

    @property
    def response(self) -> JSONResponse:
        return JSONResponse(self.body, self.status, self.headers)


def refused(name: str, why: str) -> APIError:
    return APIError(400, f"{name} is not supported: {why}", param=name, code="unsupported_parameter")


def as_api_error(error: BaseException) -> APIError:
    """What to say of an exception. Those of our own making are for people; others stay in the log."""
    if isinstance(error, APIError):
        return error
    if isinstance(error, Busy):
        return APIError(429, str(error), code="queue_full", headers={"Retry-After": "2"})
    if isinstance(error, TimedOut):
        return APIError(408, str(error), code="timeout")
    if isinstance(error, GlassloopError):
        code = "context_length_exceeded" if _TOO_LONG.match(str(error)) else None
        return APIError(400, str(error), param=_field_of(str(error)), code=code)
    if isinstance(error, RecursionError):
        return APIError(400, "the body is nested too deeply; fewer levels are expected")
    return APIError(500, "something went wrong in the server, which its log tells", code="internal_error")


def _field_of(message: str) -> str | None:
    """Our messages begin with the name of what was wrong."""
    found = re.match(r"(?:a key of )?(\w+)((?:\[\w+\]|\.\w+)*) ", message)
    return found[1] + found[2] if found and found[1] in _FIELDS else None


def install(app: FastAPI) -> None:
    @app.exception_handler(RequestValidationError)
    async def _invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        return describe(error.errors()[0]).response  # of a path or a query; bodies are read elsewhere

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> JSONResponse:
        message = {
            404: f"there is no {request.method} {printable(request.url.path)}",
            405: f"{printable(request.url.path)} does not take {request.method}",
        }.get(error.status_code, str(error.detail))
        headers = dict(error.headers) if error.headers else None
        return APIError(error.status_code, message, headers=headers).response

    async def _ours(request: Request, error: Exception) -> JSONResponse:
        return as_api_error(error).response

    # `Exception` is what nobody foresaw: Starlette answers with this, and raises it again for the log.
    for kind in (APIError, GlassloopError, RecursionError, Exception):
        app.add_exception_handler(kind, _ours)


def describe(error: Mapping[str, Any], known: Sequence[str] = ()) -> APIError:
    """Returns one of pydantic's errors in our words; `known` are the names of the body's fields."""
    kind = error["type"]
    place = [str(part) for part in error["loc"] if part not in ("body", "query", "path")]
    # A union's branches are part of the place, by the names of their types; fields begin in lower case.
    shown = [part[:100] for part in place if re.fullmatch(r"[a-z0-9_\-]+", part) and part not in _TYPES]
    param = ".".join(shown) or None
    if kind == "extra_forbidden" and place:
        name = printable(place[-1])
        close = get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]}?" if close else "see /docs for what there is"
        param = ".".join([*shown, name]) if shown[-1:] != [place[-1]] else param
        return APIError(400, f"{param} is not a parameter; {hint}", param=param, code="unknown_parameter")
    if kind == "missing":
        message, code = f"{param or 'the body'} is missing", "missing_required_parameter"
    else:
        message, code = f"{param or 'the body'}: {error['msg'][:500]}", "invalid_value"
    return APIError(400, message, param=param, code=code)


_TYPES = frozenset(("str", "int", "float", "bool", "list", "dict", "json", "none"))
