"""Tool calls: the grammar of calls, and the calls in what the model has written.

The grammar holds the arguments of every call to the schema of the tool. When `tool_choice` demands a call,
the model can write that and nothing else; otherwise it may write text, calls, or a text and then calls.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from pydantic import model_validator
from pydantic_core import from_json
from typing_extensions import TypedDict

from glassloop.decode.compiled import Compiled
from glassloop.decode.option import children
from glassloop.decode.sampling import CONSTRAINTS, Sampling
from glassloop.errors import SamplingError
from glassloop.record.run import Run
from glassloop.server.http.body_fields import Name, check_type
from glassloop.server.http.errors import invalid
from glassloop.server.openai.call_forms import HERMES, PLAIN, PYTHON_TAG, CallForm, form_of
from glassloop.server.openai.conversation import Tool
from glassloop.server.sampling_options import Body, make_sampling
from glassloop.server.service import Service
from glassloop.text.tokenizer import Tokenizer
from glassloop.util.shown import shown

# The spaces of the arguments, as templates write them. A small model may write white space without an end.
_SPACES = {"x-guidance": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}}
_SPECIALS = re.compile(r"(<[^<>\s]+>|\[[A-Z_]+\])")  # texts that may be special tokens
_NAME = r"([^\s\"<>\[\]{}`]+)"


class FunctionName(Body):
    name: Name


_FUNCTION = 'send auto, none, required or {"type": "function", "function": {"name": "…"}}'


class NamedTool(Body):
    type: Literal["function"]
    function: FunctionName

    @model_validator(mode="before")
    @classmethod
    def _is_function(cls, value: Any) -> Any:
        return check_type(value, ("function",), _FUNCTION)


class CalledFunction(TypedDict):
    name: str
    arguments: str


class ToolCall(TypedDict):
    id: str
    type: Literal["function"]
    function: CalledFunction


_HAS_CALLS = re.compile(r"^args_0: %json ", re.M)  # in a grammar that `ToolUse` has made


class ToolUse:
    """The tools of one request and what is done with them. `choice` is `auto`, `required` or the name of a
    function."""

    def __init__(
        self, tokenizer: Tokenizer, tools: Sequence[Tool], choice: str | FunctionName, *, parallel: bool
    ) -> None:
        assert tokenizer.chat_template is not None
        self.demanded = choice != "auto"
        form = form_of(tokenizer.chat_template)
        self._form = form or (PLAIN if self.demanded else HERMES)
        self._has_grammar = form is not None or self.demanded
        self._most = None if parallel else 1
        self._tokenizer = tokenizer
        self._tools = _chosen(tools, choice)
        if self.demanded and not tools:
            raise invalid("tool_choice", "tool_choice is required, and tools is empty")

    def compile(self, service: Service, options: dict[str, Any]) -> tuple[Sampling, Compiled]:
        """Returns the options with the grammar of the calls, and what is built from them. Calls that are not
        demanded have no grammar if the text has another one, if their form is not known, or if the schema of
        a tool cannot be enforced."""
        constraint = next((name for name in CONSTRAINTS if name in options), None)
        if self.demanded and constraint is not None:
            message = f"tool_choice demands a call; {constraint} or response_format cannot be given with it"
            raise invalid("tool_choice", message)
        may_have = self._has_grammar and constraint is None and not options.get("ignore_eos")
        if not may_have and not self.demanded:
            return _build(service, options)
        try:
            return _build(service, {**options, "grammar": self._grammar()})
        except SamplingError as error:
            if error.field != "grammar":
                raise
            if self.demanded:
                raise invalid("tools", f"tools has parameters that cannot be enforced: {error}") from None
        return _build(service, options)

    def _grammar(self) -> str:
        """Returns the grammar of an answer in Lark's notation."""
        form = self._form
        before, middle, after = form.call
        rules = []
        for place, tool in enumerate(self._tools):
            name = json.dumps(_name(tool), ensure_ascii=False) if form.is_json else _name(tool)
            texts = json.dumps(name, ensure_ascii=False), self._literal(middle), self._literal(after)
            rules.append(f"call_{place}: {texts[0]} {texts[1]} args_{place} {texts[2]}")
            parameters = json.dumps({**_closed(_parameters(tool)), **_SPACES}, ensure_ascii=False)
            rules.append(f"args_{place}: %json {parameters}")
        one = f"({' | '.join(f'call_{place}' for place in range(len(self._tools)))})"
        is_one = self.demanded or self._most == 1
        more = "" if is_one else f"({self._literal(form.between + before)} {one})*"
        rest = f"{one} {more} {self._literal(form.closing)}"
        opening = form.opening + before
        if self.demanded:
            return "\n".join([f"start: {self._literal(opening)} {rest}", *rules])
        return "\n".join([*self._text_or(opening, rest), "TEXT: /(.|\\n)*/", *rules])

    def _text_or(self, opening: str, rest: str) -> list[str]:
        """Returns the rules of an answer that is text or calls, which are `opening` and `rest`."""
        form = self._form
        if form.first:
            tag = self._tokenizer.id_of(PYTHON_TAG)
            may_tag = f"<[{tag}]>?" if tag in self._tokenizer.special_ids else ""
            begun = re.escape(opening).replace("/", r"\/")
            return [
                f"start: OTHER | {may_tag} {self._literal(opening)} {rest}",
                f"OTHER: TEXT & ~/{begun}(.|\\n)*/",
            ]
        if self._tokenizer.id_of(form.mark) in self._tokenizer.special_ids:  # which is no text
            return [f"start: TEXT | TEXT? {self._literal(opening)} {rest}"]
        after = self._literal(opening.removeprefix(form.mark))
        return [
            f"start: TEXT | begin {after} {rest}",
            f"begin[lazy]: TEXT {json.dumps(form.mark, ensure_ascii=False)}",
        ]

    def _literal(self, text: str) -> str:
        """Returns a text in Lark's notation, with its special tokens as such."""
        parts = []
        for part in filter(None, _SPECIALS.split(text)):
            token = self._tokenizer.id_of(part)
            is_special = token in self._tokenizer.special_ids
            parts.append(f"<[{token}]>" if is_special else json.dumps(part, ensure_ascii=False))
        return " ".join(parts)

    def split(self, run: Run, text: str, whole: bool) -> tuple[str, list[ToolCall]]:
        """Returns the text and the tool calls of an answer. One that is not whole, since it was cut off, is
        all text."""
        return _split(run, text, self._form, self._most) if whole else (text, [])

    def stream(self) -> CallStream:
        return CallStream(self._form, self.demanded)


