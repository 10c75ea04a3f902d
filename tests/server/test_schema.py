"""The server's own OpenAPI document, and requests made up from it: no 500, no answer it does not promise."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

EXAMPLES = int(os.environ.get("GLASSLOOP_SCHEMA_EXAMPLES", "3"))
PROFILE = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
    database=None,
)
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


def test_requests_made_up_from_the_schema(server):
    document = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    operations = [result.ok() for result in document.get_all_operations()]
    assert len(operations) > 20
    for operation in operations:
        for mode in GenerationMode:

            @settings(PROFILE)
            @given(case=operation.as_strategy(generation_mode=mode))
            def check(case):
                _shorten(case.body)
                answer = case.call(timeout=120)
                if answer.status_code != 501:  # said clearly: this server cannot do that
                    case.validate_response(answer, checks=CHECKS)

            with contextlib.suppress(Unsatisfiable):  # nothing can be made up that is wrong
                check()


def _shorten(body: Any) -> None:
    """What is made up is as valid as before, and takes less long."""
    if isinstance(body, dict):
        limits = dict.fromkeys(("max_tokens", "max_output_tokens", "max_completion_tokens", "tokens"), 4)
        for name, most in {**limits, "candidates": 2, "steps": 2, "budget": 50}.items():
            if isinstance(body.get(name), int) and body[name] > most:
                body[name] = most
        if "prompt" in body or "messages" in body or "input" in body:
            body.setdefault("timeout", 2)
            if body["timeout"] is None:
                body["timeout"] = 2
        if isinstance(body.get("sampling"), dict):
            body["sampling"].setdefault("timeout", 2)
            body["sampling"].setdefault("max_tokens", 4)
