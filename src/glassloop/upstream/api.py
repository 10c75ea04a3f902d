"""`Api`: one model of another engine, behind an OpenAI-compatible API, and how it is found below a URL."""

from __future__ import annotations

from typing import NamedTuple

from glassloop.engine.protocol import UNKNOWN_CONTEXT
from glassloop.errors import GlassloopError
from glassloop.upstream.client import Client, Refused
from glassloop.upstream.servers import ServerKind, kind_of
from glassloop.util.shown import printable


class Api(NamedTuple):
    client: Client
    kind: ServerKind  # of the server
    model: str  # its name there
    context: int | None  # in tokens, if the server says it


async def connect(url: str, model: str | None, key: str | None) -> Api:
    """Finds the API below a URL, the kind of the server, and the model: the only one if none is named."""
    bases = [url, f"{url}/v1"] if url.count("/") > 2 else [f"{url}/v1", url]
    for place, base in enumerate(bases):
        client = Client(base, key)
        try:
            listed = await client.get("/models")
            break
        except BaseException as error:
            await client.close()
            missing = isinstance(error, Refused) and error.status in (404, 405)
            if not missing or place + 1 == len(bases):
                raise
    entries = listed.get("data") if isinstance(listed, dict) else None
    models = [each for each in entries or [] if isinstance(each, dict) and isinstance(each.get("id"), str)]
    names = [each["id"] for each in models]
    if model is None and len(names) == 1:
        model = names[0]
    if model is None:
        await client.close()
        some = printable(", ".join(names[:10]) + (", …" if len(names) > 10 else ""), 500)
        raise GlassloopError.about("model", f"is not given; the upstream has {some or 'no list of models'}")
    entry = next((each for each in models if each["id"] == model), models[0] if models else {})
    context = entry.get("max_model_len", entry.get("context_length"))
    is_known = type(context) is int and 0 < context < UNKNOWN_CONTEXT
    return Api(client, kind_of(entry.get("owned_by")), model, context if is_known else None)
