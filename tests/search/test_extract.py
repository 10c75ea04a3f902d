"""Extractors find the answer that a person would, and equal answers have one form."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassloop.errors import GlassloopError
from glassloop.search.extract import EXTRACTORS, auto, choice, find_extractor, json_value, last_line, number
from glassloop.search.verify import find_verifier
from glassloop.search.verify.json_schema import check_schema, mismatch


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("#### 72", "72"),
        ("She makes 9 * 2 = $<<9*2=18>>18 every day.\n#### 18", "18"),
        ("so the answer is \\boxed{72}.", "72"),
        ("\\boxed{72} and later 80", "72"),
        ("first \\boxed{1}, then \\boxed{\\frac{3}{4}}", "0.75"),
        ("\\[ \\boxed{\\$1{,}234.50} \\]", "1234.5"),
        ("\\boxed{18 \\text{ dollars}}", "18"),
        ("\\boxed{x = 5}", "5"),
        ("\\boxed{3 + 4 = 7}", "7"),
        ("The final answer is 1,000,000 people, of 3 towns.", "1000000"),
        ("The answer is: **42**", "42"),
        ("It costs $5.00", "5"),
        ("It is 25%.", "25"),
        ("16-3 is 13", "13"),
        ("16-3", "3"),
        ("16 - 3", "3"),
        ("it is -3", "-3"),
        ("it is −3.50", "-3.5"),
        ("a loss of $-20", "-20"),
        ("a loss of -$20", "-20"),
        ("x = -0", "0"),
        (".5", "0.5"),
        ("00072", "72"),
        ("1,2 and 3,4", "4"),
        ("12,345", "12345"),
        ("no number", None),
        ("", None),
        ("9" * 500, None),
        ("\\boxed{none} so 7", "7"),
        ("\\boxed{12", "12"),
    ],
)
def test_the_number_of_a_text(text: str, expected: str | None) -> None:
    assert number(text) == expected


@settings(deadline=None)
@given(
    st.integers(-(10**12), 10**12),
    st.integers(0, 3),
    st.sampled_from(["{}", "#### {}", "\\boxed{{{}}}", "= {}."]),
)
def test_every_way_to_write_a_number_is_the_same_answer(value: int, zeros: int, form: str) -> None:
    expected = number(str(value))
    assert expected == str(value)
    decimals = "." + "0" * zeros if zeros else ""
    for written in (f"{value}{decimals}", f"{value:,}{decimals}"):
        assert number("It is " + form.format(written)) == expected


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=200))
def test_no_text_breaks_an_extractor(text: str) -> None:
    for name in EXTRACTORS[:6]:
        value = find_extractor(name)(text)
        assert value is None or isinstance(value, str)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The answer is (B).", "B"),
        ("(A) is wrong, so it is (C)", "C"),
        ("\\boxed{D}", "D"),
        ("\\boxed{\\text{E}}", "E"),
        ("Answer: B", "B"),
        ("B.", "B"),
        ("A) because it is red", "A"),
        ("I think the answer is a dog", None),
        ("I don't know", None),
        ("option C", "C"),
    ],
)
def test_the_letter_of_a_text(text: str, expected: str | None) -> None:
    assert choice(text) == expected


def test_an_option_is_a_whole_word_in_any_case() -> None:
    pick = find_extractor("choice:valid|invalid")
    assert pick("The argument is Invalid.") == "invalid"
    assert pick("it is valid") == "valid"
    assert pick("validity") is None
    assert find_extractor("choice:Yes|No")("No... wait. The answer is yes, not no.") == "Yes"


def test_json_lines_and_patterns() -> None:
    assert json_value('a {"b": 1, "a": [2]} c {"x": {"y": 1}}') == '{"x": {"y": 1}}'
    assert json_value('```json\n{"b": 1, "a": 2}\n```') == '{"a": 2, "b": 1}'
    assert find_extractor("json:city")('{"city": "Rome"}') == '"Rome"'
    assert json_value("[" * 100_000) is None
    assert last_line("a\n b \n\n") == "b"
    assert find_extractor("regex:x=(\\d+)")("x=1, x=22") == "22"
    assert find_extractor("first:x=(\\d+)")("x=1, x=22") == "1"
    assert find_extractor("regex:z")("x") is None
    assert auto("The answer is Paris.") == "paris" and auto("so (B)") == "B" and auto("just\nthis") == "this"
    assert find_extractor(str.upper)("a") == "A"


@pytest.mark.parametrize("name", ["nmber", "regex:", "regex:(", "choice:", "", 3, "first:" + "x" * 3000])
def test_an_unknown_extractor_is_refused_by_its_field(name: object) -> None:
    with pytest.raises(GlassloopError, match=r"^(extract|regex) "):
        find_extractor(name)  # type: ignore[arg-type]


def test_a_pattern_that_would_take_forever_is_ended() -> None:
    slow = find_extractor("regex:^(a+)+$")
    with pytest.raises(GlassloopError, match="takes more than 2 seconds"):
        slow("a" * 60 + "b")
    assert find_extractor("regex:b")("ab") == "b", "the next pattern has a process again"


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("number:72", "so \\boxed{72.0}", "71"),
        ("choice:(b)", "The answer is (B)", "(A)"),
        ("contains:Paris", "It is PARIS.", "Rome"),
        ("regex:^y.s$", "well\nyes", "no"),
        ("regex:(?i)^YES", "well\nyes", "no"),
        ("regex:(not )?here", "here", "it is gone"),
        ("json", "[1]", "1"),
        ('json:{"type": "object", "required": ["a"]}', '{"a": 1}', '{"b": 1}'),
    ],
)
def test_verifiers_by_name(name: str, good: str, bad: str) -> None:
    verify = find_verifier(name)
    assert verify(good).passed and verify(good).score == 1
    verdict = verify(bad)
    assert not verdict.passed and verdict.score == 0 and verdict.reason


@pytest.mark.parametrize(
    "name",
    ["number:x", "choice:12", "json:{", 'json:{"type": "thing"}', 'json:{"if": {}}', "tests:x", "json:3"],
)
def test_an_unknown_verifier_is_refused(name: str) -> None:
    with pytest.raises(GlassloopError, match=r"^(verify|schema)"):
        find_verifier(name)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "ab", "abc"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)
TYPES = ["object", "array", "string", "boolean", "null", "number", "integer"]
SCHEMAS = st.recursive(
    st.booleans()
    | st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(TYPES)
            | st.lists(st.sampled_from(TYPES), min_size=1, max_size=2, unique=True),
            "enum": st.lists(JSON, min_size=1, max_size=3),
            "const": JSON,
            "minLength": st.integers(0, 3),
            "maxLength": st.integers(0, 3),
            "minimum": st.integers(-3, 3),
            "exclusiveMaximum": st.integers(-3, 3),
            "multipleOf": st.integers(1, 3),
            "minItems": st.integers(0, 2),
            "uniqueItems": st.booleans(),
            "required": st.lists(st.sampled_from("abc"), max_size=2, unique=True),
            "maxProperties": st.integers(0, 3),
        },
    ),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "items": inner,
            "prefixItems": st.lists(inner, min_size=1, max_size=2),
            "contains": inner,
            "properties": st.dictionaries(st.sampled_from("abc"), inner, max_size=2),
            "additionalProperties": inner,
            "anyOf": st.lists(inner, min_size=1, max_size=2),
            "oneOf": st.lists(inner, min_size=1, max_size=2),
            "allOf": st.lists(inner, min_size=1, max_size=2),
            "not": inner,
        },
    ),
    max_leaves=4,
)


@settings(deadline=None)
@given(JSON, SCHEMAS)
def test_schemas_are_checked_as_by_another_library(value: object, schema: object) -> None:
    oracle = pytest.importorskip("jsonschema_rs")
    check_schema(schema)
    said = mismatch(value, schema)  # type: ignore[arg-type]
    assert (said is None) == oracle.Draft202012Validator(schema).is_valid(value), said


def test_references_are_followed_and_endless_ones_end() -> None:
    tree = {"$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}}}, "$ref": "#/$defs/t"}
    check_schema(tree)
    assert mismatch([[], [[]]], tree) is None
    assert "integer" not in str(mismatch([[1]], tree)) and mismatch([[1]], tree) is not None
    assert "too deeply" in str(mismatch(1, {"$ref": "#"}))
    with pytest.raises(GlassloopError, match="takes more than 100000 steps"):
        mismatch(1, {"not": {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}})
    with pytest.raises(GlassloopError, match="which the schema does not have"):
        mismatch(1, {"$ref": "#/x"})
