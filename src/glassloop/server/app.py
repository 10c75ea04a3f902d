"""The ASGI application: the routers of all endpoints behind the access checks."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.types import ASGIApp

from glassloop.server.anthropic import messages
from glassloop.server.http import errors
from glassloop.server.http.access import AccessControl
from glassloop.server.ollama import catalog, generating
from glassloop.server.openai import (
    chat,
    completions,
    conversations,
    embeddings,
    kept_responses,
    models,
    responses,
    tokens,
)
from glassloop.server.operation import api_docs, health
from glassloop.server.service import Service
from glassloop.server.studio import (
    diffusions,
    edits,
    import_export,
    inspection,
    run_events,
    runs,
    searches,
    static_pages,
    training,
)

_ABOUT = "A text-generation engine you can see through. `docs/server.md` in the repository tells more."
_PARTS = (
    *(chat, completions, responses, kept_responses, conversations, messages, embeddings, models, tokens),
    *(generating, catalog),
    *(inspection, import_export, runs, run_events, searches, edits, diffusions),
    *(health, training, static_pages),
)


def make_app(service: Service) -> ASGIApp:
    app = FastAPI(
        title="Glassloop",
        description=_ABOUT,
        version="1",
        docs_url=None,
        openapi_url=None,  # `api_docs` has it
        redoc_url=None,
        redirect_slashes=False,  # a redirect would name whatever host the client named
    )
    app.state.bodies = service.bodies
    errors.install(app)
    for part in _PARTS:
        app.include_router(part.router(service))
    app.include_router(api_docs.router(app, service.name))
    return AccessControl(app, service, app.routes)
