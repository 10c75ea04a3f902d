"""`GET /docs`: the API as one plain page, made from the server's own OpenAPI document. It loads nothing from
other hosts, so it works without a network."""

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
    """Yields a section for each operation, with a table of its parameters and the fields of its body and its
    answer."""
    schemas = document["components"]["schemas"]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            rows = "".join(
                f"<tr><td><code>{escape(name)}</code></td>"
                + "".join(f"<td>{escape(each)}</td>" for each in rest)
                for name, *rest in _rows(operation, schemas)
            )
            yield (
                f"<details><summary><code>{method.upper()} {escape(path)}</code></summary>"
                f"<p>{escape(operation.get('description', ''))}</p><table>{rows}</table></details>"
            )


def _rows(operation: dict[str, Any], schemas: dict[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """Yields (name, where it belongs, type, description) of each parameter and field of an operation."""
    for each in operation.get("parameters", []):
        yield each["name"], each["in"], _type(each.get("schema", {})), each.get("description", "")
    answer: dict[str, Any] = next(
        (each for status, each in operation["responses"].items() if status < "300"), {}
    )
    for place, holder in (("body", operation.get("requestBody", {})), ("answer", answer)):
        for content in holder.get("content", {}).values():
            schema = content.get("schema", {})
            schema = schemas.get(schema.get("$ref", "").rsplit("/", 1)[-1], schema)
            for name, field in schema.get("properties", {}).items():
                required = " (required)" if place == "body" and name in schema.get("required", ()) else ""
                yield name, place, _type(field) + required, field.get("description", "")


def _type(schema: dict[str, Any]) -> str:
    """Returns a schema in a word or a few."""
    if "$ref" in schema:
        return str(schema["$ref"].rsplit("/", 1)[-1])
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(each) for each in schema["anyOf"] if each != {"type": "null"}))
    if "enum" in schema or "const" in schema:
        return " or ".join(repr(each) for each in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return str(schema.get("type", "anything"))
