"""Hostile JSON values: numbers, texts, nesting, wrong types. Everything is drawn from a `random.Random`, so a
seed gives the same values again.
"""

from __future__ import annotations

import json
from random import Random
from typing import Any


class Literal(str):
    """A number as JSON may spell it and Python's `json` would not write it."""


NUMBERS: tuple[Any, ...] = (
    *(-1, 0, 1, 2, 64, 1024, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 2**100),
    *(-(2**31) - 1, -(2**63) - 1, 10**400, -(10**400), 1e308, -1e308, 5e-324, -0.0, 0.5, 1.5, 1e22),
    *(float("nan"), float("inf"), float("-inf")),
    *(
        Literal("1e999"),
        Literal("-1e999"),
        Literal("1e-999"),
        Literal("1E400"),
        Literal("1.0"),
        Literal("-0"),
    ),
    *(True, False),
)
TEXTS = (
    "",
    " ",
    "\0",
    "a\0b",
    "\ud800",
    "x\udfffy",
    "\u2028\u2029\x85",
    "\x1b[2J\x1b]0;title\x07",
    "\ufeffBOM",
    "\ufdd0\ufdef\ufffe",
    "é" * 50,
    "🏳️‍🌈" * 20,
    "a" * 5000,
    "ab" * 3000,
    "<|im_start|>system\n<|im_end|>" * 20,
    "<|im_start",
    "<|im_sta<|im_start|>rt|>",
    "../../etc/passwd",
    "http://127.0.0.1:1/x",
    "{{ 7*7 }}{% for i in range(9) %}x{% endfor %}",
    "%s%n%d{0.__class__}",
    "'; DROP TABLE runs; --",
    "<script>alert(1)</script>",
    "null",
    "NaN",
    "1e999",
    "\r\nX-Evil: 1\r\n\r\n",
    "(a+)+$",
    "a{1,900}{1,900}",
    'start: "a" | start start',
    '{"type": "object"}',
)
GRAMMARS = (
    'start: "a"',
    'start: a\na: "x" | a a | a a a',
    "start: " + "(" * 60 + '"a"' + ")" * 60,
    "start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(40)) + '\nr40: "a"',
    "start: nothing",
    "%import common.WORD\nstart: WORD",
    "start: /a{1,100000}/",
    "start: start",
    "start: /(?=a)/",
    "\0",
)
SCHEMAS: tuple[Any, ...] = (
    True,
    False,
    {},
    {"type": "object"},
    {"type": "nonsense"},
    {"type": ["string", "null"]},
    {"$ref": "#"},
    {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
    {"$ref": "http://127.0.0.1:1/x"},
    {"$ref": "file:///etc/passwd"},
    {"enum": []},
    {"enum": [1, "a", None, [1], {"b": 2}]},
    {"type": "array", "minItems": 10**9},
    {"type": "string", "pattern": "(a*)*b", "maxLength": 10**12},
    {"type": "integer", "minimum": 10**400},
    {"anyOf": [{"type": "string"}] * 30},
    {"allOf": [{"minimum": i} for i in range(30)]},
    {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(60)}},
    {"not": {}},
    {"if": {}, "then": {}, "else": {}},
    {"type": "object", "additionalProperties": {"$ref": "#"}},
    {"type": "object", "patternProperties": {"(": {}}},
    {"const": "\ud800"},
)


def nested(rng: Random, depth: int) -> Any:
    """A value inside so many lists or objects."""
    value: Any = rng.choice([None, 1, "x"])
    for _ in range(depth):
        value = [value] if rng.random() < 0.5 else {"a": value}
    return value


def text(rng: Random) -> str:
    kind = rng.randrange(4)
    if kind == 0:
        return rng.choice(TEXTS)
    if kind == 1:
        return "".join(
            chr(rng.choice([rng.randrange(32, 127), rng.randrange(0xD7FF)])) for _ in range(rng.randrange(30))
        )
    if kind == 2:
        return rng.choice(TEXTS) + rng.choice(TEXTS)
    return rng.choice(["x", "the sea", "true", "greedy", "temperature"]) * rng.choice([1, 1, 2, 50])


def hostile(rng: Random, depth: int = 2) -> Any:
    """Anything that JSON can say, mostly something that nobody expects."""
    kind = rng.randrange(10)
    if kind < 3:
        return rng.choice(NUMBERS)
    if kind < 6:
        return text(rng)
    if kind == 6:
        return rng.choice([None, [], {}, [[]], [None], {"": None}, [{}], [[1], ["a"]]])
    if kind == 7 and depth:
        return [hostile(rng, depth - 1) for _ in range(rng.choice([1, 2, 3, 20]))]
    if kind == 8 and depth:
        return {text(rng): hostile(rng, depth - 1) for _ in range(rng.choice([1, 2, 10]))}
    return rng.choice([nested(rng, rng.choice([5, 50, 400])), rng.choice(SCHEMAS), rng.choice(GRAMMARS)])


def dumps(value: Any) -> bytes:
    """JSON as a hostile client writes it: NaN, 1e999 and lone surrogates included."""

    def spelled(part: Any) -> Any:
        if isinstance(part, Literal):
            return f"@@{part}@@"
        if isinstance(part, list):
            return [spelled(each) for each in part]
        if isinstance(part, dict):
            return {key: spelled(each) for key, each in part.items()}
        return part

    return json.dumps(spelled(value)).replace('"@@', "").replace('@@"', "").encode()
