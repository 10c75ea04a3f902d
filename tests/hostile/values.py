"""Hostile JSON values: numbers, texts, nesting, wrong types, and changes to the values of a good document.
Everything is drawn from a `random.Random`, so a seed gives the same values again.
"""

from __future__ import annotations

import json
import re
from copy import deepcopy
from dataclasses import dataclass
from random import Random
from typing import Any

from hostile.grammars import GRAMMAR_EXAMPLES, SCHEMA_EXAMPLES


@dataclass(frozen=True)
class Literal:
    """JSON that `dumps` writes as it stands, for what Python's `json` would not write."""

    text: str

    def __str__(self) -> str:
        return self.text


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
        Literal("9" * 5000),  # more digits than Python turns into a number
    ),
    *(True, False),
)
# Counts, dimensions and factors as files have them.
SIZES: tuple[Any, ...] = (
    *(3, 7, 255, 2**8, 2**16, 2**24, 2**30, 2**48, 1e-320, 1e-45, 1e-30, 1e30, 1e38, -1.5),
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
    "9" * 5000,
    "\u202egnp.exe",
    "0123456789abcdef",  # the form of a run's id
    "0123456789ABCDEF",
    "llama",
    "gpt2",
)
SMALL: tuple[Any, ...] = (
    *(None, [], {}, [[]], [None], [0], [-1], [""], {"": None}, {"": {}}, {"a": 1}, [{}], [[1], ["a"]]),
    *(["0123456789abcdef"] * 2, [[0, 0, 0, 0, 0]], [[0, 1, 2]]),
)
LARGE: tuple[Literal, ...] = (
    Literal("[" + "0," * 3000 + "0]"),
    Literal("[" * 5000 + "]" * 5000),
    Literal('{"a":' * 5000 + "1" + "}" * 5000),
    Literal('[{"a": 1, "a": 2}]'),
    Literal('"\ud800"'),  # as bytes that are not UTF-8
)


def nested(depth: int, kind: str = "list") -> Any:
    """Returns a value inside so many lists, or objects."""
    made: Any = 0
    for _ in range(depth):
        made = [made] if kind == "list" else {"a": made}
    return made


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


def value(rng: Random, depth: int = 2) -> Any:
    """Anything that JSON can say, mostly something that nobody expects."""
    kind = rng.randrange(20)
    if kind < 5:
        return rng.choice(NUMBERS)
    if kind == 5:
        return rng.choice(SIZES)
    if kind < 12:
        return text(rng)
    if kind < 14:
        return rng.choice(SMALL)
    if kind < 16 and depth:
        return [value(rng, depth - 1) for _ in range(rng.choice([1, 2, 3, 20]))]
    if kind < 18 and depth:
        return {text(rng): value(rng, depth - 1) for _ in range(rng.choice([1, 2, 10]))}
    return rng.choice(
        [
            nested(rng.choice([5, 50, 400]), rng.choice(["list", "object"])),
            rng.choice(SCHEMA_EXAMPLES),
            rng.choice(GRAMMAR_EXAMPLES),
            rng.choice(LARGE),
        ]
    )


def dumps(value: Any) -> bytes:
    """JSON as a hostile client writes it: NaN, 1e999 and lone surrogates included."""
    return spelled(value).encode("utf-8", "surrogatepass")


def spelled(value: Any) -> str:
    """The text that `dumps` encodes."""
    literals: list[str] = []

    def mark(part: Any) -> str:
        if not isinstance(part, Literal):
            raise TypeError(f"{type(part).__name__} is not JSON")
        literals.append(part.text)
        return f"@literal {len(literals) - 1}@"

    made = json.dumps(value, default=mark)
    if literals:
        made = re.sub(r'"@literal (\d+)@"', lambda found: literals[int(found[1])], made)
    return made


# ── changes to a document ──────────────────────────────────────────────────────────────────────────────────


def changed(document: Any, rng: Random) -> Any:
    """Returns a copy in which one to three values, anywhere, are replaced, removed, repeated, renamed or
    put into lists."""
    made = deepcopy(document)
    for _ in range(rng.choice([1, 1, 2, 3])):
        _change(made, rng)
    return made


def twice(json_object: str) -> str:
    """Returns the JSON of an object with each of its names twice."""
    return f"{json_object[:-1]}, {json_object[1:]}"


def _change(node: Any, rng: Random) -> None:
    # A top-level value now and then: most values are deep within long lists.
    stop = rng.choice([0.25, 0.25, 1.0])
    while True:
        keys: list[Any] = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            return
        key = rng.choice(keys)
        if not isinstance(node[key], dict | list) or not node[key] or rng.random() < stop:
            break
        node = node[key]
    old = node[key]
    match rng.randrange(12):
        case 0 | 1:
            del node[key]
        case 2 if isinstance(node, list):
            node.insert(key, old)
        case 2:
            node[rng.choice(TEXTS)] = old
        case 3 if isinstance(node, dict):
            node[f"{key}x"] = node.pop(key)
        case 3 | 4:
            depth = rng.choice([1, 3, 300])
            node[key] = Literal("[" * depth + spelled(old) + "]" * depth)
        case 5 if type(old) is int:
            node[key] = old + rng.choice((-1, 1, 1 << 8, 1 << 31, -(1 << 31)))
        case 5 if isinstance(old, dict) and old:
            node[key] = Literal(twice(spelled(old)))
        case _:
            node[key] = Literal(spelled(value(rng, 1)))  # parts of a value may be shared by others
