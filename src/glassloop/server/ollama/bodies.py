"""The bodies of Ollama's API, and what they ask of a turn."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field

from glassloop.server.http.body_fields import MOST_MESSAGES, MOST_TOOLS, Name, many, text_or, word_or
from glassloop.server.http.errors import invalid
from glassloop.server.openai.conversation import Message, Tools
from glassloop.server.openai.generation import add_top_logprobs
from glassloop.server.sampling_options import Body, SamplingOptions, options_of
from glassloop.server.service import Service

_LATEST = ":latest"  # what Ollama's clients add to a name without a tag
MOST_TEXTS = 256  # of one request for embeddings
_NO_IMAGES = "images is not supported: the model reads text only"

ModelName = Annotated[str, AfterValidator(lambda name: name.removesuffix(_LATEST))]


class OllamaOptions(SamplingOptions):  # type: ignore[misc, valid-type]
    """Every field of Sampling, some of them under Ollama's names."""

    n: Literal[1] | None = None
    num_predict: int | None = None
    repeat_penalty: float | None = None
    # Methods that are not offered, and the values with which they do nothing.
    mirostat: Literal[0] | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    tfs_z: float | None = Field(None, ge=1, le=1)
    repeat_last_n: Literal[-1] | None = Field(None, description="The penalties see the whole text.")
    penalize_newline: bool | None = None
    # How Ollama runs a model. Its clients send these always; here the server's own flags decide.
    num_ctx: int | None = None
    num_keep: int | None = None
    num_batch: int | None = None
    num_gpu: int | None = None
    main_gpu: int | None = None
    num_thread: int | None = None
    numa: bool | None = None
    low_vram: bool | None = None
    f16_kv: bool | None = None
    logits_all: bool | None = None
    vocab_only: bool | None = None
    use_mmap: bool | None = None
    use_mlock: bool | None = None
    embedding_only: bool | None = None

    def sampling(self) -> dict[str, Any]:
        """Returns the options for `Sampling`."""
        options = options_of(self)
        names = {"num_predict": "max_tokens", "repeat_penalty": "repetition_penalty"}
        for name, option in names.items():
            value = getattr(self, name)
            if value is None or (name == "num_predict" and value in (-1, -2)):  # as long as there is room
                continue
            if option in options:
                field = f"options.{name}"
                raise invalid(field, f"{field} and options.{option} are both given; one of them is expected")
            options[option] = value
        return options


class ModelBody(Body):
    model: ModelName | None = None
    name: ModelName | None = None  # its older name
    verbose: bool | None = None


class GeneratingBody(Body):
    """What both generating routes take."""

    model: ModelName | None = None
    stream: bool | None = None
    format: word_or(Literal["", "json"], dict[str, Any]) | None = None  # type: ignore[valid-type]
    options: OllamaOptions | None = None
    think: bool | Name | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    keep_alive: float | Name | None = None  # accepted: --unload-after decides

    @property
    def streams(self) -> bool:
        return self.stream is not False

    @property
    def renamed(self) -> dict[str, str]:
        renamed = {"format": "json_schema"} if self.format else {}
        for name, option in (("num_predict", "max_tokens"), ("repeat_penalty", "repetition_penalty")):
            if self.options is not None and getattr(self.options, name) is not None:
                renamed[f"options.{name}"] = option
        return renamed

    @property
    def unloads(self) -> bool:
        """Whether a request without a prompt asks to unload the model."""
        return self.keep_alive in (0, "0", "0s")

    def sampling(self) -> dict[str, Any]:
        """Returns the options for `Sampling`."""
        options = {} if self.options is None else self.options.sampling()
        if self.format:
            if "json_schema" in options:
                raise invalid("format", "format and options.json_schema are both given; one is expected")
            options["json_schema"] = {"type": "object"} if self.format == "json" else self.format
        add_top_logprobs(options, self.top_logprobs, bool(self.logprobs), "logprobs: true")
        return options

    def template_values(self, service: Service) -> dict[str, Any] | None:
        """Returns the settings of the chat template: whether, and how much, the model is to think."""
        template = service.llm.tokenizer.chat_template
        if self.think is None or template is None:
            return None
        values: dict[str, Any] = {}
        if template.has_variable("enable_thinking"):
            values["enable_thinking"] = bool(self.think)
        if isinstance(self.think, str) and template.has_variable("reasoning_effort"):
            values["reasoning_effort"] = self.think
        return values or None


class OllamaMessage(Body):
    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    images: many(Any, 1000) | None = None  # type: ignore[valid-type]
    tool_calls: many(dict[str, Any], MOST_TOOLS) | None = None  # type: ignore[valid-type]
    tool_name: Name | None = None
    tool_call_id: Name | None = None
    name: Name | None = None


class OllamaChatBody(GeneratingBody):
    messages: many(OllamaMessage, MOST_MESSAGES) | None = None  # type: ignore[valid-type]
    tools: Tools | None = None

    def chat(self) -> list[Message]:
        """Returns the conversation in OpenAI's form."""
        return [_message(message, place) for place, message in enumerate(self.messages or ())]


class OllamaGenerateBody(GeneratingBody):
    RENDERS: ClassVar[bool] = True

    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    raw: bool | None = None
    images: many(Any, 1000) | None = None  # type: ignore[valid-type]
    # Not offered, but empty in what clients send.
    template: Literal[""] | None = None
    context: many(int, 0) | None = None  # type: ignore[valid-type]

    def chat(self) -> list[Message]:
        system = [Message(role="system", content=self.system)] if self.system else []
        return [*system, Message(role="user", content=self.prompt)]


class OllamaEmbedBody(Body):
    model: ModelName | None = None
    input: text_or(many(str, MOST_TEXTS))  # type: ignore[valid-type]
    truncate: bool | None = None
    dimensions: int | None = Field(None, ge=1, le=1 << 20)
    options: OllamaOptions | None = None
    keep_alive: float | Name | None = None


class OllamaEmbeddingBody(Body):
    model: ModelName | None = None
    prompt: str
    options: OllamaOptions | None = None
    keep_alive: float | Name | None = None


def check_no_images(images: Sequence[Any] | None, field: str) -> None:
    if images:
        raise invalid(field, _NO_IMAGES if field == "images" else f"{field}: {_NO_IMAGES}")


def _message(message: OllamaMessage, place: int) -> Message:
    field = f"messages[{place}]"
    check_no_images(message.images, f"{field}.images")
    calls = [_call(call, f"{field}.tool_calls[{at}]", at) for at, call in enumerate(message.tool_calls or ())]
    return Message(
        role=message.role,
        content=message.content if message.content is not None or calls else "",
        name=message.tool_name or message.name,
        reasoning_content=message.thinking or None,
        tool_calls=calls or None,
        tool_call_id=message.tool_call_id,
    )


def _call(call: dict[str, Any], field: str, place: int) -> dict[str, Any]:
    """Returns a tool call in OpenAI's form: with an id, and its arguments as text."""
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise invalid(field, f"{field} has no function with a name")
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    id = call.get("id")
    return {
        "id": id if isinstance(id, str) and id else f"call_{place}",
        "type": "function",
        "function": {"name": function["name"], "arguments": text},
    }
