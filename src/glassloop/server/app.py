"""The application: every endpoint, put together."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.types import ASGIApp

from glassloop.server import (
    chat,
    completions,
    docs,
    embeddings,
    errors,
    looking,
    models,
    pages,
    responses,
    runs,
    tokens,
)
from glassloop.server.gate import Gate
from glassloop.server.service import Service

_ABOUT = "A text-generation engine you can see through. `docs/server.md` in the repository tells more."


def make_app(service: Service) -> ASGIApp:
    app = FastAPI(
        title="Glassloop",
        description=_ABOUT,
        version="1",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # a redirect would name whatever host the client named
    )
    app.state.bodies = service.bodies
    errors.install(app)
    for part in (chat, completions, responses, embeddings, models, tokens, looking, runs):
        app.include_router(part.router(service))
    app.include_router(docs.router(app))
    app.include_router(pages.router(service))
    return Gate(app, service)