def tools_in_use(
    service: Service,
    tools: Sequence[Tool] | None,
    choice: NamedTool | str | None,
    parallel: bool | None,
) -> ToolUse | None:
    """Returns the tools of a request, None if there are none that may be called."""
    demanded = choice not in (None, "auto", "none")
    if choice == "none" or not (tools or demanded):
        return None
    name = choice.function if isinstance(choice, NamedTool) else choice or "auto"
    return ToolUse(service.llm.tokenizer, tools or (), name, parallel=parallel is not False)


def recorded_parts(tokenizer: Tokenizer, run: Run) -> tuple[str, list[ToolCall]]:
    """Returns the text and the tool calls of a recorded answer. The record has no tools; that it had some is
    known by the grammar of their calls."""
    if not _HAS_CALLS.search(run.sampling.grammar or "") or tokenizer.chat_template is None:
        return run.answer, []
    if run.finish_reason not in ("stop", "repetition"):  # it was cut off
        return run.answer, []
    return _split(run, run.answer, form_of(tokenizer.chat_template) or PLAIN)


def _split(run: Run, text: str, form: CallForm, most: int | None = None) -> tuple[str, list[ToolCall]]:
    """Returns the text and the tool calls of an answer that is whole."""
    content, functions = find_calls(text, form)
    return content, [
        ToolCall(id=f"call_{run.id}_{place}", type="function", function=function)
        for place, function in enumerate(functions[:most])
    ]


def build(service: Service, options: dict[str, Any], tools: ToolUse | None) -> tuple[Sampling, Compiled]:
    """Returns the options of a request that may have tools, checked, and what is built from them."""
    return _build(service, options) if tools is None else tools.compile(service, options)


def _build(service: Service, options: dict[str, Any]) -> tuple[Sampling, Compiled]:
    sampling = make_sampling(options, service.settings, defaults=service.llm.default_sampling)
    return sampling, service.llm.compile(sampling)


def _chosen(tools: Sequence[Tool], choice: str | FunctionName) -> Sequence[Tool]:
    """Returns the tools that may be called."""
    if isinstance(choice, str):
        return tools
    named = [tool for tool in tools if tool.function.get("name") == choice.name]
    if not named:
        raise invalid("tool_choice", f"tool_choice names {shown(choice.name)}, which is no tool")
    return named[:1]


def _name(tool: Tool) -> str:
    name = tool.function.get("name")
    if not isinstance(name, str):
        raise invalid("tools", "tools has a function without a name")
    return name


