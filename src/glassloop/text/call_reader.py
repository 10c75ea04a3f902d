"""Tool calls in what a model has written, read by the form of its template: several, or a part of one."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic_core import from_json

from glassloop.text.call_form import ID, INDEX, NAME, CallForm

PYTHON_TAG = "<|python_tag|>"  # Llama may write it before a call
_NAMES, _VALUES = ("name", "tool_name", "function"), ("arguments", "parameters")
_NAME = r"[^\s\"'<>\[\]{}()`:,=]+"
_DECODER = json.JSONDecoder()


class WrittenCall(NamedTuple):
    name: str
    arguments: str  # JSON; of a call that was cut off, the beginning of it
    whole: bool = True


def read_calls(
    text: str, form: CallForm, schemas: Mapping[str, Any] | None = None, *, whole: bool = True
) -> tuple[str, list[WrittenCall]]:
    """Returns the text of an answer without its tool calls, and the calls. `schemas` has those of the
    arguments of each function. An answer with a call that cannot be read is all text, unless it was cut off
    (`whole` is false): then the last call may be a part of one."""
    mark = form.mark
    place = text.find(mark) if mark else 0
    if place < 0:
        return text, []
    reader = _Reader(text, form, schemas or {}, whole)
    content, calls = text[:place], list[WrittenCall]()
    at = place if mark else reader.skip(0, re.escape(PYTHON_TAG))
    while 0 <= at < len(text):
        block, after = reader.block(at, first=not calls)
        if not block:
            if whole or not (mark or reader.begins(at)):
                return text, []
            return content, calls
        calls += block
        at = text.find(mark, after) if mark else -1
        if whole:  # else what follows may be a part of the texts around calls
            content += text[after : at if at >= 0 else len(text)].lstrip()
    return (content, calls) if calls else (text, [])


class CallStart:
    """Decides whether a text that comes is a call from its beginning, for forms without a mark."""

    def __init__(self, form: CallForm) -> None:
        before, middle = "".join(form.begins.split()), "".join(form.middle.split())
        self._pattern = re.compile(rf"{_loose(form.begins)}{_NAME}{_loose(form.middle)}")
        self._before, self._middle = before, middle

    def decide(self, text: str) -> bool | None:
        """Returns whether the text is a call; None while that is open."""
        text = text.lstrip().removeprefix(PYTHON_TAG)
        if self._pattern.match(text.lstrip()):
            return True
        compact = "".join(text.split())
        if PYTHON_TAG.startswith(compact) or self._before.startswith(compact):
            return None
        if not compact.startswith(self._before):
            return False
        rest = compact[len(self._before) :]
        name = re.match(_NAME, rest)
        if name is None:
            return None if not rest else False
        after = rest[name.end() :]
        return None if self._middle.startswith(after) and len(name[0]) <= 64 else False


class _Reader:
    """Reads calls of one form in one text."""

    def __init__(self, text: str, form: CallForm, schemas: Mapping[str, Any], whole: bool) -> None:
        self._text, self._form, self._schemas, self._whole = text, form, schemas, whole
        self._opening, self._between = _loose(form.opening), _loose(form.between)
        self._before, self._middle = _loose(form.before), _loose(form.middle)
        self._after = _loose(form.after)
        self._next = re.compile(rf"\s*{self._before}{_NAME}")
        # What follows the first tag of the closing text may be the end of the answer.
        closing = re.match(r"\s*<[^<>]*>", form.closing)
        size = closing.end() if closing else len(form.closing)
        self._closing = f"{_loose(form.closing[:size])}(?:{_loose(form.closing[size:])})?"

    def skip(self, at: int, pattern: str) -> int:
        """Returns the place after a pattern and white space, or `at` if it is not there."""
        match = re.compile(rf"\s*(?:{pattern})?").match(self._text, at)
        return match.end() if match else at

    def begins(self, at: int) -> bool:
        """Returns whether a call may begin here."""
        return CallStart(self._form).decide(self._text[at:]) is not False

    def block(self, at: int, first: bool) -> tuple[list[WrittenCall], int]:
        """Returns the calls from a place on, between an opening and a closing text, and where they end. None:
        they cannot be read."""
        calls = list[WrittenCall]()
        at = self.skip(at, self._opening)
        while True:
            call, end = self._call(at)
            if call is None:
                break
            calls.append(call)
            at = end
            if not call.whole:
                return calls, len(self._text)
            at = self.skip(at, self._after)
            following = self.skip(at, self._between)
            ended = re.compile(rf"\s*{self._closing}").match(self._text, at) if self._form.closing else None
            if ended and not self._next.match(self._text, following):
                return calls, ended.end()
            at = following
            if self._form.mark and not self._form.opening and not self._text.startswith(self._form.mark, at):
                break
        return calls, at

    def _call(self, at: int) -> tuple[WrittenCall | None, int]:
        objects = self._object(at) if self._form.pairs is None else None
        if objects is not None:
            return objects
        start = re.compile(rf"\s*{self._before}(?P<name>{_NAME}){self._middle}").match(self._text, at)
        if start is None:
            return None, at
        name = start["name"]
        if not self._whole and start.end() == start.end("name") == len(self._text):
            return None, at  # the name may go on
        if self._form.pairs is not None:
            arguments, end, whole = _Pairs(self._text, self._form, self._schemas.get(name)).read(start.end())
            if not whole and self._whole:
                return None, at
            return WrittenCall(name, arguments, whole), end
        value, end = _value(self._text, start.end())
        if isinstance(value, dict):
            return WrittenCall(name, _written(value)), end
        if self._whole or value is not None:
            return None, at
        return WrittenCall(name, self._text[start.end() :].lstrip(), False), len(self._text)

    def _object(self, at: int) -> tuple[WrittenCall | None, int] | None:
        """Reads a call that is a JSON object, whatever the order and the white space of its parts. None: the
        form has no such calls, or the object is not complete."""
        brace = self._form.before.find("{")
        if brace < 0:
            return None
        at = self.skip(at, _loose(self._form.before[:brace]))
        value, end = _value(self._text, at)
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if not isinstance(value, dict):
            return None
        named = next((value[key] for key in _NAMES if isinstance(value.get(key), str)), None)
        arguments = next((value[key] for key in _VALUES if isinstance(value.get(key), dict)), None)
        if len(value) == 1 and named is None:
            ((named, arguments),) = value.items()
        if named is None or not isinstance(arguments, dict):
            return None, at
        # What follows the arguments in the object is a part of it; what follows the object is not.
        inside = self._form.after.find("}")
        rest = self._form.after[inside + 1 :] if inside >= 0 else ""
        return WrittenCall(named, _written(arguments)), self.skip(end, _loose(rest))


class _Pairs:
    """Reads arguments that are written one by one."""

    def __init__(self, text: str, form: CallForm, schema: Any) -> None:
        assert form.pairs is not None
        self._text, self._form, self._pairs = text, form, form.pairs
        properties = schema.get("properties") if isinstance(schema, dict) else None
        self._properties = properties if isinstance(properties, dict) else {}
        self._quoted = self._pairs.is_typed and not self._pairs.other[1]
        key, text, other = _loose(self._pairs.key), _loose(self._pairs.text[0]), _loose(self._pairs.other[0])
        if self._pairs.names_types:
            other = other.replace("number", r"\w+")
        either = f"(?P<v0>{text})|(?P<v1>{other})"
        self._start = re.compile(rf"\s*{key}(?P<name>{_NAME})(?:{either})")

    def read(self, at: int) -> tuple[str, int, bool]:
        """Returns the arguments as JSON, where they end, and whether they are complete."""
        values = dict[str, Any]()
        after = re.compile(rf"\s*{_loose(self._form.after)}")
        while True:
            if after.match(self._text, at) and (self._form.after or not self._start.match(self._text, at)):
                return _written(values), at, True
            match = self._start.match(self._text, at)
            if match is None:
                return self._cut(values, None), at, False
            is_text = match.group("v0") is not None
            raw, at = self._raw(match["name"], match.end(), is_text)
            if raw is None:
                return self._cut(values, (match["name"], self._text[match.end() :])), len(self._text), False
            values[match["name"]] = self._read_value(match["name"], raw, is_text)
            between = re.compile(rf"\s*{_loose(self._pairs.between)}").match(self._text, at)
            at = between.end() if between and self._pairs.between else at

    def _raw(self, name: str, at: int, is_text: bool) -> tuple[str | None, int]:
        """Returns the text of a value, None if it does not end, and where it ends."""
        end = (self._pairs.text if is_text else self._pairs.other)[1].replace(NAME, name)
        if not end:
            place = _end_of_value(self._text, at, self._pairs.text[1])
            return (None, at) if place is None else (self._text[at:place], place)
        escaped = rf"(?:\\.|[^\\])*?{re.escape(end)}" if end == "'" else None
        if escaped is not None:
            match = re.compile(escaped, re.S).match(self._text, at)
            return (None, at) if match is None else (match[0][: -len(end)], match.end())
        place = self._text.find(end, at)
        if place >= 0:
            return self._text[at:place], place + len(end)
        match = re.compile(_loose(end)).search(self._text, at)
        return (None, at) if match is None else (self._text[at : match.start()], match.end())

    def _read_value(self, name: str, raw: str, is_text: bool) -> Any:
        quoted = re.fullmatch(r"\s*<!\[CDATA\[(.*)\]\]>\s*", raw, re.S)
        if quoted:
            return quoted[1]
        if self._pairs.is_typed and is_text:
            return _unescaped(raw) if self._pairs.text[1] == "'" else raw
        known = self._properties.get(name)
        kind = known.get("type") if isinstance(known, dict) else None
        if not self._pairs.is_typed and (kind == "string" or (isinstance(kind, list) and "string" in kind)):
            return raw
        return _literal(raw, self._pairs.text[1] if self._quoted else "")

    def _cut(self, values: dict[str, Any], last: tuple[str, str] | None) -> str:
        """Returns the beginning of arguments as JSON."""
        written = _written(values)[:-1]
        if last is None:
            return written
        return f"{written}{', ' if values else ''}{json.dumps(last[0], ensure_ascii=False)}: "


def _end_of_value(text: str, at: int, quote: str) -> int | None:
    """Returns where a value without an end of its own ends: before a comma or a bracket that closes."""
    depth = 0
    while at < len(text):
        if text.startswith(quote, at):
            at = text.find(quote, at + len(quote))
            if at < 0:
                return None
            at += len(quote)
            continue
        depth += text[at] in "([{"
        if depth == 0 and text[at] in ",)]}":
            return at
        depth -= text[at] in ")]}"
        at += 1
    return None


def _literal(raw: str, quote: str) -> Any:
    """Returns the value of a text that is JSON, Python, or JSON with other quotes; else the text itself."""
    text = raw.strip()
    value, end = _value(text, 0)
    if end == len(text) and text:
        return value
    if quote and quote != "'":
        text = re.sub(
            rf"{re.escape(quote)}(.*?){re.escape(quote)}", lambda it: json.dumps(it[1]), text, flags=re.S
        )
        text = re.sub(r"([{,]\s*)([A-Za-z_]\w*)\s*:", r'\1"\2":', text)
        value, end = _value(text, 0)
        return value if end == len(text) else raw
    try:
        value = ast.literal_eval(text)
        json.dumps(value, allow_nan=False)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return raw
    return value


def _unescaped(raw: str) -> str:
    return re.sub(r"\\(.)", lambda it: {"n": "\n", "t": "\t"}.get(it[1], it[1]), raw, flags=re.S)


def _written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _value(text: str, at: int) -> tuple[Any, int]:
    """Returns the JSON value at a place of a text and where it ends; None if there is none."""
    at += len(text[at:]) - len(text[at:].lstrip())
    try:
        _, end = _DECODER.raw_decode(text, at)
        return from_json(text[at:end], allow_inf_nan=False), end
    except (ValueError, RecursionError):
        return None, at


def _loose(text: str) -> str:
    """Returns the pattern of a text of a form, with any white space for its white space and beside tags."""
    pattern = r"\s*".join(map(re.escape, re.split(r"\s+|(?<=>)|(?=<)", text)))
    for mark, meaning in ((ID, r"[\w-]*"), (INDEX, r"\d*"), (NAME, _NAME)):
        pattern = pattern.replace(re.escape(mark), meaning)
    return pattern
