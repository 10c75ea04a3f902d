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
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from glassloop.decode.compiled import Compiled
from glassloop.decode.option import children
from glassloop.decode.sampling import CONSTRAINTS, Sampling
from glassloop.errors import SamplingError
from glassloop.record.run import Run
from glassloop.server.http.body_fields import MOST_TOOLS, Name, check_type, many
from glassloop.server.http.errors import invalid
from glassloop.server.openai.conversation import Tool
from glassloop.server.sampling_options import Body, bounded_spaces, make_sampling
from glassloop.server.service import Service
from glassloop.text.answer_form import begun
from glassloop.text.call_form import HERMES, PLAIN, CallForm
from glassloop.text.call_grammar import CallGrammar, Function
from glassloop.text.call_reader import CallStart, read_calls
from glassloop.text.template_forms import forms_of
from glassloop.text.tokenizer import Tokenizer
from glassloop.util.shown import shown


class FunctionName(Body):
    name: Name


_FUNCTION = 'send auto, none, required or {"type": "function", "function": {"name": "…"}}'


class AllowedFunction(Body):
    type: Literal["function"]
    function: FunctionName


class AllowedTools(Body):
    mode: Literal["auto", "required"]
    tools: many(AllowedFunction, MOST_TOOLS, least=1)  # type: ignore[valid-type]


class NamedTool(Body):
    """The function that is to be called, or those of the tools that may be."""

    type: Literal["function", "allowed_tools"]
    function: FunctionName | None = None
    allowed_tools: AllowedTools | None = None

    @model_validator(mode="before")
    @classmethod
    def _is_function(cls, value: Any) -> Any:
        return check_type(value, ("function", "allowed_tools"), _FUNCTION)

    @model_validator(mode="after")
    def _has_its_own(self) -> NamedTool:
        missing = self.function is None if self.type == "function" else self.allowed_tools is None
        if missing or (self.function is not None and self.allowed_tools is not None):
            raise PydanticCustomError(
                "missing_choice", "has to have {type}, and nothing else, with this type", {"type": self.type}
            )
        return self


class CalledFunction(TypedDict):
    name: str
    arguments: str


class ToolCall(TypedDict):
    id: str
    type: Literal["function"]
    function: CalledFunction


_HAS_CALLS = re.compile(r"^args_0: ", re.M)  # in a grammar that `ToolUse` has made


class ToolUse:
    """The tools of one request and what is done with them. `choice` is `auto`, `required` or the name of a
    function; `parallel` says whether an answer may have several calls, None if the client does not say."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        tools: Sequence[Tool],
        choice: str | FunctionName,
        *,
        parallel: bool | None,
    ) -> None:
        forms = forms_of(tokenizer)
        assert forms is not None
        self.demanded = choice != "auto"
        form = forms.tools.form
        self._form = form or (PLAIN if self.demanded else HERMES)
        self._has_grammar = form is not None or self.demanded
        self._several = parallel is not False and (
            not self.demanded or (parallel is True and choice == "required")
        )
        self._tokenizer = tokenizer
        self._tools = _chosen(tools, choice)
        self._schemas = {tool.function.get("name", ""): tool.function.get("parameters") for tool in tools}
        if self.demanded and not tools:
            raise invalid("tool_choice", "tool_choice is required, and tools is empty")

    def compile(self, service: Service, options: dict[str, Any]) -> tuple[Sampling, Compiled]:
        """Returns the options with the grammar of the calls, and what is built from them. A JSON schema is
        for answers that are no calls. Calls that are not demanded have no grammar if the text has another
        constraint, if their form is not known, or if the schema of a tool cannot be enforced."""
        schema = bounded_spaces(options.get("json_schema"))
        constraint = next((name for name in CONSTRAINTS[1:] if name in options), None)
        if self.demanded and constraint is not None:
            raise invalid("tool_choice", f"tool_choice demands a call; {constraint} cannot be given with it")
        may_have = self._has_grammar and constraint is None and not options.get("ignore_eos")
        if not may_have and not self.demanded:
            return _build(service, options)
        plain = {name: value for name, value in options.items() if name != "json_schema"}
        try:
            return _build(service, {**plain, "grammar": self._grammar(schema)})
        except SamplingError as error:
            if error.field != "grammar":
                raise
            if self.demanded:
                raise invalid("tools", f"tools has parameters that cannot be enforced: {error}") from None
        return _build(service, options)

    def _grammar(self, schema: Any = None) -> str:
        """Returns the grammar of an answer in Lark's notation; `schema` is that of one without calls."""
        functions = [Function(_name(tool), _closed(_parameters(tool))) for tool in self._tools]
        grammar = CallGrammar(self._form, self._tokenizer, functions)
        if self.demanded:
            return grammar.demanded(self._several)
        answer = None if schema is None else f"%json {json.dumps(schema, ensure_ascii=False)}"
        return grammar.optional(self._several, answer)

    def split(self, run: Run, text: str, whole: bool) -> tuple[str, list[ToolCall]]:
        """Returns the text and the tool calls of an answer. Of one that is not whole, since it was cut off,
        the last call may be a part of one."""
        return _split(run, text, self._form, self._schemas, whole, None if self._several else 1)

    def stream(self) -> CallStream:
        return CallStream(self._form, self.demanded)


