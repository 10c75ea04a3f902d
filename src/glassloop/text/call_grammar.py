"""The grammar of tool calls in Lark's notation, from the form of a template and the schemas of the functions.

The arguments of every call match the schema of the function, whether they are JSON or written one by one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from glassloop.text.call_form import ID, INDEX, NAME, CallForm, PairForm
from glassloop.text.call_reader import PYTHON_TAG
from glassloop.text.tokenizer import Tokenizer

# The spaces of the arguments, as templates write them. A small model may write white space without an end.
_SPACES = {"x-guidance": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}}
_SPECIALS = re.compile(r"(<[^<>\s]+>|\[/?[A-Z_]+\]|[\ue000\ue001])")  # texts that may be special tokens
_MEANINGS = {ID: "/[A-Za-z0-9]{9}/", INDEX: "/[0-9]{1,3}/"}
_ANY_TEXT = "TEXT: /(.|\\n)*/"


class Function(NamedTuple):
    name: str
    parameters: Mapping[str, Any]  # a JSON schema


class CallGrammar:
    """Writes grammars of the calls of some functions, by one form and for one tokenizer."""

    def __init__(self, form: CallForm, tokenizer: Tokenizer, functions: Sequence[Function]) -> None:
        self._form, self._tokenizer, self._functions = form, tokenizer, functions
        self._ends = {tokenizer.piece(token) for token in tokenizer.eos_ids}

    def demanded(self, several: bool) -> str:
        """Returns the grammar of an answer that is a call, or with `several` one or more."""
        begin = self._literal(self._form.begins)
        return _joined([f"start: {begin} {self._rest(several)}", *self._rules()])

    def optional(self, several: bool, answer: str | None = None) -> str:
        """Returns the grammar of an answer that may be a text, calls, or a text and then calls. `answer` is
        what a text without calls has to be, in Lark's notation; without it, that is any text."""
        form, rest = self._form, self._rest(several)
        begin = self._literal(form.begins)
        if answer is not None:
            return _joined([f"start: answer | {begin} {rest}", f"answer: {answer}", *self._rules()])
        rules = [*self._rules(), _ANY_TEXT]
        if not form.mark:
            tag = self._tokenizer.id_of(PYTHON_TAG)
            may_tag = f"<[{tag}]>?" if tag in self._tokenizer.special_ids else ""
            begun = re.escape(form.begins).replace("/", r"\/")
            names = "|".join(re.escape(each.name) for each in self._functions) if not form.begins else ""
            start = f"OTHER: TEXT & ~/{begun or f'({names})'}(.|\\n)*/"
            return _joined([f"start: OTHER | {may_tag} {begin} {rest}", start, *rules])
        if self._tokenizer.id_of(form.mark) in self._tokenizer.special_ids:  # which is no text
            return _joined([f"start: TEXT | TEXT? {begin} {rest}", *rules])
        after = self._literal(form.begins.removeprefix(form.mark))
        lazy = f"begin[lazy]: TEXT {_quoted(form.mark)}"
        return _joined([f"start: TEXT | begin {after} {rest}", lazy, *rules])

    def _rest(self, several: bool) -> str:
        """Returns what follows the text before the first name."""
        form = self._form
        one = f"({' | '.join(f'call_{place}' for place in range(len(self._functions)))})"
        several = several and form.most is None
        more = f"({self._literal(form.between + form.before)} {one})*" if several else ""
        return f"{one} {more} {self._literal(form.closing, ends=True)}"

    def _rules(self) -> list[str]:
        form, rules = self._form, list[str]()
        for place, function in enumerate(self._functions):
            name = function.name
            if form.before.rstrip().endswith('"') and form.pairs is None:  # a JSON string
                name = json.dumps(name, ensure_ascii=False)[1:-1]
            middle = self._literal(form.middle.replace(NAME, name))
            after = self._literal(form.after.replace(NAME, name), ends=True)
            rules.append(f"call_{place}: {_quoted(name)} {middle} args_{place} {after}")
            if form.pairs is None:
                rules.append(f"args_{place}: {_json(function.parameters)}")
            else:
                rules += self._pairs(form.pairs, function.parameters, f"args_{place}")
        return rules

    def _pairs(self, form: PairForm, schema: Mapping[str, Any], rule: str) -> list[str]:
        """Returns the rules of arguments that are written one by one, in the order of the schema."""
        properties = schema.get("properties")
        required = schema.get("required")
        properties = properties if isinstance(properties, dict) else {}
        required = required if isinstance(required, list) else []
        rules, between = list[str](), self._literal(form.between)
        first, later = ['""'], ['""']  # what may come from here on: as the first pair, or after another
        for place, (name, value) in reversed([*enumerate(properties.items())]):
            pair, rest = f"{rule}_p{place}", f"{rule}_r{place + 1}"
            value = value if isinstance(value, dict) else {}
            rules += self._pair(form, name, value, schema, pair)
            rules.append(f"{rest}: {' | '.join(later)}")
            must = name in required
            first = [f"{pair} {rest}", *([] if must else first)]
            later = [f"{between} {pair} {rest}", *([] if must else [rest])]
        return [f"{rule}: {' | '.join(first)}", *rules]

    def _pair(
        self, form: PairForm, name: str, value: dict[str, Any], schema: Mapping[str, Any], rule: str
    ) -> list[str]:
        key = f"{self._literal(form.key)} {_quoted(name)}"
        value = _resolved(value, schema)
        kind = value.get("type")
        texts = value.get("enum", [value["const"]] if "const" in value else None)
        of_text = isinstance(texts, list) and all(isinstance(each, str) for each in texts)
        if kind == "string" or of_text:
            left, right = form.text[0], form.text[1].replace(NAME, name)
            if of_text and texts:
                choices = " | ".join(_quoted(each) for each in texts)
                return [f"{rule}: {key} {self._literal(left)} ({choices}) {self._literal(right)}"]
            return [
                f"{rule}: {key} {self._literal(left)} {rule}_t",
                *self._text(f"{rule}_t", right),
            ]
        left, right = form.other[0], form.other[1].replace(NAME, name)
        if form.names_types:
            left = left.replace("number", {"integer": "number"}.get(str(kind), str(kind or "object")))
        begin = f"{rule}: {key} {self._literal(left)}"
        scalar = kind in ("integer", "number", "boolean", "null") or (
            isinstance(texts, list) and not any(isinstance(each, (str, list, dict)) for each in texts)
        )
        if form.true == "True" and kind == "boolean":
            return [f'{begin} ("True" | "False") {self._literal(right)}']
        if not scalar and form.is_typed and not form.other[1]:  # nested values have quotes of the form
            return [f"{begin} {rule}_t", *self._text(f"{rule}_t", right, "/[^,)}\\n]+/")]
        if kind is None and not scalar and not isinstance(texts, list):
            return [f"{begin} {rule}_t", *self._text(f"{rule}_t", right)]
        shared = {each: schema[each] for each in ("$defs", "definitions") if each in schema}
        return [f"{begin} {_json({**shared, **value})} {self._literal(right)}"]

    def _text(self, rule: str, end: str, plain: str = "TEXT") -> list[str]:
        """Returns the rules of a text up to its end."""
        if end == "'":
            return [f"{rule}: /([^'\\\\\\n]|\\\\.)*/ \"'\""]
        parts = [*filter(None, _SPECIALS.split(end))]
        if not parts or self._tokenizer.id_of(parts[0].strip()) in self._tokenizer.special_ids:
            return [f"{rule}: {plain} {self._literal(end)}", _ANY_TEXT]
        return [f"{rule}[lazy]: TEXT {_quoted(end)}", _ANY_TEXT]

    def _literal(self, text: str, ends: bool = False) -> str:
        """Returns a text in Lark's notation, with its special tokens as such. With `ends` it stops before a
        token that ends every answer."""
        parts, plain = list[str](), ""  # plain texts are one terminal, or the lexer would choose between them
        for part in filter(None, _SPECIALS.split(text)):
            if ends and part in self._ends:
                break
            token = self._tokenizer.id_of(part)
            if part not in _MEANINGS and token not in self._tokenizer.special_ids:
                plain += part
                continue
            parts += [_quoted(plain)] if plain else []
            parts.append(_MEANINGS.get(part) or f"<[{token}]>")
            plain = ""
        return " ".join([*parts, *([_quoted(plain)] if plain else [])])


def _joined(rules: list[str]) -> str:
    return "\n".join(dict.fromkeys(rules))  # a terminal may be asked for several times


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _json(schema: Mapping[str, Any]) -> str:
    return f"%json {json.dumps({**schema, **_SPACES}, ensure_ascii=False)}"


def _resolved(value: dict[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a schema that only refers to a definition of the whole schema, or this schema itself."""
    match = re.fullmatch(r"#/(\$defs|definitions)/([^/]+)", str(value.get("$ref", "")))
    definitions = schema.get(match[1]) if match else None
    target = definitions.get(match[2]) if match and isinstance(definitions, dict) else None
    return target if isinstance(target, dict) else value
