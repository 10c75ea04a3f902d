"""`GET /docs`: the API as one plain page, made from the server's own OpenAPI document. It loads nothing from
anywhere, so it is there on a machine without a network too."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

from fastapi import APIRouter, FastAPI
from starlette.responses import HTMLResponse, Response

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Glassloop: the API</title>
<style>
:root {{ color-scheme: light dark }}
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }}
code {{ background: #8882; padding: .1em .3em; border-radius: .2em }}
table {{ border-collapse: collapse; width: 100% }}
td {{ border-top: 1px solid #8884; padding: .3em .6em; vertical-align: top }}
summary {{ cursor: pointer; padding: .3em 0 }}
</style>
<h1>Glassloop: the API</h1>
<p>The same as data: <a href="/openapi.json">openapi.json</a>.</p>
{body}
</html>
"""


def router(app: FastAPI) -> APIRouter:
    routes = APIRouter(include_in_schema=False)

    @routes.get("/docs")
    async def docs() -> Response:
        return HTMLResponse(_PAGE.format(body="\n".join(_sections(app.openapi()))))

    return routes


def _sections(document: dict[str, Any]) -> Iterator[str]:
    schemas = document["components"]["schemas"]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            about = escape(operation.get("description", ""))
            yield f"<details><summary><code>{method.upper()} {escape(path)}</code></summary><p>{about}</p>"
            for each in operation.get("parameters", []):
                schema = each.get("schema", {})
                yield _table([(each["name"], f"{each['in']}: {_kind(schema)}", each.get("description", ""))])
            for content in operation.get("requestBody", {}).get("content", {}).values():
                yield "<p>Body:</p>" + _fields(content.get("schema", {}), schemas)
            good = [answer for status, answer in operation["responses"].items() if status < "300"]
            for kind, content in (good[0].get("content", {}) if good else {}).items():
                yield f"<p>Answer (<code>{escape(kind)}</code>):</p>" + _fields(
                    content.get("schema", {}), schemas
                )
            yield "</details>"


def _fields(schema: dict[str, Any], schemas: dict[str, Any]) -> str:
    name = schema.get("$ref", "").rsplit("/", 1)[-1]
    found = schemas.get(name, schema)
    required = found.get("required", ())
    rows = [
        (field, _kind(each) + (" (required)" if field in required else ""), each.get("description", ""))
        for field, each in found.get("properties", {}).items()
    ]
    return _table(rows)


def _table(rows: list[tuple[str, str, str]]) -> str:
    lines = [
        f"<tr><td><code>{escape(name)}</code></td><td>{escape(kind)}</td><td>{escape(about)}</td></tr>"
        for name, kind, about in rows
    ]
    return f"<table>{''.join(lines)}</table>" if lines else ""


def _kind(schema: dict[str, Any]) -> str:
    """A schema in a word or a few."""
    if "$ref" in schema:
        return str(schema["$ref"].rsplit("/", 1)[-1])
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_kind(each) for each in schema["anyOf"] if each != {"type": "null"}))
    if "enum" in schema or "const" in schema:
        return " or ".join(repr(each) for each in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    return str(schema.get("type", "anything"))
