"""The schemas in docs/ describe what is written, no field more and no field less."""

from __future__ import annotations

import json
import re
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from engine.random_runs import PROMPT, random_run, small_llm
from hostile import glass
from hostile.values import changed, dumps
from hypothesis import given, settings
from hypothesis import strategies as st

from glassloop import Sampling, TraceError
from glassloop.trace.columns import pack
from glassloop.trace.file import to_bytes
from glassloop.trace.header import records_of, to_header
from glassloop.trace.packing import pack_tokens
from glassloop.trace.validate import read_header

DOCS = Path(__file__).parents[2] / "docs"
_TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "null": type(None),
    "integer": int,
    "number": (int, float),
}


def check(value: Any, schema: dict[str, Any], root: dict[str, Any], place: str = "$") -> None:
    """As much of JSON Schema as our schemas use."""
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        found = next(each for each in schema["anyOf"] if (each.get("type") == "null") == (value is None))
        return check(value, found, root, place)
    if "enum" in schema:
        assert value in schema["enum"], place
        return None
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    assert any(isinstance(value, _TYPES[kind]) for kind in kinds) and not isinstance(value, bool), place
    if isinstance(value, int | float):
        assert schema.get("minimum", value) <= value <= schema.get("maximum", value), place
    if isinstance(value, str):
        assert re.search(schema.get("pattern", ""), value), place
        assert len(value) <= schema.get("maxLength", len(value)), place
    if isinstance(value, dict):
        names = schema.get("propertyNames", {})
        assert all(re.search(names.get("pattern", ""), key) for key in value), place
        named = schema.get("properties", {})
        assert set(schema.get("required", ())) <= set(value), place
        for key, each in value.items():
            other = schema.get("additionalProperties", True)
            assert key in named or other is not False, f"{place}.{key}"
            if key in named or isinstance(other, dict):
                check(each, named.get(key, other), root, f"{place}.{key}")
    if isinstance(value, list):
        assert schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)), place
        assert not schema.get("uniqueItems") or len(set(value)) == len(value), place
        firsts = schema.get("prefixItems", [schema.get("items")] * len(value))
        for at, (each, item) in enumerate(zip(value, firsts, strict=True)):
            check(each, item, root, f"{place}[{at}]")
    return None


@pytest.mark.parametrize("seed", range(12))
def test_what_is_written_is_what_the_schemas_say(seed):
    rng = np.random.default_rng(seed)
    run = random_run(rng, beam_width=3, n=2) if seed % 4 == 0 else random_run(rng)
    if run.tokens and seed % 4 == 1:
        run = run.fork(1, temperature=0.5)
    schema = json.loads((DOCS / "trace-header.schema.json").read_text())
    plan, _ = pack(pack_tokens(records_of(run)))
    check(json.loads(json.dumps({**to_header(run), "columns": plan}, allow_nan=False)), schema, schema)
    schema = json.loads((DOCS / "run.schema.json").read_text())
    check(json.loads(json.dumps(run.to_dict(), allow_nan=False)), schema, schema)


@pytest.fixture(scope="module")
def headers() -> list[dict]:
    run = small_llm().generate(PROMPT, Sampling(seed=1, n=2, max_tokens=4)).fork(2, temperature=0.5, n=1)
    beams = small_llm().generate(PROMPT, Sampling(beam_width=3, max_tokens=4))
    return [glass.read(to_bytes([each]))[0].header for each in (run, beams)]


@settings(max_examples=800, deadline=None)
@given(st.integers(0, 2**64), st.integers(0, 1))
def test_what_the_validator_accepts_the_schema_accepts(headers, seed, which):
    schema = json.loads((DOCS / "trace-header.schema.json").read_text())
    try:
        header = read_header(dumps(changed(headers[which], Random(seed))))
    except TraceError:
        return
    kinds = {kind for _, kind, _ in header["columns"]} - {"u1", "u2", "u4", "i4", "f4", "f8"}
    if not kinds:  # the types of columns are checked with the columns
        check(header, schema, schema)


def test_every_column_is_described():
    text = (DOCS / "trace-format.md").read_text()
    for name in pack_tokens([]):
        assert f"`{name}`" in text, name
