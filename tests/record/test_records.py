"""A run as a table: one plain dict per token."""

from __future__ import annotations

import json

from engine.random_runs import PROMPT, small_llm

from glassloop import Sampling


def test_a_record_has_the_numbers_of_its_token():
    run = small_llm().generate(PROMPT, Sampling(seed=1, max_tokens=12, top_k=40, ignore_eos=True))
    records = run.to_records()
    assert len(records) == len(run.tokens) == 12
    for step, (record, token) in enumerate(zip(records, run.tokens, strict=True)):
        assert (record["run"], record["sample"], record["step"]) == (run.id, 0, step)
        assert record["position"] == len(PROMPT) + step
        plain = token.to_dict() | {"piece": token.piece}
        own = set(record) - {"run", "sample", "step", "position"}
        assert own == set(plain) - {"bytes", "refused", "alternatives"}
        assert {name: record[name] for name in own} == {name: plain[name] for name in own}


def test_records_are_plain_values_with_the_same_columns_everywhere():
    run = small_llm().generate(PROMPT, Sampling(seed=1, n=2, max_tokens=5, top_k=1, ignore_eos=True))
    table = [record for sample in run.samples for record in sample.to_records()]
    assert json.loads(json.dumps(table, allow_nan=False)) == table
    assert len({tuple(record) for record in table}) == 1 and len(table) == 10
    assert {type(value) for record in table for value in record.values()} <= {str, int, float, type(None)}
    assert [record["sample"] for record in table] == [0] * 5 + [1] * 5
    assert {record["margin"] for record in table} == {None}  # the only token that was left
