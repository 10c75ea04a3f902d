"""`POST /v1/chat/completions`: the next turn of a conversation, sampled or searched for."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from glassloop.server.http.bodies import BodyRoute
from glassloop.server.http.errors import ERRORS, invalid
from glassloop.server.http.streaming import STREAMED
from glassloop.server.openai.chat_choices import ChatAnswer, ChatBody, ChatChoices
from glassloop.server.openai.chat_search import SearchChat
from glassloop.server.openai.generation import respond
from glassloop.server.service import Service


def router(service: Service) -> APIRouter:
    routes = APIRouter(route_class=BodyRoute, tags=["OpenAI"], responses=ERRORS)

    @routes.post(
        "/v1/chat/completions", response_model=ChatAnswer, operation_id="chat_completions", responses=STREAMED
    )
    async def chat(request: Request, body: ChatBody) -> Response:
        if body.search is None:
            return await respond(service, request, body, ChatChoices)
        if body.diffusion is not None:
            raise invalid(
                "diffusion", "diffusion is given with search, whose paths are written from left to right"
            )
        return await respond(service, request, body, SearchChat)

    return routes