def tools_in_use(
    service: Service,
    tools: Sequence[Tool] | None,
    choice: NamedTool | str | None,
    parallel: bool | None,
) -> ToolUse | None:
    """Returns the tools of a request, None if there are none that may be called."""
    if choice == "none" or not (tools or choice not in (None, "auto")):
        return None
    tokenizer = service.llm.tokenizer
    if not isinstance(choice, NamedTool):
        return ToolUse(tokenizer, tools or (), choice or "auto", parallel=parallel)
    if choice.allowed_tools is None:
        assert choice.function is not None
        return ToolUse(tokenizer, tools or (), choice.function, parallel=parallel)
    allowed = [_chosen(tools or (), each.function)[0] for each in choice.allowed_tools.tools]
    return ToolUse(tokenizer, allowed, choice.allowed_tools.mode, parallel=parallel)


def recorded_parts(tokenizer: Tokenizer, run: Run) -> tuple[str, list[ToolCall]]:
    """Returns the text and the tool calls of a recorded answer. The record has no tools; that it had some is
    known by the grammar of their calls."""
    forms = forms_of(tokenizer)
    if not _HAS_CALLS.search(run.sampling.grammar or "") or forms is None:
        return run.answer, []
    whole = run.finish_reason in ("stop", "repetition")
    return _split(run, run.answer, forms.tools.form or PLAIN, {}, whole)


def _split(
    run: Run, text: str, form: CallForm, schemas: dict[str, Any], whole: bool, most: int | None = None
) -> tuple[str, list[ToolCall]]:
    """Returns the text and the tool calls of an answer that has ended."""
    content, calls = read_calls(text, form, schemas, whole=whole)
    return content, [
        ToolCall(
            id=f"call_{run.id}_{place}",
            type="function",
            function=CalledFunction(name=call.name, arguments=call.arguments),
        )
        for place, call in enumerate(calls[:most])
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


class CallStream:
    """The text of an answer as it is streamed: from where a call may begin it is held back to the end."""

    def __init__(self, form: CallForm, demanded: bool = False) -> None:
        self._mark = form.mark
        self._start = CallStart(form)
        self._is_call, self._is_text = demanded, False
        self._held = ""
        self.sent = 0  # characters

    def add(self, text: str) -> str:
        """Returns what can be sent after this text has come."""
        if self._is_call:
            return ""
        self._held += text
        place = self._held.find(self._mark) if self._mark else self._first()
        self._is_call = place >= 0
        if not self._is_call:
            place = len(self._held) - (0 if self._is_text else self._begun())
        ready, self._held = self._held[:place], self._held[place:]
        self.sent += len(ready)
        return ready

    def _first(self) -> int:
        """Returns 0 if the text is a call from its beginning, -1 if it is not, or not yet."""
        if self._is_text:
            return -1
        decided = self._start.decide(self._held)
        self._is_text = decided is False
        return 0 if decided else -1

    def _begun(self) -> int:
        """Returns how many characters at the end of the text may be the beginning of a call."""
        return begun(self._held, self._mark) if self._mark else len(self._held)
