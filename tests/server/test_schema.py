"""The server's own OpenAPI document, and requests made up from it: no 500, no answer it does not promise."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


@pytest.fixture(scope="session")
def document(server):
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json")


schema = schemathesis.pytest.from_fixture("document")


@schema.parametrize()
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
def test_requests_made_up_from_the_schema(case):
    _shorten(case.body)
    case.call_and_validate(checks=CHECKS, timeout=60)


def _shorten(body: Any) -> None:
    """What is made up is as valid as before, and takes less long."""
    if isinstance(body, dict):
        for name in ("max_tokens", "max_output_tokens", "max_completion_tokens"):
            if isinstance(body.get(name), int) and body[name] > 4:
                body[name] = 4
        if "prompt" in body or "messages" in body or "input" in body:
            body.setdefault("timeout", 2)
            if body["timeout"] is None:
                body["timeout"] = 2
        if isinstance(body.get("sampling"), dict):
            body["sampling"].setdefault("timeout", 2)
            body["sampling"].setdefault("max_tokens", 4)
