"""The schemas in docs/ describe what is written, no field more and no field less."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
import pytest
from engine.random_runs import PROMPT, random_run, small_llm
from hostile import glass
from hostile.values import changed, dumps
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema_rs import Validator, meta, validator_for

from glassloop import Sampling, TraceError
from glassloop.record.format.check_header import read_header
from glassloop.record.format.columns import pack
from glassloop.record.format.glass_file import to_bytes
from glassloop.record.format.header import records_of, to_header
from glassloop.record.format.packing import pack_tokens

DOCS = Path(__file__).parents[2] / "docs"
# Not in the first files of version 1.
LATER = {"refused", "plugins", "messages", "search", "revised", "moves", "adapters", "upstream"}


@cache
def validator(name: str) -> Validator:
    schema = json.loads((DOCS / name).read_text(encoding="utf-8"))
    meta.validate(schema)
    return validator_for(schema)


@pytest.mark.parametrize("seed", range(12))
def test_what_is_written_is_what_the_schemas_say(seed):
    rng = np.random.default_rng(seed)
    run = random_run(rng, beam_width=3, n=2) if seed % 4 == 0 else random_run(rng)
    if run.tokens and seed % 4 == 1:
        run = run.fork(1, temperature=0.5, max_tokens=40)
    plan, _ = pack(pack_tokens(records_of(run)))
    header = json.loads(json.dumps({**to_header(run), "columns": plan}, allow_nan=False))
    plain = json.loads(json.dumps(run.to_dict(), allow_nan=False))
    for name, written in (("trace-header.schema.json", header), ("run.schema.json", plain)):
        validator(name).validate(written)
        for field in written.keys() - LATER:  # no field less, and no field more
            assert not validator(name).is_valid({key: written[key] for key in written if key != field}), field
        assert not validator(name).is_valid({**written, "another": 1})


@pytest.fixture(scope="module")
def headers() -> list[dict]:
    run = small_llm().generate(PROMPT, Sampling(seed=1, n=2, max_tokens=4)).fork(2, temperature=0.5, n=1)
    beams = small_llm().generate(PROMPT, Sampling(beam_width=3, max_tokens=4))
    return [glass.read(to_bytes([each]))[0].header for each in (run, beams)]


@settings(max_examples=800, deadline=None)
@given(st.integers(0, 2**64), st.integers(0, 1))
def test_what_the_validator_accepts_the_schema_accepts(headers, seed, which):
    try:
        header = read_header(dumps(changed(headers[which], Random(seed))))
    except TraceError:
        return
    kinds = {kind for _, kind, _ in header["columns"]} - {"u1", "u2", "u4", "i4", "f4", "f8"}
    if not kinds:  # the types of columns are checked with the columns
        validator("trace-header.schema.json").validate(header)


def test_every_column_is_described():
    text = (DOCS / "trace-format.md").read_text()
    for name in pack_tokens([]):
        assert f"`{name}`" in text, name
