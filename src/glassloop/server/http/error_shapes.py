"""The shapes of errors: each protocol has its own. The path of a request tells which one its client reads."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import BaseModel

_ANTHROPIC = "/v1/messages"
_OLLAMA = re.compile(
    r"/api/(chat|generate|embed|embeddings|show|tags|ps|version|pull|push|create|copy|delete|blobs/.*)"
)
_KINDS = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
_ANTHROPIC_KINDS = {
    **_KINDS,
    403: "permission_error",
    408: "timeout_error",
    413: "request_too_large",
    503: "overloaded_error",
}
TOO_LONG = "context_length_exceeded"  # the code of an error about a prompt that does not fit


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(BaseModel):
    error: ErrorDetail


class MessagesErrorDetail(BaseModel):
    type: str
    message: str


class MessagesErrorAnswer(BaseModel):
    type: Literal["error"]
    error: MessagesErrorDetail
    request_id: str | None


class OllamaErrorAnswer(BaseModel):
    error: str


def shape_of(path: str) -> type[BaseModel]:
    """Returns the model of the errors that a request with this path is answered with."""
    if path == _ANTHROPIC or path.startswith(f"{_ANTHROPIC}/"):
        return MessagesErrorAnswer
    return OllamaErrorAnswer if _OLLAMA.fullmatch(path) else ErrorAnswer


def shaped(
    shape: type[BaseModel], status: int, message: str, param: str | None, code: str | None
) -> dict[str, Any]:
    """Returns the body of an error in the shape of a protocol."""
    server = "invalid_request_error" if status < 500 else "server_error"
    if shape is MessagesErrorAnswer:
        kind = _ANTHROPIC_KINDS.get(status, "invalid_request_error" if status < 500 else "api_error")
        # Clients that shorten a conversation by themselves look for these words.
        text = f"prompt is too long: {message}" if code == TOO_LONG else message
        return {"type": "error", "error": {"type": kind, "message": text}, "request_id": None}
    if shape is OllamaErrorAnswer:
        return {"error": message}
    kind = _KINDS.get(status, server)
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
