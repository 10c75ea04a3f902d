"""Hostile decoding options: strategies that generate grammars, schemas, regular expressions and whole sets of
options, as a client could send them."""

from __future__ import annotations

import json
from dataclasses import fields

from hypothesis import strategies as st

from glassloop import Sampling

NAMES = [field.name for field in fields(Sampling)]
# By name: Python does not print the largest.
HUGE = {
    "10^18": 10**18,
    "2^31 - 1": 2**31 - 1,
    "2^31": 2**31,
    "2^32": 2**32,
    "2^63 - 1": 2**63 - 1,
    "2^63": 2**63,
    "2^64": 2**64,
    "10^308": 10**308,
    "10^309": 10**309,
    "10^5000": 10**5000,
    "-10^5000": -(10**5000),
}
DEPTHS = [1, 3, 50, 127, 128, 300, 3000]
CHAINS = [1, 10, 100, 1000, 4000]


def huge() -> st.SearchStrategy[int]:
    return st.sampled_from(sorted(HUGE)).map(lambda name: HUGE[name])


def nested(depth: int, kind: str = "list") -> object:
    """Returns a value with so many levels."""
    value: object = 0
    for _ in range(depth):
        value = [value] if kind == "list" else {"a": value}
    return value


def texts() -> st.SearchStrategy[str]:
    """Short and long, with control characters, bytes of all lengths and lone surrogates."""
    return st.one_of(
        st.text(max_size=20),
        st.text(st.characters(categories=["Cs", "Cc", "Lu"]), max_size=5),
        st.sampled_from(["", "\0", "\ud800", "a" * 100_000, "é" * 5000, "9" * 5000, "\u2028", "{", "["]),
    )


def values() -> st.SearchStrategy[object]:
    """Any JSON value, and those that Python's parser lets through besides."""
    leaves = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        huge(),
        st.floats(),
        texts(),
        st.sampled_from(DEPTHS).map(nested),
        st.sampled_from(DEPTHS).map(lambda depth: nested(depth, "object")),
    )
    return st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(texts() | st.sampled_from(["0", "7", "$ref", "type"]), inner, max_size=4)
        ),
        max_leaves=8,
    )


def options() -> st.SearchStrategy[dict[str, object]]:
    """Any values for any options, with a name now and then that is none."""
    return st.dictionaries(st.sampled_from(NAMES) | texts(), values(), max_size=4)


# ── what the text must be ──────────────────────────────────────────────────────────────────────────────────

_ATOMS = ['"a"', '"x" "y"', "/[a-z]+/", "/(a|b)*a/", "A", "b", "start", "c", '"é"', "/.*/", '""']


def grammars() -> st.SearchStrategy[str]:
    """Lark: chains, nesting, ambiguity, repetition, embedded schemas, and text that is no grammar at all."""
    bodies = st.recursive(
        st.sampled_from(_ATOMS),
        lambda inner: st.one_of(
            st.lists(inner, min_size=1, max_size=4).map(" ".join),
            st.lists(inner, min_size=1, max_size=4).map(" | ".join),
            inner.map(lambda body: f"({body})*"),
            inner.map(lambda body: f"[{body}]"),
            st.tuples(inner, st.integers(0, 2000), st.integers(0, 100_000)).map(
                lambda drawn: f"({drawn[0]}){{{drawn[1]},{drawn[1] + drawn[2]}}}"
            ),
            schemas(small=True).map(lambda schema: f"%json {json.dumps(schema)}"),
        ),
        max_leaves=10,
    )
    rules = st.tuples(bodies, bodies, bodies, bodies).map(
        lambda drawn: "start: {}\nb: {}\nc: {}\nA: {}\n".format(*drawn)
    )
    return st.one_of(
        rules,
        st.sampled_from(CHAINS).map(rule_chain),
        st.sampled_from(CHAINS).map(terminal_chain),
        st.sampled_from(DEPTHS).map(lambda depth: "start: " + "(" * depth + '"a"' + ")" * depth),
        st.sampled_from(DEPTHS).map(
            lambda depth: "start: " + "%lark {\nstart: " * depth + '"a"' + "\n}" * depth
        ),
        st.integers(2, 40).map(ambiguous),
        texts(),
    )


def rule_chain(length: int) -> str:
    return "start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(length)) + f'r{length}: "a"\n'


def terminal_chain(length: int) -> str:
    middle = "".join(f'T{i}: "b" | T{i + 1} "c"\n' for i in range(length))
    return f'start: T0\n{middle}T{length}: "a"\n'


def ambiguous(width: int) -> str:
    return 'start: a\na: "x" | ' + " | ".join("a " * count for count in range(2, width + 1))


