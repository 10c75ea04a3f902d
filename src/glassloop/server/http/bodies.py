"""Request bodies: received and parsed with bounds on their bytes, on what they unpack to, and on how many are
held at once.

FastAPI parses and validates a body on the event loop, item by item and error by error. Here the size of what
the JSON unpacks to is bounded before it is parsed, large bodies are parsed on a thread, and validation ends
at the first error. `BodyRoute` gives endpoints the validated body, which FastAPI describes in /openapi.json.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import numpy as np
from fastapi import Request
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from glassloop.server.http.body_fields import texts_in
from glassloop.server.http.clients import client_of
from glassloop.server.http.errors import (
    UNSUPPORTED,
    APIError,
    describe,
    invalid,
    too_many,
    unknown_parameter,
    unsupported,
)
from glassloop.server.http.streaming import ClientGone
from glassloop.server.operation.workers import Pools
from glassloop.util.shown import printable

LONG_BODY = 32 << 10  # bytes from which a body is parsed and prepared in the pool for long ones
# Lists and objects, and keys, in one body. They are counted in its bytes, so those inside texts count too.
MOST_CONTAINERS = 100_000
MOST_KEYS = 50_000
M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")


class Bodies:
    """The bodies that are being received and parsed, together bounded in bytes."""

    def __init__(self, most_body: int, pools: Pools) -> None:
        self.most_body = most_body
        self._room = 8 * most_body
        self._pools = pools

    async def receive(self, request: Request, use: Callable[[bytes], Awaitable[T]]) -> T:
        """Returns what `use` makes of the whole body, which counts as held until then."""
        held = counted = 0
        parts: list[bytes] = []
        try:
            async for part in request.stream():
                held += len(part)
                # The first bytes do not count: small requests pass, however many large ones are under way.
                self._room -= max(0, held - LONG_BODY) - counted
                counted = max(0, held - LONG_BODY)
                if held > self.most_body:
                    raise too_large(self.most_body)
                if self._room < 0 < counted:
                    message = "too many large bodies are being received; try again later"
                    raise too_many(message, "bodies_full")
                parts.append(part)
            return await use(b"".join(parts))
        except ClientDisconnect:
            raise ClientGone from None
        finally:
            self._room += counted

    async def read(self, request: Request, model: type[M]) -> M:
        """Returns the validated JSON body."""
        if not is_json(request.headers.get("content-type")):
            content_type = request.headers.get("content-type")
            shown_type = printable(content_type) if content_type else "missing"
            message = f"the header content-type is {shown_type}; send content-type: application/json"
            raise APIError(415, message, code="wrong_content_type")

        async def use(data: bytes) -> M:
            request.state.long = len(data) > LONG_BODY
            if request.state.long:
                return await self._pools.long.run_for(client_of(request), parse, data, model)
            return parse(data, model)

        return await self.receive(request, use)


def too_large(most: int) -> APIError:
    return APIError(413, f"the body is larger than {most} bytes", code="body_too_large")


def is_json(content_type: str | None) -> bool:
    kind = (content_type or "").partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


def parse(data: bytes, model: type[M]) -> M:
    """Returns the validated body, or raises an `APIError` for the first thing that is wrong."""
    check_size(data)
    try:
        value = _unpack(data)
    except ValueError as error:
        raise _unreadable(data, str(error)) from None
    if isinstance(value, dict):
        value = check_names(value, model)
    try:
        return model.model_validate(value)
    except ValidationError as error:
        # Lists end at their first error and the keys are bounded, so this is short.
        first = error.errors(include_url=False, include_input=False)[0]
        raise describe(first, list(model.model_fields)) from None


def _unreadable(data: bytes, message: str) -> APIError:
    """Returns the error for a body that the parser refuses with this message."""
    place = _place(message, data)
    if "recursion" in message:
        name = _field_before(data, place)
        message = f"{name or 'the body'} is nested too deeply; fewer levels are expected"
        return APIError(400, message, param=name)
    if "number out of range" in message:
        short = data[:place].rstrip(b"-0123456789") + b"0"  # in place of the number
        name = _field_before(short, len(short))
        message = f"{name or 'the body'} has a number that is too long; at most 4300 digits are expected"
        return APIError(400, message, param=name)
    return APIError(400, f"the body is not JSON: {message[:200]}", code="invalid_json")


def _unpack(data: bytes) -> Any:
    try:
        return from_json(data)
    except ValueError as error:
        if "hex escape" not in str(error):
            raise
    # A text has a lone surrogate, unless the escape is broken altogether. Python's parser takes it, but is
    # recursive: what else is wrong with the body is found first.
    from_json(_without_surrogates(data))
    value = json.loads(data)
    for name, part in value.items() if isinstance(value, dict) else (("the body", value),):
        if any("\ud800" <= character <= "\udfff" for text in texts_in(part) for character in text):
            raise invalid(printable(name), f"{printable(name)} has a lone surrogate, which is not valid text")
    raise ValueError("a key has a lone surrogate")


def _without_surrogates(data: bytes) -> bytes:
    """Returns a body of the same length without the escapes of surrogates."""
    return re.sub(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}", rb"\\ufffd", data)


def check_size(data: bytes) -> None:
    """Bounds the number of lists, objects and keys, each of which takes far more memory than its bytes."""
    for what, marks, most in (("lists and objects", b"[{", MOST_CONTAINERS), ("keys", b":", MOST_KEYS)):
        count = sum(data.count(mark) for mark in marks)
        if count > most:
            places = np.flatnonzero(np.isin(np.frombuffer(data, np.uint8), list(marks)))
            name = _field_before(data, int(places[most]))
            raise APIError(
                400,
                f"{name or 'the body'} is too large: the body has {count} {what}, those in texts included;"
                f" at most {most} are expected",
                param=name,
                code="body_too_large",
            )


def _field_before(data: bytes, place: int) -> str | None:
    """Returns the field of the body that is not complete at a place, None if that is not clear."""
    before = _without_surrogates(data[:place])
    try:
        value = from_json(before, allow_partial=True)
    except ValueError as error:
        deep = _place(str(error), before) if "recursion" in str(error) else 0
        return _field_before(before, deep) if 0 < deep < place else None
    return printable(str(list(value)[-1])) if isinstance(value, dict) and value else None


def _place(message: str, data: bytes) -> int:
    """Returns the place in the data that the parser names in its message."""
    match = re.search(r"line (\d+) column (\d+)", message)
    if match is None:
        return 0
    line, column = int(match[1]), int(match[2])
    before = data.split(b"\n", line - 1)[: line - 1]
    return sum(len(each) + 1 for each in before) + column - 1


def check_names(body: dict[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    """Returns the fields of the model that the body has, and refuses the first name that is none. Others may
    be null: some clients send every parameter that they know."""
    names = {field.alias or name for name, field in model.model_fields.items()}
    for name, value in body.items():
        if name in names or value is None:
            continue
        if name in UNSUPPORTED:
            raise unsupported(name, UNSUPPORTED[name])
        raise unknown_parameter(printable(name), names)
    return {name: value for name, value in body.items() if name in names}


class _ReadRequest(Request):
    """A request whose body has been read and validated."""

    def __init__(self, request: Request, body: BaseModel) -> None:
        super().__init__(request.scope, request.receive)
        self._read = body

    async def body(self) -> bytes:
        return b"read"

    async def json(self) -> Any:
        return self._read


class BodyRoute(APIRoute):
    """A route whose JSON body is read by the server's `Bodies`, kept in the application's state."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()
        if self.body_field is None:
            return handler
        model = self.body_field.field_info.annotation
        assert isinstance(model, type) and issubclass(model, BaseModel)

        async def read_first(request: Request) -> Response:
            bodies: Bodies = request.app.state.bodies
            return await handler(_ReadRequest(request, await bodies.read(request, model)))

        return read_first
