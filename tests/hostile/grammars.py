"""Hostile forms that a text must have: Lark grammars, JSON schemas and regular expressions with long chains,
many alternatives, deep nesting, circles and huge counts. Drawn from a `random.Random`.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

# ── grammars ───────────────────────────────────────────────────────────────────────────────────────────────


def rule_chain(length: int) -> str:
    return "start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(length)) + f'\nr{length}: "a"'


def terminal_chain(length: int) -> str:
    return "start: T0\n" + "\n".join(f"T{i}: T{i + 1}" for i in range(length)) + f'\nT{length}: "a"'


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
    "mixed chain": mixed_chain,
    "rule fan": rule_fan,
    "ambiguous": lambda size: ambiguous(min(size, 60)),
    "nested groups": nested_groups,
    "doubling": lambda size: doubling(min(size, 400)),
    "repeats": repeats,
    "one long text": lambda size: 'start: "' + "a" * (size * 10) + '"',
    "circle": lambda size: "start: r0\n" + "\n".join(f"r{i}: r{(i + 1) % size}" for i in range(size)),
}

# ── schemas ────────────────────────────────────────────────────────────────────────────────────────────────


def _chain(length: int, link: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """Definitions that each refer to the next one, flat as a document, deep as a walk."""
    defs = {f"d{i}": link({"$ref": f"#/$defs/d{i + 1}"}) for i in range(length)}
    return {"$ref": "#/$defs/d0", "$defs": defs | {f"d{length}": {"type": "string"}}}


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


SCHEMAS: dict[str, Callable[[int], Any]] = {
    "bare $ref chain": lambda n: _chain(n, lambda ref: ref),
    "properties chain": lambda n: _chain(n, lambda ref: _object({"a": ref}, required=["a"])),
    "items chain": lambda n: _chain(n, lambda ref: {"type": "array", "items": ref, "minItems": 1}),
    "allOf chain": lambda n: _chain(n, lambda ref: {"allOf": [ref]}),
    "anyOf chain": lambda n: _chain(n, lambda ref: {"anyOf": [ref, {"type": "null"}]}),
    "oneOf chain": lambda n: _chain(n, lambda ref: {"oneOf": [ref, {"type": "integer"}]}),
    "doubling": lambda n: _chain(min(n, 300), lambda ref: {"type": "array", "prefixItems": [ref, ref]}),
    "additional chain": lambda n: _chain(n, lambda ref: {"type": "object", "additionalProperties": ref}),
    "many properties": lambda n: _object({f"p{i}": {"type": "string"} for i in range(n)}),
    "many required": _required,
    "enum": lambda n: {"enum": [f"{i}" * 3 for i in range(n)]},
    "anyOf": lambda n: {"anyOf": [{"const": i} for i in range(n)]},
    "allOf of anyOf": lambda n: {"allOf": _either(min(n, 300))},
    "circle": _circle,
    "counts": lambda n: {"type": "array", "minItems": 10 ** min(n, 400), "items": {"minItems": 10**9}},
    "lengths": lambda n: {"type": "string", "minLength": n * n, "maxLength": 10**12},
    "pattern": lambda n: {"type": "string", "pattern": f"^(a|b|ab){{1,{n}}}{{1,{n}}}$"},
    "nested": lambda n: _nested(min(n, 400)),
    "remote": lambda n: {"$ref": "http://127.0.0.1:1/schema"},
    "file": lambda n: {"$ref": "file:///etc/passwd"},
}


def _nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


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
}


def grammar(rng: Random, depth: int = 4) -> str:
    """A random grammar: a few rules that refer to one another in every way that Lark has."""
    count = rng.choice([1, 2, 5, 20])

    def body(depth: int) -> str:
        kind = rng.randrange(8) if depth else rng.randrange(3)
        if kind == 0:
            return f"r{rng.randrange(count)}"
        if kind == 1:
            return rng.choice(['"a"', '"\\n"', '"x"i', "/[a-z]+/", "/a*/", "/./", '""', '"é"', "/(/", "TERM"])
        if kind == 2:
            return rng.choice(["%json {}", '%json {"type": "integer"}', '"a".."z"', "<[72]>", "<|im_end|>"])
        if kind == 3:
            return f"({body(depth - 1)} | {body(depth - 1)})"
        if kind == 4:
            return f"{body(depth - 1)} {body(depth - 1)}"
        if kind == 5:
            return f"({body(depth - 1)}){rng.choice(['*', '+', '?', '{2,3}', '{0,900}', '~3', '~2..5'])}"
        if kind == 6:
            return f"[{body(depth - 1)}]"
        return f"({body(depth - 1)})"

    rules = "\n".join(f"r{number}: {body(depth)}" for number in range(count))
    extra = rng.choice(["", "\nTERM: /[0-9]+/", "\n%ignore /\\s+/", "\n%import common.INT"])
    return f"start: {body(depth)}\n{rules}{extra}"


def schema(rng: Random, depth: int = 4) -> Any:
    """A random JSON schema."""
    if not depth:
        kind = rng.choice(["string", "integer", "null", "boolean", "number", "nonsense"])
        return rng.choice([{"type": kind}, True, {}, {"$ref": "#"}, {"const": 1}, {"enum": ["a", 2]}])
    inner = [schema(rng, depth - 1) for _ in range(rng.choice([1, 2, 5]))]
    made: dict[str, Any] = {}
    for name, value in (
        ("properties", {f"p{i}": each for i, each in enumerate(inner)}),
        ("items", inner[0]),
        ("prefixItems", inner),
        ("anyOf", inner),
        ("allOf", inner),
        ("oneOf", inner),
        ("not", inner[0]),
        ("additionalProperties", inner[0]),
        ("required", ["p0", "zz"]),
        ("minItems", rng.choice([0, 3, 10**9])),
        ("maxLength", rng.choice([0, 3, 10**12])),
        ("pattern", rng.choice(["a+", "(", "^(a*)*$", ".{0,500}"])),
        ("minimum", rng.choice([-1, 10**30, 1e300, 0.1])),
        ("multipleOf", rng.choice([0, 7, 0.1, 1e-9])),
        ("$ref", rng.choice(["#", "#/properties/p0", "#/nothing", "x.json"])),
        ("format", rng.choice(["date", "email", "x"])),
    ):
        if rng.random() < 0.15:
            made[name] = value
    if rng.random() < 0.6:
        made["type"] = rng.choice(["object", "array", "string", "integer", ["object", "null"]])
    return made
