"""Every route of the server as its own OpenAPI document describes it: methods, paths, parameters, and each
field that a body may have, at any depth.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from random import Random
from typing import Any

_DEPTH = 4
_METHODS = ("get", "post", "put", "delete", "patch")
_LETTER = {"allowed_token_ids": [97]}  # other draws of a model with random weights would cut a character
# A body that is accepted, for each route that takes one: the mutations start from here.
GOOD: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "Hi", "max_tokens": 2},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 2},
    "/v1/conversations": {"items": [{"role": "user", "content": "Hi"}], "metadata": {"a": "b"}},
    "/v1/conversations/{id}": {"metadata": {"a": "b"}},
    "/v1/conversations/{id}/items": {"items": [{"role": "user", "content": "Hi"}]},
    "/v1/messages": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "Hi"}]},
    "/v1/embeddings": {"input": "Hi"},
    "/api/chat": {"messages": [{"role": "user", "content": "Hi"}], "options": {"num_predict": 2}},
    "/api/generate": {"prompt": "Hi", "options": {"num_predict": 2}},
    "/api/embed": {"input": "Hi"},
    "/api/embeddings": {"prompt": "Hi"},
    "/api/show": {},
    "/tokenize": {"prompt": "Hi"},
    "/detokenize": {"tokens": [72]},
    "/api/runs": {"prompt": "Hi", "sampling": {"max_tokens": 2}},
    "/api/runs/{id}/fork": {"at": 0, "sampling": {"max_tokens": 2}},
    "/api/runs/{id}/edit": {"at": 0, "text": "x", "sampling": {"max_tokens": 2}},
    "/api/runs/{id}/step": {"tokens": 1},
    "/api/diffusions": {"prompt": "Hi", "sampling": {"max_tokens": 2}, "diffusion": {"block": 2}},
    "/api/edits/infill": {"before": "a", "after": "b", "tokens": 1, "candidates": 1, "sampling": _LETTER},
    "/api/edits/rewrite": {"text": "abc", "spans": [[1, 2]], "candidates": 1, "sampling": _LETTER},
    "/api/edits/repair": {"text": "abc", "budget": 20, "candidates": 1},
    "/api/edits/sharpen": {"prompt": "Hi", "steps": 1, "sampling": {"max_tokens": 2}},
}


@dataclass(frozen=True)
class Field:
    """One field of a body: where it is, and what the document says of it."""

    path: tuple[str | int, ...]
    schema: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.path[0])

    @property
    def types(self) -> set[str]:
        return {each["type"] for each in (self.schema, *self.schema.get("anyOf", ())) if "type" in each}


@dataclass(frozen=True)
class Route:
    method: str
    path: str
    parameters: tuple[dict[str, Any], ...]
    body: dict[str, Any] | None  # the schema of a JSON body
    binary: bool = False

    def good(self) -> dict[str, Any] | None:
        return deepcopy(GOOD.get(self.path)) if self.method == "POST" and self.body is not None else None


class Document:
    def __init__(self, openapi: dict[str, Any]) -> None:
        self._schemas = openapi.get("components", {}).get("schemas", {})
        self.routes = tuple(self._routes(openapi))
        assert len(self.routes) > 20

    def _routes(self, openapi: dict[str, Any]) -> Iterator[Route]:
        for path, operations in openapi["paths"].items():
            for method, operation in operations.items():
                if method not in _METHODS:
                    continue
                content = operation.get("requestBody", {}).get("content", {})
                body = content.get("application/json", {}).get("schema")
                binary = "application/octet-stream" in content
                yield Route(method.upper(), path, tuple(operation.get("parameters", ())), body, binary)

    @property
    def with_body(self) -> list[Route]:
        return [route for route in self.routes if route.body is not None and route.path in GOOD]

    def resolved(self, schema: dict[str, Any]) -> dict[str, Any]:
        while "$ref" in schema:
            schema = self._schemas[schema["$ref"].rpartition("/")[2]]
        return schema

    def fields(self, route: Route) -> list[Field]:
        """Every field of its body: those of objects in it, and of the first item of lists."""
        return [] if route.body is None else list(self._fields(route.body, (), _DEPTH))

    def _fields(self, schema: dict[str, Any], path: tuple[str | int, ...], depth: int) -> Iterator[Field]:
        schema = self.resolved(schema)
        for branch in schema.get("anyOf", ()):
            yield from self._fields(branch, path, depth)
        if not depth:
            return
        if "items" in schema:
            item = (*path, 0)
            yield Field(item, self.resolved(schema["items"]))
            yield from self._fields(schema["items"], item, depth - 1)
        for name, each in schema.get("properties", {}).items():
            yield Field((*path, name), self.resolved(each))
            yield from self._fields(each, (*path, name), depth - 1)

    def valid(self, schema: dict[str, Any], rng: Random, depth: int = 3) -> Any:
        """Some value that the document allows."""
        schema = self.resolved(schema)
        if "anyOf" in schema:
            return self.valid(rng.choice(schema["anyOf"]), rng, depth)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return rng.choice(schema["enum"])
        kind = schema.get("type")
        if kind == "string":
            return rng.choice(["a", "the", "x y", "é", "\n", "user", "1"])
        if kind == "integer":
            low = int(schema.get("minimum", 0))
            return rng.randint(low, max(low, min(int(schema.get("maximum", 9)), 9)))
        if kind == "number":
            return round(rng.uniform(0, 1.2), 3)
        if kind == "boolean":
            return rng.random() < 0.5
        if kind == "array":
            count = max(schema.get("minItems", 0), rng.randrange(4)) if depth else schema.get("minItems", 0)
            return [self.valid(schema.get("items", {}), rng, depth - 1) for _ in range(count)]
        if kind == "object" or "properties" in schema:
            named = schema.get("properties", {})
            wanted = set(schema.get("required", ())) | {n for n in named if depth and rng.random() < 0.15}
            made = {name: self.valid(named[name], rng, depth - 1) for name in wanted if name in named}
            other = schema.get("additionalProperties")
            if isinstance(other, dict) and depth:
                made |= {
                    str(rng.randrange(60)): self.valid(other, rng, depth - 1) for _ in range(rng.randrange(3))
                }
            return made
        return rng.choice([None, 1, "a"]) if kind != "null" else None


def put(body: Any, path: tuple[str | int, ...], value: Any) -> Any:
    """The body with a value at a place; what is missing on the way is made."""
    if not path:
        return value
    first, *rest = path
    if isinstance(first, int):
        items = list(body) if isinstance(body, list) and body else [None]
        items[first] = put(items[first], tuple(rest), value)
        return items
    named = dict(body) if isinstance(body, dict) else {}
    named[first] = put(named.get(first), tuple(rest), value)
    return named
