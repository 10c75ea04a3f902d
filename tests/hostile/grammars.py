"""Hostile forms that a text must have: Lark grammars, JSON schemas and regular expressions.

`GRAMMARS`, `SCHEMAS` and `REGEXES` are families by name, each a function of a size: long chains, many
alternatives, deep nesting, circles, huge counts. `grammar`, `schema` and `regex` draw small ones of any form
from a `random.Random`. The examples are cheap enough for a request among thousands.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

# ── grammars ───────────────────────────────────────────────────────────────────────────────────────────────


def rule_chain(length: int) -> str:
    return "start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(length)) + f'\nr{length}: "a"'


def terminal_chain(length: int, link: str = "{}") -> str:
    middle = "".join(f"T{i}: {link.format(f'T{i + 1}')}\n" for i in range(length))
    return f'start: T0\n{middle}T{length}: "a"'


def mixed_chain(length: int) -> str:
    """Every rule refers to the next within brackets, alternatives or repeats."""
    forms = ('"x" r{} "y"', '(r{} | "b")', "r{}?", "r{}*", '["c" r{}]', "r{} r{}")
    lines = [f"r{i}: " + forms[i % len(forms)].replace("{}", str(i + 1)) for i in range(length)]
    return "start: r0\n" + "\n".join(lines) + f'\nr{length}: "a"'


def rule_fan(width: int) -> str:
    names = " | ".join(f"r{i}" for i in range(width))
    return f"start: {names}\n" + "\n".join(f'r{i}: "{i}"' for i in range(width))


def ambiguous(width: int) -> str:
    return 'start: a\na: "x" | ' + " | ".join(" ".join(["a"] * count) for count in range(2, 2 + width))


def nested_groups(depth: int) -> str:
    return "start: " + "(" * depth + '"a"' + ")" * depth


def doubling(depth: int) -> str:
    return "start: r0\n" + "\n".join(f"r{i}: r{i + 1} r{i + 1}" for i in range(depth)) + f'\nr{depth}: "a"'


def repeats(count: int) -> str:
    return f'start: ("a"{{1,{count}}}){{1,{count}}}'


GRAMMARS: dict[str, Callable[[int], str]] = {
    "rule chain": rule_chain,
    "terminal chain": terminal_chain,
    "terminal chain with alternatives": lambda size: terminal_chain(size, '"b" | {} "c"'),
    "mixed chain": mixed_chain,
    "rule fan": rule_fan,
    "ambiguous": lambda size: ambiguous(min(size, 60)),
    "nested groups": nested_groups,
    "nested grammars": lambda size: "start: " + "%lark {\nstart: " * size + '"a"' + "\n}" * size,
    "doubling": lambda size: doubling(min(size, 400)),
    "repeats": repeats,
    "one long text": lambda size: 'start: "' + "a" * (size * 10) + '"',
    "circle": lambda size: "start: r0\n" + "\n".join(f"r{i}: r{(i + 1) % size}" for i in range(size)),
}

# ── schemas ────────────────────────────────────────────────────────────────────────────────────────────────


# How one definition refers to the next.
LINKS: dict[str, Callable[[Any], Any]] = {
    "bare": lambda inner: inner,
    "items": lambda inner: {"type": "array", "items": inner, "minItems": 1},
    "properties": lambda inner: {"properties": {"a": inner}},
    "required": lambda inner: _object({"a": inner}, required=["a"]),
    "additional": lambda inner: {"type": "object", "additionalProperties": inner},
    "pattern": lambda inner: {"patternProperties": {"^a": inner}},
    "prefix": lambda inner: {"prefixItems": [inner]},
    "allOf": lambda inner: {"allOf": [inner, {"minLength": 1}]},
    "anyOf": lambda inner: {"anyOf": [inner, {"type": "null"}]},
    "oneOf": lambda inner: {"oneOf": [inner, {"type": "null"}]},
    "twice": lambda inner: {"allOf": [inner, inner]},
    "if": lambda inner: {"if": inner, "then": inner},
}


def reference_chain(link: Callable[[Any], Any], length: int) -> dict[str, Any]:
    """Definitions that each refer to the next one: not nested as a document, `length` deep to follow."""
    defs = {f"d{i}": link({"$ref": f"#/$defs/d{i + 1}"}) for i in range(length)}
    return {"$ref": "#/$defs/d0", "$defs": defs | {f"d{length}": {"type": "string"}}}


def nested_schema(link: Callable[[Any], Any], depth: int) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(depth):
        schema = link(schema)
    return schema


def _object(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **more}


def _required(count: int) -> dict[str, Any]:
    names = [f"p{i}" for i in range(count)]
    return _object({name: {"enum": list(range(9))} for name in names}, required=names)


def _circle(size: int) -> dict[str, Any]:
    defs = {f"d{i}": {"$ref": f"#/$defs/d{(i + 1) % size}"} for i in range(size)}
    return {"$ref": "#/$defs/d0", "$defs": defs}


def _either(count: int) -> list[dict[str, Any]]:
    return [{"anyOf": [{"minimum": i}, {"maxLength": i}]} for i in range(count)]


def _nested(name: str, size: int) -> Any:
    return nested_schema(LINKS.get(name, lambda inner: {name: inner}), min(size, 400))


def _patterns(count: int) -> dict[str, Any]:
    patterns = {f"^{i:05d}": {"type": "string"} for i in range(count)}
    return {"patternProperties": patterns, "additionalProperties": False}


def _constants(place: int) -> list[dict[str, Any]]:
    return [{"properties": {f"p{place}": {"const": number}}} for number in range(8)]


SCHEMAS: dict[str, Callable[[int], Any]] = {
    **{f"{name} chain": partial(reference_chain, link) for name, link in LINKS.items()},
    "doubling": lambda n: reference_chain(lambda ref: {"prefixItems": [ref, ref]}, min(n, 300)),
    **{f"nested {name}": partial(_nested, name) for name in ("required", "items", "anyOf", "not")},
    "many properties": lambda n: _object({f"p{i}": {"type": "string"} for i in range(n)}),
    "many required": _required,
    "enum": lambda n: {"enum": [f"{i}" * 3 for i in range(n)]},
    "anyOf": lambda n: {"anyOf": [{"const": i} for i in range(n)]},
    "allOf of anyOf": lambda n: {"allOf": _either(min(n, 300))},
    "circle": _circle,
    "counts": lambda n: {"type": "array", "minItems": 10 ** min(n, 400), "items": {"minItems": 10**9}},
    "lengths": lambda n: {"type": "string", "minLength": n * n, "maxLength": 10**12},
    "pattern": lambda n: {"type": "string", "pattern": f"^(a|b|ab){{1,{n}}}{{1,{n}}}$"},
    "multiple": lambda n: {"type": "integer", "multipleOf": 166 * n + 1},
    "many patterns": _patterns,
    "products": lambda n: {"allOf": [{"anyOf": _constants(j)} for j in range(min(n, 12))]},
    "remote": lambda n: {"$ref": "http://127.0.0.1:1/schema"},
    "file": lambda n: {"$ref": "file:///etc/passwd"},
}


# ── regular expressions ────────────────────────────────────────────────────────────────────────────────────

REGEXES: dict[str, Callable[[int], str]] = {
    "count": lambda n: f"a{{{n * 1000}}}",
    "counts of counts": lambda n: f"((a{{1,{n}}}){{1,{n}}}){{1,{n}}}",
    "alternatives": lambda n: "|".join(f"word{i}" for i in range(n)),
    "nested groups": lambda n: "(" * n + "a" + ")" * n,
    "optional run": lambda n: "a?" * n + "a" * n,
    "subsets": lambda n: "(a|b)*a" + "(a|b)" * min(n, 60),
    "classes": lambda n: r"[\p{L}\p{N}]{1,%d}" % n,  # noqa: UP031
    "stars": lambda n: "(" * min(n, 200) + "a" + "*)*" * min(n, 200),
    "intersections": lambda n: "&".join([f"(.*{i}.*)" for i in range(min(n, 200))]),
    "complement": lambda n: "~(" * min(n, 100) + "a" + ")" * min(n, 100),
    "look-ahead": lambda n: "(?=" * min(n, 100) + "a" + ")" * min(n, 100),
    "long text": lambda n: "a" * (n * 20),
    "many classes": lambda n: "[^a]*" * n,
    "stars of groups": lambda n: "(" * n + "a" + ")*" * n,
    "late end": lambda n: f"(.*a){{20}}.{{{n}}}",
}

# ── small ones of any form ─────────────────────────────────────────────────────────────────────────────────

_BODIES = (
    *('"a"', '"\\n"', '"x"i', '"x" "y"', "/[a-z]+/", "/a*/", "/./", "/.*/", "/(a|b)*a/", '""', '"é"', "/(/"),
    *("TERM", "start", "nothing", '"a".."z"', "<[72]>", "<|im_end|>", "%json {}"),
)
_COUNTS = ("*", "+", "?", "{2,3}", "{0,900}", "{1500,90000}", "~3", "~2..5")


def grammar(rng: Random, depth: int = 4) -> str:
    """A few rules that refer to one another in every way that Lark has."""
    count = rng.choice([1, 2, 5, 20])

    def body(depth: int) -> str:
        kind = rng.randrange(8) if depth else rng.randrange(3)
        if kind == 0:
            return f"r{rng.randrange(count)}"
        if kind == 1:
            return rng.choice(_BODIES)
        if kind == 2:
            return f"%json {json.dumps(schema(rng, 1))}" if rng.random() < 0.3 else rng.choice(_BODIES)
        if kind == 3:
            return f"({body(depth - 1)} | {body(depth - 1)})"
        if kind == 4:
            return f"{body(depth - 1)} {body(depth - 1)}"
        if kind == 5:
            return f"({body(depth - 1)}){rng.choice(_COUNTS)}"
        if kind == 6:
            return f"[{body(depth - 1)}]"
        return f"({body(depth - 1)})"

    rules = "\n".join(f"r{number}: {body(depth)}" for number in range(count))
    extra = rng.choice(["", "\nTERM: /[0-9]+/", "\n%ignore /\\s+/", "\n%import common.INT"])
    return f"start: {body(depth)}\n{rules}{extra}"


def schema(rng: Random, depth: int = 4) -> Any:
    """A JSON schema."""
    if not depth:
        kind = rng.choice(["string", "integer", "null", "boolean", "number", "nonsense"])
        return rng.choice([{"type": kind}, {"type": kind}, *SCHEMA_EXAMPLES])
    inner = [schema(rng, depth - 1) for _ in range(rng.choice([1, 2, 5]))]
    made: dict[str, Any] = {}
    for name, value in (
        ("properties", {f"p{i}": each for i, each in enumerate(inner)}),
        ("patternProperties", dict(zip(["a", "^x", ".*"], inner, strict=False))),
        ("items", inner[0]),
        ("prefixItems", inner),
        ("anyOf", inner),
        ("allOf", inner),
        ("oneOf", inner),
        ("not", inner[0]),
        ("if", inner[0]),
        ("then", inner[-1]),
        ("additionalProperties", inner[0]),
        ("required", ["p0", "zz"]),
        ("minItems", rng.choice([0, 3, 10**9])),
        ("maxLength", rng.choice([0, 3, 10**12])),
        ("pattern", rng.choice(["a+", "(", "^(a*)*$", ".{0,500}", "(a|b)*a(a|b){12}"])),
        ("minimum", rng.choice([-1, 5, 10**30, 1e300, 0.1])),
        ("maximum", rng.choice([-1, 10**30])),
        ("multipleOf", rng.choice([0, 7, 9973, 0.1, 1e-9])),
        ("$ref", rng.choice(["#", "#/properties/p0", "#/$defs/none", "x.json"])),
        ("format", rng.choice(["date", "email", "x"])),
    ):
        if rng.random() < 0.15:
            made[name] = value
    if rng.random() < 0.6:
        made["type"] = rng.choice(["object", "array", "string", "integer", ["object", "null"]])
    return made


def regex(rng: Random, depth: int = 4) -> str:
    """A regular expression, or something like one."""
    if not depth or rng.random() < 0.2:
        return rng.choice(_PARTS)
    inner = [regex(rng, depth - 1) for _ in range(rng.choice([1, 1, 2, 4]))]
    return rng.choice(
        [
            "".join(inner),
            f"({'|'.join(inner)})",
            f"({inner[0]})*",
            f"({inner[0]}){{0,{rng.choice([1, 2, 30, 900, 10**6, 10**12])}}}",
        ]
    )


_PARTS = ("a", ".", "[^a]", r"\w", r"\p{L}", "é", "$", "(?i)x", "(?=a)", r"\1", "[[", "(", "{9", ".*", "b+$")


def form(rng: Random) -> dict[str, Any]:
    """A small one of any kind, as an option."""
    kinds: list[tuple[str, Callable[[Random], Any]]]
    kinds = [("grammar", grammar), ("json_schema", schema), ("regex", regex)]
    name, make = rng.choice(kinds)
    return {name: make(rng)}


# ── examples ───────────────────────────────────────────────────────────────────────────────────────────────

GRAMMAR_EXAMPLES = (
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
SCHEMA_EXAMPLES: tuple[Any, ...] = (
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
    {"$ref": "#/$defs/none"},
    {"const": 1},
    {"const": "\u2028"},
    {"type": "integer", "minimum": 5, "maximum": 10**30},
    {"type": "integer", "multipleOf": 9973},
    {"type": "string", "pattern": "(a|b)*a(a|b){12}", "maxLength": 10**9},
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
