"""The schemas in docs/ describe what is written, no field more and no field less."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine.random_runs import random_run

from glassloop.trace.columns import pack
from glassloop.trace.header import records_of, to_header
from glassloop.trace.packing import pack_tokens

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
    assert value is None or "minimum" not in schema or value >= schema["minimum"], place
    if isinstance(value, dict):
        named = schema.get("properties", {})
        assert set(schema.get("required", ())) <= set(value), place
        for key, each in value.items():
            other = schema.get("additionalProperties", True)
            assert key in named or other is not False, f"{place}.{key}"
            if key in named or isinstance(other, dict):
                check(each, named.get(key, other), root, f"{place}.{key}")
    if isinstance(value, list):
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


def test_every_column_is_described():
    text = (DOCS / "trace-format.md").read_text()
    for name in pack_tokens([]):
        assert f"`{name}`" in text, name
