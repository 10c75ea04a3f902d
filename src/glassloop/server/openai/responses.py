"""`POST /v1/responses`: OpenAI's newer endpoint, for text and function calls. `kept_responses` has those that
were given before."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import Discriminator, Field, Tag, model_validator
from starlette.responses import Response
from typing_extensions import TypedDict

from glassloop.record.run import Run
from glassloop.record.run_name import MESSAGE, RESPONSE
from glassloop.record.token import Token
from glassloop.server.http.bodies import BodyRoute
from glassloop.server.http.body_fields import (
    MOST_MESSAGES,
    MOST_PARTS,
    MOST_TOOLS,
    Name,
    Whole,
    check_type,
    many,
    text_or,
    word_or,
)
from glassloop.server.http.errors import ERRORS, APIError, invalid, unsupported
from glassloop.server.http.streaming import STREAMED, api_answer, event
from glassloop.server.openai.conversation import Effort, Message, TextPart, Tool, effort_values
from glassloop.server.openai.generation import (
    Generation,
    TokenLogprob,
    add_format,
    add_top_logprobs,
    finish_reason,
    respond,
    thought_tokens,
    token_logprob,
)
from glassloop.server.openai.tool_calls import (
    AllowedFunction,
    AllowedTools,
    FunctionName,
    NamedTool,
    ToolCall,
)
from glassloop.server.openai.turn import AssistantTurn
from glassloop.server.sampling_options import Body, SamplingOptions, options_of
from glassloop.server.service import Service

LOGPROBS = "message.output_text.logprobs"
REASONING = "rs_"  # before the id of a run: the item of its thoughts


_ITEMS = ("message", "function_call", "function_call_output", "reasoning")
_INSTEAD = 'send messages, such as {"role": "user", "content": "…"}, function_call or function_call_output'


class InputItem(Body):
    """An item of the input that may be one of an earlier answer."""

    id: str | None = None
    status: Literal["completed", "incomplete", "in_progress"] | None = None


class InputMessage(InputItem):
    type: Literal["message"] | None = None
    role: Literal["system", "developer", "user", "assistant"]
    content: text_or(many(TextPart, MOST_PARTS))  # type: ignore[valid-type]
    phase: Name | None = None

    @model_validator(mode="before")
    @classmethod
    def _is_known(cls, value: Any) -> Any:
        return check_type(value, _ITEMS, _INSTEAD)


class FunctionCall(InputItem):
    type: Literal["function_call"]
    call_id: Name
    name: Name
    arguments: str
    namespace: None = None
    caller: None = None
    created_by: None = None


class FunctionCallOutput(InputItem):
    type: Literal["function_call_output"]
    call_id: Name
    output: text_or(many(TextPart, MOST_PARTS))  # type: ignore[valid-type]
    name: Name | None = None
    caller: None = None
    created_by: None = None


class Reasoning(InputItem):
    """What the model has thought, for templates that write it."""

    type: Literal["reasoning"]
    summary: many(Any, MOST_PARTS) | None = None  # type: ignore[valid-type]
    content: many(Any, MOST_PARTS) | None = None  # type: ignore[valid-type]
    encrypted_content: str | None = None

    @property
    def text(self) -> str | None:
        """The thoughts as one text, None if the item has none."""
        parts = [each.get("text") for each in self.content or () if isinstance(each, dict)]
        return "".join(part for part in parts if isinstance(part, str)) or None


def _kind_of_item(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return {"function_call": "Call", "function_call_output": "Output", "reasoning": "Reasoning"}.get(
        kind if isinstance(kind, str) else "", "Message"
    )


Item = Annotated[
    Annotated[InputMessage, Tag("Message")]
    | Annotated[FunctionCall, Tag("Call")]
    | Annotated[FunctionCallOutput, Tag("Output")]
    | Annotated[Reasoning, Tag("Reasoning")],
    Discriminator(_kind_of_item),
]


class FunctionTool(Body):
    type: Literal["function"]
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _is_function(cls, value: Any) -> Any:
        return check_type(value, ("function",), "only functions that the client calls are tools here")


class AllowedName(Body):
    type: Literal["function"]
    name: Name


class NamedFunction(Body):
    """The function that is to be called, or those of the tools that may be."""

    type: Literal["function", "allowed_tools"]
    name: Name | None = None
    mode: Literal["auto", "required"] | None = None
    tools: many(AllowedName, MOST_TOOLS, least=1) | None = None  # type: ignore[valid-type]

    @model_validator(mode="before")
    @classmethod
    def _is_function(cls, value: Any) -> Any:
        instead = 'send auto, none, required or {"type": "function", "name": "…"}'
        return check_type(value, ("function", "allowed_tools"), instead)

    def chat(self) -> NamedTool:
        """Returns the choice in the form of chat."""
        if self.type == "function":
            if self.name is None or self.tools is not None:
                raise invalid("tool_choice", "tool_choice has to have a name, and no tools, with this type")
            return NamedTool(type="function", function=FunctionName(name=self.name))
        if self.tools is None or self.mode is None or self.name is not None:
            raise invalid("tool_choice", "tool_choice has to have a mode and tools with this type")
        functions = [
            AllowedFunction(type="function", function=FunctionName(name=each.name)) for each in self.tools
        ]
        return NamedTool(type="allowed_tools", allowed_tools=AllowedTools(mode=self.mode, tools=functions))


class TextFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class TextOptions(Body):
    format: TextFormat | None = None
    verbosity: Name | None = None  # accepted, as in chat


class ReasoningOptions(Body):
    effort: Effort | None = None  # for templates that have a variable for it
    summary: Name | None = None  # accepted: thoughts are given as they are
    generate_summary: Name | None = None


class ResponseStreamOptions(Body):
    include_obfuscation: bool | None = None  # accepted: it never changes what a client reads


class ResponsesBody(SamplingOptions):  # type: ignore[misc, valid-type]
    """OpenAI's parameters, and the fields of Sampling, with the exception of `n`, `logprobs` and
    `max_tokens`, which have other names here or no place."""

    input: text_or(many(Item, MOST_MESSAGES))  # type: ignore[valid-type]
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: Whole | None = Field(None, ge=1)
    text: TextOptions | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    # Reasoning is accepted, since clients ask for it whatever the model; there is none.
    include: many(Literal["message.output_text.logprobs", "reasoning.encrypted_content"], 16) | None = None  # type: ignore[valid-type]
    top_logprobs: int | None = Field(None, ge=0, le=20)
    metadata: dict[str, str] | None = None
    tools: many(FunctionTool, MOST_TOOLS) | None = None  # type: ignore[valid-type]
    tool_choice: word_or(Literal["auto", "none", "required"], NamedFunction) | None = None  # type: ignore[valid-type]
    parallel_tool_calls: bool | None = None
    n: Literal[1] | None = None
    logprobs: None = None
    max_tokens: None = None
    # Accepted because they ask for nothing that changes an answer.
    background: Literal[False] | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    service_tier: Name | None = None
    reasoning: ReasoningOptions | None = None
    store: bool | None = None
    truncation: Literal["disabled", "auto"] | None = None
    user: str | None = None


ResponseStatus = Literal["completed", "incomplete", "in_progress", "failed", "cancelled"]


@api_answer
class ResponseAnswer(TypedDict):
    id: str
    object: Literal["response"]
    created_at: int
    status: ResponseStatus
    error: dict[str, Any] | None
    incomplete_details: dict[str, Any] | None
    instructions: str | None
    max_output_tokens: int | None
    model: str
    output: list[dict[str, Any]]
    parallel_tool_calls: bool
    previous_response_id: str | None
    temperature: float
    top_p: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    truncation: str
    metadata: dict[str, str]
    usage: dict[str, Any] | None


def router(service: Service) -> APIRouter:
    routes = APIRouter(route_class=BodyRoute, tags=["OpenAI"], responses=ERRORS)

    @routes.post("/v1/responses", response_model=ResponseAnswer, operation_id="responses", responses=STREAMED)
    async def responses(request: Request, body: ResponsesBody) -> Response:
        return await respond(service, request, body, _Response)

    return routes


class _Response(Generation):
    def __init__(self, service: Service, body: ResponsesBody) -> None:
        if body.given.get("prompt_logprobs"):
            raise unsupported(
                "prompt_logprobs", "this endpoint has no place for it; use /v1/chat/completions"
            )
        if body.truncation == "auto":
            raise unsupported("truncation", "the input is never cut; send as much as the context holds")
        self._body = body
        self._wants_logprobs = LOGPROBS in (body.include or ())
        self._format = body.text.format if body.text is not None else None
        messages = _messages(service, body)
        options = options_of(body)
        if body.max_output_tokens is not None:
            options["max_tokens"] = body.max_output_tokens
        add_top_logprobs(options, body.top_logprobs, self._wants_logprobs, f"include: [{LOGPROBS}]")
        if self._format is not None:
            add_format(options, self._format.type, self._format.schema_, "text.format.schema")
        self._turn = AssistantTurn(
            service,
            messages,
            options,
            tools=_tools(body),
            tool_choice=_choice(body),
            parallel=body.parallel_tool_calls,
            values=effort_values(service, body.reasoning.effort if body.reasoning else None),
            field="input",
            note="" if body.instructions is None else ", instructions included",
        )
        self._sampling = self._turn.sampling
        super().__init__(service, [self._turn.request])
        self._run_id = self.runs[0].id
        self._created = int(time.time())
        self._sequence_number = -1
        self._place = {"item_id": f"{MESSAGE}{self._run_id}", "output_index": 0, "content_index": 0}
        self._thoughts = {"item_id": f"{REASONING}{self._run_id}", "output_index": 0, "content_index": 0}
        self._has_thought = False  # the events of the reasoning
        self._stream = self._turn.stream()
        self._has_begun = False  # the events of the message

    def answer(self, runs: list[Run]) -> ResponseAnswer:
        return self._response(runs[0])

    # ── as it comes ────────────────────────────────────────────────────────────────────────────────────────

    def begin(self, runs: list[Run]) -> bytes:
        started = self._event("response.created", response=self._response(None))
        started += self._event("response.in_progress", response=self._response(None))
        later = self._turn.tools or self.runs[0].form  # there may be no text, or thoughts before it
        return started if later else started + self._begin_message()

    def _begin_message(self) -> bytes:
        """Returns the events before the first text. With tools there may be no text at all."""
        if self._has_begun:
            return b""
        self._has_begun = True
        empty = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        place = self._place["output_index"] = int(self._has_thought)
        added = self._event("response.output_item.added", output_index=place, item=self._message(None))
        return added + self._event("response.content_part.added", part=empty, **self._place)

    def token(self, index: int, run: Run, token: Token) -> bytes:
        thought, text = self._stream.add(token)
        events = self._think(thought) if thought else b""
        plain = self._turn.tools is None and run.form is None
        logprobs = self._logprobs([token]) if plain or text else []
        return events + self._begin_message() + self._delta(text, logprobs) if text or logprobs else events

    def end(self, index: int, run: Run) -> bytes:
        thought, rest, _ = self._stream.end(run)
        events = self._think(thought) if thought else b""
        return events + self._begin_message() + self._delta(rest, []) if rest else events

    def _think(self, thought: str) -> bytes:
        """Returns the events of a piece of the thoughts."""
        events = b""
        if not self._has_thought:
            self._has_thought = True
            item = {**reasoning_item(self._run_id, ""), "content": [], "status": "in_progress"}
            events += self._event("response.output_item.added", output_index=0, item=item)
            empty = {"type": "reasoning_text", "text": ""}
            events += self._event("response.content_part.added", part=empty, **self._thoughts)
        return events + self._event("response.reasoning_text.delta", delta=thought, **self._thoughts)

    def _thought_done(self, item: dict[str, Any]) -> bytes:
        (part,) = item["content"]
        return (
            self._event("response.reasoning_text.done", text=part["text"], **self._thoughts)
            + self._event("response.content_part.done", part=part, **self._thoughts)
            + self._event("response.output_item.done", output_index=0, item=item)
        )

    async def finish(self) -> bytes:
        return await self.service.threads.render(self.runs, self._finish)

    def _finish(self) -> bytes:
        run = self.runs[0]
        response = self._response(run)
        events = b""
        for place, item in enumerate(response["output"]):
            if item["type"] == "reasoning":
                events += self._thought_done(item)
            else:
                events += (
                    self._message_done(run, item) if item["type"] == "message" else self._call(place, item)
                )
        return events + self._event(f"response.{response['status']}", response=response)

    def _message_done(self, run: Run, item: dict[str, Any]) -> bytes:
        (part,) = item["content"]
        text = {"text": part["text"], "logprobs": part["logprobs"]}
        return (
            self._begin_message()
            + self._event("response.output_text.done", **text, **self._place)
            + self._event("response.content_part.done", part=part, **self._place)
            + self._event("response.output_item.done", output_index=self._place["output_index"], item=item)
        )

    def _call(self, place: int, item: dict[str, Any]) -> bytes:
        """Returns the events of a function call, which is sent when it is complete."""
        where = {"item_id": item["id"], "output_index": place}
        function = {"name": item["name"], "arguments": item["arguments"]}
        begun = {**item, "arguments": "", "status": "in_progress"}
        return (
            self._event("response.output_item.added", output_index=place, item=begun)
            + self._event("response.function_call_arguments.delta", delta=item["arguments"], **where)
            + self._event("response.function_call_arguments.done", **function, **where)
            + self._event("response.output_item.done", output_index=place, item=item)
        )

    def failed(self, error: APIError) -> bytes:
        detail = {"code": error.code or "server_error", "message": error.message}
        response = {**self._response(None), "status": "failed", "error": detail}
        return self._event("response.failed", response=response)

    def _delta(self, text: str, logprobs: list[TokenLogprob]) -> bytes:
        return self._event("response.output_text.delta", delta=text, logprobs=logprobs, **self._place)

    def _event(self, kind: str, **details: Any) -> bytes:
        self._sequence_number += 1
        return event(kind, {"type": kind, "sequence_number": self._sequence_number, **details})

    # ── shapes ─────────────────────────────────────────────────────────────────────────────────────────────

    def _response(self, run: Run | None) -> ResponseAnswer:
        """Returns the response with a run that has ended, or with None as it is at the beginning."""
        form, choice = self._format, self._body.tool_choice
        return ResponseAnswer(
            id=f"{RESPONSE}{self._run_id}",
            object="response",
            created_at=self._created,
            status=response_status(run),
            error=None,
            incomplete_details=incomplete_details(run),
            instructions=self._body.instructions,
            max_output_tokens=self._body.max_output_tokens,
            model=self.model,
            output=[] if run is None else self._output(run),
            parallel_tool_calls=self._body.parallel_tool_calls is not False,
            previous_response_id=None,
            temperature=self._sampling.temperature,
            top_p=self._sampling.top_p,
            text={
                "format": {"type": "text"}
                if form is None
                else form.model_dump(by_alias=True, exclude_none=True)
            },
            tool_choice=choice.model_dump(exclude_none=True)
            if isinstance(choice, NamedFunction)
            else choice or "auto",
            tools=[tool.model_dump() for tool in self._body.tools or ()],
            truncation="disabled",
            metadata=self._body.metadata or {},
            usage=None if run is None else usage_shape(run),
        )

    def _output(self, run: Run) -> list[dict[str, Any]]:
        """Returns the items of an answer: thoughts, the message, unless there are only calls, and calls."""
        thought, text, calls = self._turn.parts(run)
        items = [reasoning_item(self._run_id, thought)] if thought else []
        if text.strip() or self._has_begun or not calls:
            items.append(self._message(run))
        return items + call_items(calls, response_status(run))

    def _message(self, run: Run | None) -> dict[str, Any]:
        content = [] if run is None else [text_part(self._turn.parts(run).text, self._logprobs(run.tokens))]
        return message_item(self._run_id, response_status(run), content)

    def _logprobs(self, tokens: list[Token]) -> list[TokenLogprob]:
        if not self._wants_logprobs:
            return []
        return [token_logprob(self.service, token, self._body.top_logprobs or 0) for token in tokens]


def _messages(service: Service, body: ResponsesBody) -> list[Message]:
    """Returns the input as a conversation, which begins with the instructions."""
    if isinstance(body.input, str):
        messages = [Message(role="user", content=body.input)]
    else:
        messages = _conversation(body.input)
    if body.instructions is not None:
        service.check_text(body.instructions, "instructions")
        messages.insert(0, Message(role="system", content=body.instructions))
    if not messages:
        raise invalid("input", "input is empty; at least one message is expected")
    return messages


def _conversation(items: Sequence[InputItem]) -> list[Message]:
    """Returns items of the input as messages. Calls that follow each other, or a text of the assistant, are
    one message."""
    messages: list[Message] = []
    thought: str | None = None  # of the next message by the assistant
    for each in items:
        if isinstance(each, InputMessage):
            messages.append(Message(role=each.role, content=each.content))
            if each.role == "assistant":
                messages[-1].reasoning_content, thought = thought, None
        elif isinstance(each, Reasoning):
            thought = each.text
        elif isinstance(each, FunctionCall):
            call = {
                "id": each.call_id,
                "type": "function",
                "function": {"name": each.name, "arguments": each.arguments},
            }
            if not messages or messages[-1].role != "assistant":
                messages.append(Message(role="assistant", reasoning_content=thought))
                thought = None
            messages[-1].tool_calls = [*(messages[-1].tool_calls or ()), call]
        elif isinstance(each, FunctionCallOutput):
            messages.append(Message(role="tool", tool_call_id=each.call_id, content=each.output))
    return messages


def _tools(body: ResponsesBody) -> list[Tool] | None:
    """Returns the functions in the form of chat."""
    if body.tools is None:
        return None
    fields = {"name", "description", "parameters"}
    return [
        Tool(type="function", function=tool.model_dump(include=fields, exclude_none=True))
        for tool in body.tools
    ]


def _choice(body: ResponsesBody) -> NamedTool | str | None:
    """Returns which tool is to be called, in the form of chat."""
    choice = body.tool_choice
    return choice.chat() if isinstance(choice, NamedFunction) else choice


# ── shapes of any response ─────────────────────────────────────────────────────────────────────────────────


def response_status(run: Run | None) -> ResponseStatus:
    """Returns the status of a run that has ended, or of one that has not, which is None."""
    if run is None:
        return "in_progress"
    return "incomplete" if finish_reason(run) == "length" else "completed"


def incomplete_details(run: Run | None) -> dict[str, str] | None:
    return {"reason": "max_output_tokens"} if response_status(run) == "incomplete" else None


def message_item(run_id: str, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": f"{MESSAGE}{run_id}",
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": content,
    }


def reasoning_item(run_id: str, thought: str) -> dict[str, Any]:
    return {
        "id": f"{REASONING}{run_id}",
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": thought}],
        "status": "completed",
    }


def text_part(text: str, logprobs: list[TokenLogprob]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def call_items(calls: Sequence[ToolCall], status: str) -> list[dict[str, Any]]:
    """Returns the items of function calls, which are given in the form of chat. The last one of a response
    that is not complete may be a part of a call."""
    items = list(map(_call_item, calls))
    if items and status != "completed":
        items[-1]["status"] = "incomplete"
    return items


def _call_item(call: ToolCall) -> dict[str, Any]:
    return {
        "id": f"fc_{call['id'].removeprefix('call_')}",
        "type": "function_call",
        "call_id": call["id"],
        "status": "completed",
        **call["function"],
    }


def usage_shape(run: Run) -> dict[str, Any]:
    used = run.usage
    # What another engine did not report counts as none: clients expect numbers.
    prompt, cached, answer = used.prompt_tokens or 0, used.cached_tokens or 0, used.completion_tokens or 0
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": prompt - cached},
        "output_tokens": answer,
        "output_tokens_details": {"reasoning_tokens": thought_tokens([run])},
        "total_tokens": prompt + answer,
    }
