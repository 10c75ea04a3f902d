"""`GET /docs`: the API as one page, made from the server's own OpenAPI document and an example for each
route, which can be sent from the page. It loads nothing from other hosts, so it works without a network."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from glassloop.server.operation.api_examples import EXAMPLES, Example
from glassloop.server.studio.static_pages import POLICY

_ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Ccircle cx='8'"
    " cy='8' r='5.5' fill='none' stroke='%232a7de1' stroke-width='3'/%3E%3C/svg%3E"
)
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Glassloop: the API</title>
<link rel="icon" href="{icon}">
<link rel="stylesheet" href="/docs.css">
<script src="/docs.js" defer></script>
</head>
<body>
<main>
<h1>Glassloop: the API</h1>
<p>This server has the model <code>{model}</code>. Open a route for an example, which can be sent from here.
The same as data: <a href="/openapi.json">openapi.json</a>. The page where each token is explained:
<a href="/">the studio</a>.</p>
{body}
</main>
</body>
</html>
"""
_GROUPS = {
    "OpenAI": "OpenAI's protocol",
    "Anthropic": "Anthropic's protocol",
    "Ollama": "Ollama's protocol",
    "tokens": "Tokens",
    "runs": "Runs",
    "edits": "Edits",
    "diffusion": "Diffusion",
    "": "Operation",
}
_FILES = {"/docs.js": "text/javascript", "/docs.css": "text/css"}


def router(app: FastAPI, model: str) -> APIRouter:
    routes = APIRouter(include_in_schema=False)
    headers = {"content-security-policy": POLICY, "cache-control": "no-cache"}

    # The document takes a good part of a second to make, once: not for the event loop's thread.
    @routes.get("/openapi.json")
    async def openapi() -> Response:
        return await asyncio.to_thread(lambda: JSONResponse(app.openapi()))

    @routes.get("/docs")
    async def docs(request: Request) -> Response:
        base = str(request.base_url).rstrip("/")

        def page() -> Response:
            body = "\n".join(_sections(app.openapi(), base, model))
            text = _PAGE.format(icon=_ICON, model=escape(model), body=body)
            return HTMLResponse(text, headers=headers)

        return await asyncio.to_thread(page)

    for path, kind in _FILES.items():
        text = Path(__file__).with_name(path[1:]).read_text("utf-8")
        routes.add_api_route(path, _sender(text, kind, headers), methods=["GET"])
    return routes


def _sender(text: str, kind: str, headers: dict[str, str]) -> Any:
    async def send() -> Response:
        return Response(text, media_type=kind, headers=headers)

    return send


def _sections(document: dict[str, Any], base: str, model: str) -> Iterator[str]:
    """Yields the groups of operations, each with what it does, an example and tables of its fields."""
    schemas = document["components"]["schemas"]
    groups: dict[str, list[str]] = {title: [] for title in _GROUPS.values()}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            tag = next(iter(operation.get("tags", [])), "")
            title = _GROUPS.get(tag, _GROUPS[""])
            groups[title].append(_operation(method.upper(), path, operation, schemas, base, model))
    for title, parts in groups.items():
        if parts:
            yield f"<h2>{escape(title)}</h2>"
            yield from parts


def _operation(
    method: str, path: str, operation: dict[str, Any], schemas: dict[str, Any], base: str, model: str
) -> str:
    name = f"{method} {path}"
    example = EXAMPLES.get(name) or Example(operation.get("description") or operation.get("summary", ""))
    tables = "".join(
        f"<h3>{escape(title)}</h3>{_table(title, rows)}"
        for title, rows in _fields(operation, schemas).items()
        if rows
    )
    return (
        f'<details id="{escape(operation.get("operationId", name))}">'
        f"<summary><code>{escape(name)}</code> <span>{escape(example.about)}</span></summary>"
        f'<div class="inside"><h3>Example</h3><pre>{escape(_curl(method, path, example, base, model))}</pre>'
        f"{_form(method, path, example, model)}{tables}</div></details>"
    )


def _curl(method: str, path: str, example: Example, base: str, model: str) -> str:
    """Returns a command line that sends an example."""
    for name, value in _values(path, example, model).items():
        path = path.replace("{" + name + "}", value or f"${name.upper()}")
    address = base + path + (f"?{example.query}" if example.query else "")
    parts = [f"curl '{address}'" if example.query else f"curl {address}"]
    if example.is_file:
        parts += ["-H 'content-type: application/octet-stream'", "--data-binary @run.glass"]
    elif example.body is not None:
        body = json.dumps(example.body, ensure_ascii=False)
        parts += ["-H 'content-type: application/json'", f"-d '{body}'"]
    elif method != "GET":
        parts.append(f"-X {method}")
    return " \\\n     ".join(parts)


