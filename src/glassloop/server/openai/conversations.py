"""`/v1/conversations`: items that clients keep with the server, to which responses add theirs."""

from __future__ import annotations

import secrets
import time
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path
from pydantic import Field
from starlette.responses import Response
from typing_extensions import TypedDict

from glassloop.record.run_name import run_id
from glassloop.record.store.notes import Note
from glassloop.server.http.bodies import BodyRoute
from glassloop.server.http.body_fields import many
from glassloop.server.http.errors import ERRORS, APIError, invalid
from glassloop.server.http.streaming import JSON, api_answer
from glassloop.server.openai.kept_responses import After, ItemList, Limit
from glassloop.server.openai.response_body import Item
from glassloop.server.openai.response_state import (
    CONVERSATION,
    conversation_note,
    item_entry,
    items_of,
    page_of,
)
from glassloop.server.runs.notes import MOST_PARTS
from glassloop.server.sampling_options import Body
from glassloop.server.service import Service

_MOST_ITEMS = 20  # that one request adds
_PATH = "/v1/conversations"
ConversationId = Annotated[str, Path(max_length=64)]
ItemId = Annotated[str, Path(max_length=100)]
Metadata = Annotated[dict[str, str], Field(max_length=16)]


class ConversationBody(Body):
    items: many(Item, _MOST_ITEMS) | None = None  # type: ignore[valid-type]
    metadata: Metadata | None = None


class ConversationChange(Body):
    metadata: Metadata


class NewItems(Body):
    items: many(Item, _MOST_ITEMS, least=1)  # type: ignore[valid-type]


@api_answer
class ConversationAnswer(TypedDict):
    id: str
    object: Literal["conversation"]
    created_at: int
    metadata: dict[str, str]


@api_answer
class DeletedConversation(TypedDict):
    id: str
    object: Literal["conversation.deleted"]
    deleted: bool


def router(service: Service) -> APIRouter:
    routes = APIRouter(route_class=BodyRoute, prefix=_PATH, tags=["OpenAI"], responses=ERRORS)
    notes = service.notes

    @routes.post("", response_model=ConversationAnswer, operation_id="create_conversation")
    async def create(body: ConversationBody) -> Response:
        """A new conversation, with these items."""
        id = f"{CONVERSATION}{secrets.token_hex(16)}"
        data = {"metadata": body.metadata or {}, "created_at": int(time.time())}
        await notes.put((id, data), field="metadata")
        if body.items:
            await notes.put(*map(item_entry, body.items), parent=id, field="items")
        return JSON(_answer(id, data))

    @routes.get("/{id}", response_model=ConversationAnswer, operation_id="retrieve_conversation")
    async def retrieve(id: ConversationId) -> Response:
        return JSON(_answer(id, (await conversation_note(service, id, "id")).data))

    @routes.post("/{id}", response_model=ConversationAnswer, operation_id="update_conversation")
    async def update(id: ConversationId, body: ConversationChange) -> Response:
        """Replaces the metadata."""
        note = await conversation_note(service, id, "id")
        data = {**note.data, "metadata": body.metadata}
        await notes.put((id, data), field="metadata")
        return JSON(_answer(id, data))

    @routes.delete("/{id}", response_model=DeletedConversation, operation_id="delete_conversation")
    async def delete(id: ConversationId) -> Response:
        """Removes a conversation with its items. The runs of its responses stay."""
        await conversation_note(service, id, "id")
        await notes.remove(id)
        return JSON(DeletedConversation(id=id, object="conversation.deleted", deleted=True))

    @routes.post("/{id}/items", response_model=ItemList, operation_id="create_items")
    async def add_items(id: ConversationId, body: NewItems) -> Response:
        """Adds items at the end of a conversation."""
        await conversation_note(service, id, "id")
        if len(await notes.parts(id)) + len(body.items) > MOST_PARTS:
            raise invalid("items", f"items would be more than the {MOST_PARTS} that a conversation may have")
        entries = list(map(item_entry, body.items))
        await notes.put(*entries, parent=id, field="items")
        return JSON(page_of([data["item"] for _, data in entries], None, _MOST_ITEMS, newest_first=False))

    @routes.get("/{id}/items", response_model=ItemList, operation_id="list_items")
    async def list_items(
        id: ConversationId, limit: Limit = 20, order: Literal["asc", "desc"] = "desc", after: After = None
    ) -> Response:
        """The items of a conversation, with those of its responses."""
        return JSON(page_of(await items_of(service, id, "id"), after, limit, order == "desc"))

    @routes.get("/{id}/items/{item}", response_model=dict[str, Any], operation_id="retrieve_item")
    async def retrieve_item(id: ConversationId, item: ItemId) -> Response:
        found = next((each for each in await items_of(service, id, "id") if each["id"] == item), None)
        if found is None:
            raise _no_item(item)
        return JSON(found)

    @routes.delete("/{id}/items/{item}", response_model=ConversationAnswer, operation_id="delete_item")
    async def delete_item(id: ConversationId, item: ItemId) -> Response:
        """Removes an item. An item of a response goes with all others of it; its run stays."""
        note = await conversation_note(service, id, "id")
        part = next((each for each in await notes.parts(id) if _has(each, item)), None)
        if part is None:
            raise _no_item(item)
        await notes.remove(part.id)
        return JSON(_answer(id, note.data))

    return routes


def _has(part: Note, item: str) -> bool:
    """Returns whether a part of a conversation is an item, or a response with it."""
    response = part.data.get("response")
    return part.id == item or (response is not None and response in (item[3:19], run_id(item)))


def _answer(id: str, data: dict[str, Any]) -> ConversationAnswer:
    return ConversationAnswer(
        id=id, object="conversation", created_at=data["created_at"], metadata=data["metadata"]
    )


def _no_item(id: str) -> APIError:
    return APIError(404, f"there is no item {id[:60]!r} in this conversation", code="no_such_item")
