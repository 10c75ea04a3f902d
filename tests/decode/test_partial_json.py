"""`partial_json` and `stream_json`, against `json.loads` on every beginning of a text."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassloop import TextError, partial_json, stream_json

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


def is_beginning(part, whole):
    """Whether a value can be what was read of the beginning of another."""
    if isinstance(whole, dict):
        keys = list(whole)[: len(part)] if isinstance(part, dict) else None
        return keys is not None and list(part) == keys and all(is_beginning(part[k], whole[k]) for k in part)
    if isinstance(whole, list):
        return isinstance(part, list) and len(part) <= len(whole) and all(map(is_beginning, part, whole))
    if isinstance(whole, str):
        return isinstance(part, str) and whole.startswith(part)
    return part == whole and type(part) is type(whole)


@given(JSON, st.booleans(), st.sampled_from([None, 1]))
def test_every_beginning_of_any_json_is_read(value, ascii_only, indent):
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert partial_json(text) == json.loads(text)
    seen = [partial_json(text[:cut]) for cut in range(1, len(text) + 1)]
    if isinstance(value, dict | list | str):
        for cut, part in enumerate(seen, 1):
            assert is_beginning(part, json.loads(text)), (text[:cut], part)
        for part, more in pairwise(seen):
            assert is_beginning(part, more)  # nothing that was read is taken back
    changes = [now for before, now in zip([None, *seen], seen, strict=False) if now != before]
    assert list(stream_json(text)) == changes


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("  ", None),
        ("{", {}),
        ('{"a', {}),
        ('{"a": ', {}),
        ('{"a": 1', {}),
        ('{"a": -1.5e', {}),
        ('{"a": 1,', {"a": 1}),
        ('{"a": "x 12', {"a": "x 12"}),
        ('{"a": "\\"1', {"a": '"1'}),
        ('{"a": "x\\u00', {"a": "x"}),
        ('{"a": [true, fal', {"a": [True]}),
        ('[1, 2.5, {"b": "c', [1, 2.5, {"b": "c"}]),
        ('"\\ud83d', ""),
        ('"\\ud83d\\ude00', "😀"),
        ("12", 12),
        ("-", None),
        ("tr", None),
    ],
)
def test_by_hand(text, value):
    assert partial_json(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "{a",
        '{"a" 1',
        "[1 2",
        '{"a": 1}}',
        '"\\q',
        "[" * 1000,
        '"\n"',
        "01,",
        "[NaN",
        '"\ud800',
        "[Infinity]",
    ],
)
def test_what_no_json_begins_with_is_an_error(text):
    with pytest.raises(TextError, match="JSON text"):
        partial_json(text)