def _parameters(tool: Tool) -> dict[str, Any]:
    parameters = tool.function.get("parameters") or {"type": "object"}
    if not isinstance(parameters, dict):
        raise invalid("tools", f"tools has parameters {shown(parameters)}; a JSON schema is expected")
    return parameters


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns a schema whose objects have declared properties only, unless it says otherwise: a function
    takes no others, and a small model would invent them without an end. Schemas that are put together from
    parts are left as they are."""
    for each in _objects(schema):
        parts = each.get("allOf")
        if (isinstance(parts, list) and len(parts) > 1) or "unevaluatedProperties" in each:
            return schema
    return {**_close(schema)}


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            yield each
        waiting += children(each)


def _close(value: Any) -> Any:
    if isinstance(value, list):
        return [_close(each) for each in value]
    if not isinstance(value, dict):
        return value
    made = {
        # The values of these are no schemas.
        name: each if name in ("enum", "const", "default", "examples", "required") else _close(each)
        for name, each in value.items()
    }
    is_object = value.get("type") == "object" and isinstance(value.get("properties"), dict)
    is_open = "additionalProperties" in value or "patternProperties" in value
    return {**made, "additionalProperties": False} if is_object and not is_open else made


# ── calls in a text ────────────────────────────────────────────────────────────────────────────────────────


def find_calls(text: str, form: CallForm) -> tuple[str, list[CalledFunction]]:
    """Returns the text of an answer without its tool calls, and the calls. An answer with a call that cannot
    be read is all text."""
    if form.first:
        begun = text.strip().removeprefix(PYTHON_TAG)
        content, blocks = ("", [begun]) if _FIRST_CALL.match(begun) else (text, [])
    else:
        content, *blocks = text.split(form.mark)
    calls = []
    for block in blocks:
        block_calls, after = _read_json(block, form) if form.is_json else _read_named(block, form)
        if not block_calls:
            return text, []
        calls += block_calls
        content += after.lstrip()
    return content, calls


_FIRST_CALL = re.compile(r"\s*\{\s*\"name\"\s*:")
_DECODER = json.JSONDecoder()


def _read_json(block: str, form: CallForm) -> tuple[list[CalledFunction], str]:
    """Returns the calls at the beginning of a text, each a JSON object, and what follows them. No calls: they
    cannot be read."""
    calls: list[CalledFunction] = []
    at = 0
    while not calls or (form.first and re.match(r"\s*;?\s*\{", block[at:])):
        at = re.compile(r"[\s;]*").match(block, at).end()  # type: ignore[union-attr]
        value, at = _value(block, at)
        for each in value if isinstance(value, list) else [value]:
            named = each if isinstance(each, dict) else {}
            call = _call(named.get("name"), named.get("arguments", named.get("parameters")))
            if call is None:
                return [], block
            calls.append(call)
        if not calls:
            return [], block
    return _without_end(calls, block, at, form)


def _read_named(block: str, form: CallForm) -> tuple[list[CalledFunction], str]:
    """Returns the calls at the beginning of a text, each a name and its arguments, and what follows."""
    head, middle, after = (_loose(each) for each in (form.call[0].removeprefix(form.mark), *form.call[1:]))
    start = re.compile(rf"\s*{head}{_NAME}{middle}\s*")
    ending = re.compile(rf"\s*(?:{after})?")
    calls: list[CalledFunction] = []
    at = 0
    while (match := start.match(block, at)) and (head or not calls):
        value, at = _value(block, match.end())
        call = _call(match[1], value)
        if call is None:
            return [], block
        calls.append(call)
        at = ending.match(block, at).end()  # type: ignore[union-attr]
    return _without_end(calls, block, at, form)


def _loose(text: str) -> str:
    """Returns the pattern of a text with any white space for its white space."""
    return r"\s*".join(map(re.escape, re.split(r"\s+", text)))


def _without_end(
    calls: list[CalledFunction], block: str, at: int, form: CallForm
) -> tuple[list[CalledFunction], str]:
    """Returns the calls and the text after their end, which may be missing where the text ends."""
    after = block[at:].lstrip()
    if not form.end or not after:
        return calls, after
    return (calls, after.removeprefix(form.end)) if after.startswith(form.end) else ([], block)


def _value(text: str, at: int) -> tuple[Any, int]:
    """Returns the JSON value at a place of a text and where it ends; None if there is none."""
    try:
        _, end = _DECODER.raw_decode(text, at)
        return from_json(text[at:end], allow_inf_nan=False), end
    except (ValueError, RecursionError):
        return None, at


def _call(name: Any, arguments: Any) -> CalledFunction | None:
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return None
    return CalledFunction(name=name, arguments=json.dumps(arguments, ensure_ascii=False))


class CallStream:
    """The text of an answer as it is streamed: from where a call may begin it is held back to the end."""

    def __init__(self, form: CallForm, demanded: bool = False) -> None:
        self._form = form
        self._is_call, self._is_text = demanded, False
        self._held = ""
        self.sent = 0  # characters

    def add(self, text: str) -> str:
        """Returns what can be sent after this text has come."""
        if self._is_call:
            return ""
        self._held += text
        place = self._first() if self._form.first else self._held.find(self._form.mark)
        self._is_call = place >= 0
        if not self._is_call:
            place = len(self._held) - (0 if self._is_text else self._begun())
        ready, self._held = self._held[:place], self._held[place:]
        self.sent += len(ready)
        return ready

    def _first(self) -> int:
        """Returns 0 if the text is a call from its beginning, -1 if it is not, or not yet."""
        compact = "".join(self._held.split())
        begun = compact.removeprefix(PYTHON_TAG)
        if not self._is_text and begun.startswith(_COMPACT_CALL):
            return 0
        whole = PYTHON_TAG + _COMPACT_CALL
        self._is_text = self._is_text or not (_COMPACT_CALL.startswith(compact) or whole.startswith(compact))
        return -1

    def _begun(self) -> int:
        """Returns how many characters at the end of the text may be the beginning of a call."""
        if self._form.first:
            return len(self._held)
        mark = self._form.mark
        return next((size for size in range(len(mark) - 1, 0, -1) if self._held.endswith(mark[:size])), 0)


_COMPACT_CALL = '{"name":'