def _values(path: str, example: Example, model: str) -> dict[str, str]:
    """Returns the parameters in a path with their values in the example, which may be empty."""
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    values = {name: example.path.get(name, "") for name in names}
    return {name: model if value == "MODEL" else value for name, value in values.items()}


def _form(method: str, path: str, example: Example, model: str) -> str:
    """Returns the form that sends the example, or what the reader makes of it."""
    fields = ""
    for name, value in _values(path, example, model).items():
        which = "" if value else f' data-id="{"tree" if "/trees/" in path else "id"}"'
        fields += _label(
            name, f'<input type="text" name="path-{name}" value="{escape(value)}" required{which}>'
        )
    if method == "GET":
        fields += _label(
            "query", f'<input type="text" name="query" value="{escape(example.query)}" spellcheck="false">'
        )
    if example.is_file:
        fields += _label("a .glass file", '<input type="file" name="file" accept=".glass" required>')
    if example.body is not None:
        bodies = (("plain", example.body), *example.more)
        if example.more:
            buttons = "".join(
                f'<button type="button" data-body="{escape(_pretty(body))}">{escape(title)}</button>'
                for title, body in bodies
            )
            fields += f'<div class="bodies" role="group" aria-label="examples">{buttons}</div>'
        text = _pretty(example.body)
        rows = min(16, text.count("\n") + 2)
        area = f'<textarea name="body" rows="{rows}" spellcheck="false">{escape(text)}</textarea>'
        fields += _label("body", area)
    return (
        f'<h3>Try it</h3><form data-method="{method}" data-path="{escape(path)}">{fields}'
        '<button type="submit">Send</button>'
        '<output hidden><p aria-live="polite"></p><pre tabindex="0"></pre></output></form>'
    )


def _label(title: str, field: str) -> str:
    return f"<label><span>{escape(title)}</span>{field}</label>"


def _pretty(body: dict[str, Any]) -> str:
    return json.dumps(body, ensure_ascii=False, indent=2)


# ── tables ─────────────────────────────────────────────────────────────────────────────────────────────────


def _table(title: str, rows: list[tuple[str, str, str]]) -> str:
    body = "".join(
        f"<tr><td><code>{escape(name)}</code><td>{escape(kind)}<td>{escape(about)}"
        for name, kind, about in rows
    )
    # It may be wider than the page, and is then scrolled with the keyboard too.
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{title}"><table>{body}</table></div>'


def _fields(operation: dict[str, Any], schemas: dict[str, Any]) -> dict[str, list[tuple[str, str, str]]]:
    """Returns (name, type, description) of each parameter and field of an operation, by where it belongs."""
    fields: dict[str, list[tuple[str, str, str]]] = {"Parameters": [], "Body": [], "Answer": []}
    for each in operation.get("parameters", []):
        kind = f"{_type(each.get('schema', {}))}, {each['in']}"
        fields["Parameters"].append((each["name"], kind, each.get("description", "")))
    answer: dict[str, Any] = next(
        (each for status, each in operation["responses"].items() if status < "300"), {}
    )
    for place, holder in (("Body", operation.get("requestBody", {})), ("Answer", answer)):
        for content in holder.get("content", {}).values():
            schema = content.get("schema", {})
            schema = schemas.get(schema.get("$ref", "").rsplit("/", 1)[-1], schema)
            for name, each in schema.get("properties", {}).items():
                required = " (required)" if place == "Body" and name in schema.get("required", ()) else ""
                fields[place].append((name, _type(each) + required, each.get("description", "")))
    return fields


def _type(schema: dict[str, Any]) -> str:
    """Returns a schema in a word or a few."""
    if "$ref" in schema:
        return str(schema["$ref"].rsplit("/", 1)[-1])
    for name in ("anyOf", "oneOf"):
        if name in schema:
            kinds = (_type(each) for each in schema[name] if each != {"type": "null"})
            return " or ".join(dict.fromkeys(kinds))
    if "enum" in schema or "const" in schema:
        return " or ".join(repr(each) for each in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return str(schema.get("type", "anything"))