def schemas(small: bool = False) -> st.SearchStrategy[object]:
    """JSON schemas: nested, chained and cyclic, with huge bounds, patterns and products of alternatives."""
    leaves = st.sampled_from(
        [
            {},
            True,
            {"type": "string"},
            {"type": "objekt"},
            {"type": "integer", "minimum": 5, "maximum": 10**30},
            {"type": "integer", "multipleOf": 9973},
            {"type": "string", "pattern": "(a|b)*a(a|b){12}", "maxLength": 10**9},
            {"type": "array", "minItems": 10**9},
            {"enum": ["a", 1, None, {"b": []}]},
            {"const": "\u2028"},
            {"$ref": "#"},
            {"$ref": "#/$defs/none"},
            {"$ref": "http://localhost/x"},
            {"$ref": "file:///etc/passwd"},
        ]
    )
    inner = st.recursive(
        leaves,
        lambda below: st.one_of(
            below.map(lambda one: {"items": one}),
            below.map(lambda one: {"additionalProperties": one}),
            below.map(lambda one: {"not": one}),
            st.lists(below, max_size=3).map(lambda some: {"allOf": some}),
            st.lists(below, max_size=3).map(lambda some: {"anyOf": some}),
            st.lists(below, max_size=3).map(lambda some: {"prefixItems": some}),
            st.dictionaries(st.sampled_from(["a", "b", "^x", ".*"]), below, max_size=3).map(
                lambda some: {"properties": some, "patternProperties": some, "required": list(some)}
            ),
        ),
        max_leaves=6,
    )
    if small:
        return inner
    return st.one_of(
        inner,
        st.tuples(st.sampled_from(sorted(WRAPS)), st.sampled_from(CHAINS)).map(
            lambda drawn: reference_chain(WRAPS[drawn[0]], drawn[1])
        ),
        st.tuples(st.sampled_from(sorted(WRAPS)), st.sampled_from([10, 100, 180])).map(
            lambda drawn: nested_schema(WRAPS[drawn[0]], drawn[1])
        ),
        st.sampled_from(EXPENSIVE_SCHEMAS),
    )


WRAPS = {
    "bare": lambda inner: inner,
    "items": lambda inner: {"items": inner},
    "properties": lambda inner: {"properties": {"a": inner}},
    "required": lambda inner: {"type": "object", "required": ["a"], "properties": {"a": inner}},
    "additional": lambda inner: {"additionalProperties": inner},
    "pattern": lambda inner: {"patternProperties": {"^a": inner}},
    "prefix": lambda inner: {"prefixItems": [inner]},
    "allOf": lambda inner: {"allOf": [inner, {"minLength": 1}]},
    "anyOf": lambda inner: {"anyOf": [inner, {"type": "null"}]},
    "oneOf": lambda inner: {"oneOf": [inner, {"type": "null"}]},
    "twice": lambda inner: {"allOf": [inner, inner]},
    "if": lambda inner: {"if": inner, "then": inner},
}


def reference_chain(wrap, length: int) -> dict[str, object]:
    """Returns a schema that is `length` definitions deep, each a reference to the next."""
    chain = {f"d{i}": wrap({"$ref": f"#/$defs/d{i + 1}"}) for i in range(length)}
    return {"$defs": {**chain, f"d{length}": {"type": "string"}}, "$ref": "#/$defs/d0"}


def nested_schema(wrap, depth: int) -> object:
    schema: object = {"type": "string"}
    for _ in range(depth):
        schema = wrap(schema) if wrap is not WRAPS["if"] and wrap is not WRAPS["twice"] else {"not": schema}
    return schema


EXPENSIVE_SCHEMAS = [
    {"type": "integer", "multipleOf": 999_983},
    {
        "patternProperties": {f"^{i:04d}": {"type": "string"} for i in range(600)},
        "additionalProperties": False,
    },
    {"properties": {f"p{i:05d}": {} for i in range(6000)}},
    {"enum": [f"{i:x}" for i in range(20_000)]},
    {"allOf": [{"anyOf": [{"properties": {f"p{j}": {"const": i}}} for i in range(8)]} for j in range(12)]},
]


def regexes() -> st.SearchStrategy[str]:
    """Regular expressions: nested groups and counts, blow-ups, and text that is none."""
    parts = st.recursive(
        st.sampled_from(
            ["a", ".", "[^a]", r"\w", r"\p{L}", "é", "$", r"(?i)x", "(?=a)", r"\1", "[[", "(", "{9"]
        ),
        lambda inner: st.one_of(
            st.lists(inner, min_size=1, max_size=4).map("".join),
            st.lists(inner, min_size=1, max_size=4).map(lambda some: f"({'|'.join(some)})"),
            inner.map(lambda one: f"({one})*"),
            st.tuples(inner, st.sampled_from([1, 2, 30, 900, 10**6, 10**12])).map(
                lambda drawn: f"({drawn[0]}){{0,{drawn[1]}}}"
            ),
        ),
        max_leaves=12,
    )
    return st.one_of(
        parts,
        st.sampled_from(DEPTHS).map(lambda depth: "(" * depth + "a" + ")*" * depth),
        st.sampled_from(["(x{1000}){1000}", "((a{0,900}){0,900}){0,900}", "(.*a){20}.{400}", "[^a]*" * 2000]),
        texts(),
    )


def constraints() -> st.SearchStrategy[dict[str, object]]:
    """One of the options that say what the text must be."""
    return st.one_of(
        grammars().map(lambda text: {"grammar": text}),
        schemas().map(lambda schema: {"json_schema": schema}),
        regexes().map(lambda text: {"regex": text}),
        st.lists(texts(), max_size=5).map(lambda some: {"choice": some}),
    )
