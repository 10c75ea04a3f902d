"""The bodies of `POST /v1/messages` and `/v1/messages/count_tokens`, and what they ask of a turn."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from glassloop.server.anthropic.blocks import BlockMessages, SystemText, as_chat
from glassloop.server.http.body_fields import MOST_TOOLS, Name, check_type, many
from glassloop.server.http.errors import invalid
from glassloop.server.openai.conversation import Message, Tool
from glassloop.server.openai.tool_calls import FunctionName, NamedTool
from glassloop.server.sampling_options import Body, SamplingOptions, options_of
from glassloop.server.service import Service


class InputTool(Body):
    """A tool that the client calls. What says how it is called or cached is accepted and changes nothing."""

    type: Literal["custom"] | None = None
    name: Name
    description: str | None = None
    input_schema: dict[str, Any]
    cache_control: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: Literal[False] | None = None
    eager_input_streaming: bool | None = None
    input_examples: many(dict[str, Any], 100) | None = None  # type: ignore[valid-type]
    allowed_callers: many(Literal["direct"], 1) | None = None  # type: ignore[valid-type]

    @model_validator(mode="before")
    @classmethod
    def _is_custom(cls, value: Any) -> Any:
        instead = "only tools with an input_schema, which the client calls, are tools here"
        return check_type(value, ("custom",), instead)


class ToolChoice(Body):
    type: Literal["auto", "any", "tool", "none"]
    name: Name | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingConfig(Body):
    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: int | None = Field(None, ge=1, le=(1 << 31) - 1)
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(Body):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Body):
    effort: Name | None = None  # accepted, as in chat
    format: OutputFormat | None = None


class UserMetadata(Body):
    user_id: str | None = None


class TurnFields(Body):
    """What makes the prompt, in the bodies of both routes."""

    model: str | None = None
    messages: BlockMessages
    system: SystemText | None = None
    tools: many(InputTool, MOST_TOOLS) | None = None  # type: ignore[valid-type]
    tool_choice: ToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None  # its older name
    # Accepted because they ask for nothing that changes an answer.
    cache_control: dict[str, Any] | None = None
    context_management: dict[str, Any] | None = None
    mcp_servers: many(Any, 0) | None = None  # type: ignore[valid-type]
    speed: Literal["standard", "fast"] | None = None

    def chat(self) -> list[Message]:
        return as_chat(self.messages, self.system)

    def chat_tools(self) -> list[Tool] | None:
        """Returns the tools in the form of chat."""
        if self.tools is None:
            return None
        return [Tool(type="function", function=_function(tool)) for tool in self.tools]

    def chat_tool_choice(self) -> NamedTool | str | None:
        choice = self.tool_choice
        if choice is None:
            return None
        if choice.type == "tool":
            if choice.name is None:
                raise invalid("tool_choice.name", "tool_choice.name is missing")
            return NamedTool(type="function", function=FunctionName(name=choice.name))
        return {"auto": "auto", "any": "required", "none": "none"}[choice.type]

    @property
    def continues(self) -> bool:
        """Whether the last message is the beginning of the answer."""
        last: str = self.messages[-1].role
        return last == "assistant"

    def template_values(self, service: Service) -> dict[str, Any] | None:
        """Returns the settings of the chat template: whether the model is to think, where that is one."""
        template = service.llm.tokenizer.chat_template
        if template is None or not template.has_variable("enable_thinking"):
            return None
        return {
            "enable_thinking": self.thinking is not None and self.thinking.type in ("enabled", "adaptive")
        }


class MessagesBody(TurnFields, SamplingOptions):  # type: ignore[misc, valid-type]
    """Anthropic's parameters, and the fields of Sampling."""

    max_tokens: int = Field(ge=1, le=(1 << 31) - 1)
    stop_sequences: many(str, 1024) | None = None  # type: ignore[valid-type]
    stream: bool | None = None
    metadata: UserMetadata | None = None
    n: Literal[1] | None = None
    # Accepted because they ask for nothing that changes an answer.
    service_tier: Name | None = None
    inference_geo: Name | None = None
    diagnostics: dict[str, Any] | None = None
    user_profile_id: Name | None = None
    workspace_id: Name | None = None

    @property
    def renamed(self) -> dict[str, str]:
        field, _ = self._format
        renamed = {} if field is None else {f"{field}.schema": "json_schema"}
        return renamed | ({"stop_sequences": "stop"} if self.stop_sequences else {})

    @property
    def _format(self) -> tuple[str | None, OutputFormat | None]:
        """The format of the answer, and the field that has it."""
        if self.output_format is not None:
            return "output_format", self.output_format
        if self.output_config is not None and self.output_config.format is not None:
            return "output_config.format", self.output_config.format
        return None, None

    def options(self) -> dict[str, Any]:
        """Returns the options for `Sampling`."""
        options = options_of(self)
        stops = [text for text in self.stop_sequences or () if text]
        if stops and "stop" in options:
            raise invalid("stop", "stop and stop_sequences are both given; one of them is expected")
        if stops:
            options["stop"] = stops
        field, format = self._format
        if format is not None:
            if "json_schema" in options:
                raise invalid(field or "", f"{field} and json_schema are both given; one is expected")
            options["json_schema"] = format.schema_
        return options


class CountTokensBody(TurnFields):
    """What a message would be asked with."""


def _function(tool: InputTool) -> dict[str, Any]:
    described = {} if tool.description is None else {"description": tool.description}
    return {"name": tool.name, **described, "parameters": tool.input_schema}
