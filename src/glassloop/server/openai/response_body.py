"""The body of `POST /v1/responses`: its input as items, and how these become a conversation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, TypeAdapter, ValidationError, model_validator

from glassloop.server.http.body_fields import (
    MOST_MESSAGES,
    MOST_PARTS,
    MOST_TOOLS,
    Name,
    TemplateValues,
    Whole,
    check_type,
    many,
    text_or,
    word_or,
)
from glassloop.server.http.errors import invalid
from glassloop.server.openai.conversation import Effort, Message, TextPart, Tool
from glassloop.server.openai.tool_calls import AllowedFunction, AllowedTools, FunctionName, NamedTool
from glassloop.server.sampling_options import Body, SamplingOptions
from glassloop.server.service import Service

LOGPROBS = "message.output_text.logprobs"
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


_ITEM: TypeAdapter[InputItem] = TypeAdapter(Item)


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


class ConversationName(Body):
    id: Name


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
    previous_response_id: Name | None = None
    conversation: word_or(Name, ConversationName) | None = None  # type: ignore[valid-type]
    background: bool | None = None
    truncation: Literal["disabled", "auto"] | None = None
    # Beyond OpenAI: values that the model's chat template knows, such as enable_thinking.
    chat_template_kwargs: TemplateValues | None = None
    n: Literal[1] | None = None
    logprobs: None = None
    max_tokens: None = None
    # Accepted because they ask for nothing that changes an answer.
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    service_tier: Name | None = None
    reasoning: ReasoningOptions | None = None
    store: bool | None = None
    user: str | None = None


# What a request says beside its input and its options, which the record of its run has.
_SAID = {
    *(
        "instructions",
        "max_output_tokens",
        "text",
        "include",
        "top_logprobs",
        "metadata",
        "tools",
        "tool_choice",
    ),
    *("parallel_tool_calls", "previous_response_id", "conversation", "background", "truncation", "reasoning"),
}


def said_in(body: ResponsesBody) -> dict[str, Any]:
    """Returns what a note keeps of a body."""
    said: dict[str, Any] = body.model_dump(include=_SAID, by_alias=True, exclude_none=True)
    return said


def body_of(said: dict[str, Any]) -> ResponsesBody:
    """Returns a body as far as a note has kept it."""
    body: ResponsesBody = ResponsesBody.model_validate({"input": [], **said})
    return body


def messages_of(service: Service, body: ResponsesBody, past: Sequence[dict[str, Any]]) -> list[Message]:
    """Returns the input as a conversation, which begins with the instructions and the items of the past."""
    if isinstance(body.input, str):
        messages = [Message(role="user", content=body.input)]
    else:
        messages = conversation_of(body.input)
    try:
        before = conversation_of([_ITEM.validate_python(item) for item in past])
    except ValidationError:
        field = "conversation" if body.previous_response_id is None else "previous_response_id"
        raise invalid(field, f"{field} has items that this endpoint does not take") from None
    messages = [*before, *messages]
    if body.instructions is not None:
        service.check_text(body.instructions, "instructions")
        messages.insert(0, Message(role="system", content=body.instructions))
    if not messages:
        raise invalid("input", "input is empty; at least one message is expected")
    return messages


def conversation_of(items: Sequence[InputItem]) -> list[Message]:
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


def tools_of(body: ResponsesBody) -> list[Tool] | None:
    """Returns the functions in the form of chat."""
    if body.tools is None:
        return None
    fields = {"name", "description", "parameters"}
    return [
        Tool(type="function", function=tool.model_dump(include=fields, exclude_none=True))
        for tool in body.tools
    ]


def choice_of(body: ResponsesBody) -> NamedTool | str | None:
    """Returns which tool is to be called, in the form of chat."""
    choice = body.tool_choice
    return choice.chat() if isinstance(choice, NamedFunction) else choice
