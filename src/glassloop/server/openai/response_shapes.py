"""The shapes of a response, whether it is given now or was given before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from typing_extensions import TypedDict

from glassloop.record.run import Run
from glassloop.record.run_name import MESSAGE
from glassloop.server.http.streaming import api_answer
from glassloop.server.openai.generation import TokenLogprob, finish_reason, thought_tokens
from glassloop.server.openai.tool_calls import ToolCall

REASONING = "rs_"  # before the id of a run: the item of its thoughts
ResponseStatus = Literal["completed", "incomplete", "in_progress", "queued", "failed", "cancelled"]


@api_answer
class ResponseAnswer(TypedDict):
    id: str
    object: Literal["response"]
    created_at: int
    status: ResponseStatus
    error: dict[str, Any] | None
    incomplete_details: dict[str, Any] | None
    instructions: str | None
    max_output_tokens: int | None
    model: str
    output: list[dict[str, Any]]
    parallel_tool_calls: bool
    previous_response_id: str | None
    conversation: dict[str, str] | None
    background: bool
    temperature: float
    top_p: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    truncation: str
    reasoning: dict[str, Any] | None
    metadata: dict[str, str]
    usage: dict[str, Any] | None


_ENDED: dict[str, ResponseStatus] = {"cancelled": "cancelled", "error": "failed"}


def response_status(run: Run | None) -> ResponseStatus:
    """Returns the status of a run that has ended, or of one that has not, which is None."""
    if run is None:
        return "in_progress"
    otherwise: ResponseStatus = "incomplete" if finish_reason(run) == "length" else "completed"
    return _ENDED.get(run.finish_reason or "", otherwise)


def incomplete_details(run: Run | None) -> dict[str, str] | None:
    return {"reason": "max_output_tokens"} if response_status(run) == "incomplete" else None


def message_item(run_id: str, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": f"{MESSAGE}{run_id}",
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": content,
    }


def reasoning_item(run_id: str, thought: str) -> dict[str, Any]:
    return {
        "id": f"{REASONING}{run_id}",
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": thought}],
        "status": "completed",
    }


def text_part(text: str, logprobs: list[TokenLogprob]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def call_items(calls: Sequence[ToolCall], status: str) -> list[dict[str, Any]]:
    """Returns the items of function calls, which are given in the form of chat. The last one of a response
    that is not complete may be a part of a call."""
    items = list(map(_call_item, calls))
    if items and status != "completed":
        items[-1]["status"] = "incomplete"
    return items


def _call_item(call: ToolCall) -> dict[str, Any]:
    """Returns the item of a function call, which is given in the form of chat."""
    return {
        "id": f"fc_{call['id'].removeprefix('call_')}",
        "type": "function_call",
        "call_id": call["id"],
        "status": "completed",
        **call["function"],
    }


def usage_shape(run: Run) -> dict[str, Any]:
    used = run.usage
    # What another engine did not report counts as none: clients expect numbers.
    prompt, cached, answer = used.prompt_tokens or 0, used.cached_tokens or 0, used.completion_tokens or 0
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": prompt - cached},
        "output_tokens": answer,
        "output_tokens_details": {"reasoning_tokens": thought_tokens([run])},
        "total_tokens": prompt + answer,
    }
