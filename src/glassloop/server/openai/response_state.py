"""What a response goes on from: an earlier response or a conversation, as messages; and what is kept of it.

An earlier response is a run, whose record has its conversation and its answer. A note beside it has what else
its request said. A conversation is a note whose parts are items, and responses, whose items are in their
runs.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from typing import Any

from glassloop.record.run import Run
from glassloop.record.run_name import RESPONSE, run_id
from glassloop.record.store.notes import Note
from glassloop.server.http.errors import APIError, invalid
from glassloop.server.openai.response_body import (
    ConversationName,
    InputItem,
    InputMessage,
    ResponsesBody,
    said_in,
)
from glassloop.server.openai.response_shapes import call_items, message_item, reasoning_item, text_part
from glassloop.server.openai.tool_calls import recorded_parts
from glassloop.server.runs.notes import MOST_PARTS, note_of
from glassloop.server.runs.state import RunState
from glassloop.server.service import Service

CONVERSATION = "conv_"
_PREFIXES = {"message": "msg_", "function_call": "fc_", "function_call_output": "fco_", "reasoning": "rs_"}


def conversation_id(body: ResponsesBody) -> str | None:
    named = body.conversation
    return named.id if isinstance(named, ConversationName) else named


async def past_of(service: Service, body: ResponsesBody) -> list[dict[str, Any]]:
    """Returns the items that come before the input of a request."""
    conversation = conversation_id(body)
    if body.previous_response_id is None:
        if conversation is None:
            return []
        return await items_of(service, conversation, "conversation")
    if conversation is not None:
        message = "previous_response_id and conversation are both given; one of them is expected"
        raise invalid("conversation", message)
    field = "previous_response_id"
    state = await service.runs.find(run_id(body.previous_response_id))
    if state is None:
        message = f"{field} is {body.previous_response_id[:60]!r}; there is no such response"
        raise APIError(404, message, param=field, code="previous_response_not_found")
    check_ended(state, field)
    if state.run.messages is None:
        raise invalid(field, f"{field} names a run whose prompt is no conversation")
    return [*await input_items(service, state.run), *output_items(service, state.run)]


def check_ended(state: RunState, field: str) -> None:
    """Raises where a response is not complete, so that nothing can follow it."""
    if state.request is not None or state.is_elsewhere:
        message = f"{field} names the response {RESPONSE}{state.run.id}, which is still in progress"
        raise APIError(409, message, param=field, code="response_in_progress")


async def keep_response(service: Service, body: ResponsesBody, id: str) -> None:
    """Keeps what a request said beside its input, and the response in its conversation."""
    if said := said_in(body):
        await service.notes.put((note_of(id), said), field="tools")
    conversation = conversation_id(body)
    if conversation is not None:
        texts = isinstance(body.input, str)
        new = [InputMessage(role="user", content=body.input)] if texts else body.input
        entries = [item_entry(item) for item in new]
        response = (f"part_{secrets.token_hex(8)}", {"response": id})
        await service.notes.put(*entries, response, parent=conversation, field="input")


def item_entry(item: InputItem) -> tuple[str, dict[str, Any]]:
    """Returns an item as a part of a conversation: its id, which is a new one, and what is kept."""
    kind = getattr(item, "type", None) or "message"
    id = f"{_PREFIXES[kind]}{secrets.token_hex(12)}"
    plain = {**item.model_dump(exclude_none=True), "type": kind, "id": id, "status": "completed"}
    if isinstance(item, InputMessage) and isinstance(item.content, str):
        plain["content"] = [{"type": _kind_of_text(item.role), "text": item.content}]
    return id, {"item": plain}


# ── conversations ──────────────────────────────────────────────────────────────────────────────────────────


async def conversation_note(service: Service, id: str, field: str) -> Note:
    note = await service.notes.get(id) if id.startswith(CONVERSATION) else None
    if note is None:
        message = f"{field} is {id[:60]!r}; there is no such conversation"
        raise APIError(404, message, param=field, code="no_such_conversation")
    return note


async def items_of(service: Service, id: str, field: str) -> list[dict[str, Any]]:
    """Returns the items of a conversation, the oldest first, with those of its responses."""
    await conversation_note(service, id, field)
    parts = await service.notes.parts(id)
    if len(parts) > MOST_PARTS:
        message = f"{field} has more than {MOST_PARTS} parts; begin another conversation"
        raise invalid(field, message)
    items: list[dict[str, Any]] = []
    for part in parts:
        if "item" in part.data:
            items.append(part.data["item"])
            continue
        state = await service.runs.find(part.data["response"])
        if state is not None:  # else it was removed
            check_ended(state, field)
            items += output_items(service, state.run)
    return items


# ── items of a run ─────────────────────────────────────────────────────────────────────────────────────────


async def input_items(service: Service, run: Run) -> list[dict[str, Any]]:
    """Returns the conversation of a run as items, without the instructions of its own request."""
    note = await service.notes.get(note_of(run.id))
    had_instructions = note is not None and "instructions" in note.data
    messages = run.messages or []
    items: list[dict[str, Any]] = []
    for message in messages[1:] if had_instructions else messages:
        items += _items_of_message(message, run.id, len(items))
    return items


def output_items(service: Service, run: Run) -> list[dict[str, Any]]:
    """Returns the answer of a run as items."""
    text, calls = recorded_parts(service.llm.tokenizer, run)
    thoughts = [reasoning_item(run.id, run.thoughts)] if run.form is not None and run.thoughts else []
    said = [message_item(run.id, "completed", [text_part(text, [])])] if text.strip() or not calls else []
    return [*thoughts, *said, *call_items(calls, "completed")]


def _items_of_message(message: dict[str, Any], run: str, number: int) -> list[dict[str, Any]]:
    """Returns a recorded message as items, which are numbered from `number`."""
    role, content = message["role"], message.get("content")
    texts = [content] if isinstance(content, str) else [part["text"] for part in content or ()]
    if role in ("tool", "function"):
        call_id = message.get("tool_call_id") or "call"
        output = {"type": "function_call_output", "call_id": call_id, "output": "\n".join(texts)}
        return [{**output, "id": f"fco_{run}_{number}", "status": "completed"}]
    items: list[dict[str, Any]] = []
    if message.get("reasoning_content"):
        items.append(reasoning_item(f"{run}_{number}", message["reasoning_content"]))
    if content is not None:
        parts = [{"type": _kind_of_text(role), "text": text} for text in texts]
        said = {"type": "message", "role": role, "status": "completed", "content": parts}
        items.append({**said, "id": f"msg_{run}_{number}"})
    for place, call in enumerate(message.get("tool_calls") or ()):
        function = call.get("function") or {}
        arguments = function.get("arguments", "{}")
        items.append(
            {
                "id": f"fc_{run}_{number}_{place}",
                "type": "function_call",
                "call_id": str(call.get("id") or f"call_{place}"),
                "name": str(function.get("name", "")),
                "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments),
                "status": "completed",
            }
        )
    return items


def _kind_of_text(role: str) -> str:
    return "output_text" if role == "assistant" else "input_text"


def page_of(
    items: Sequence[dict[str, Any]], after: str | None, limit: int, newest_first: bool
) -> dict[str, Any]:
    """Returns a page of items in OpenAI's form; `after` is the id of the item before it."""
    ordered = list(reversed(items)) if newest_first else list(items)
    if after is not None:
        place = next((place for place, item in enumerate(ordered) if item["id"] == after), None)
        if place is None:
            raise invalid("after", f"after is {after[:60]!r}; the id of one of the items is expected")
        ordered = ordered[place + 1 :]
    page = ordered[:limit]
    ends = {"first_id": page[0]["id"] if page else None, "last_id": page[-1]["id"] if page else None}
    return {"object": "list", "data": page, **ends, "has_more": len(ordered) > limit}
