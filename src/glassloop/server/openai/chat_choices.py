"""A chat: its body, and the model's answer, or several of them, as choices. `chat.py` has the endpoint."""

from __future__ import annotations

import time
from typing import Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from glassloop.record.run import Run
from glassloop.record.run_name import CHAT
from glassloop.record.token import Token
from glassloop.server.http.body_fields import Name, TemplateValues, Whole, many, word_or
from glassloop.server.http.errors import invalid, unsupported
from glassloop.server.http.streaming import api_answer
from glassloop.server.openai.conversation import Effort, Messages, Tools, effort_values
from glassloop.server.openai.generation import (
    Choices,
    ChoicesBody,
    PromptLogprobs,
    TokenLogprob,
    UsageAnswer,
    add_formats,
    add_top_logprobs,
    finish_reason,
    prompt_logprobs,
    token_logprob,
)
from glassloop.server.openai.search_body import SearchBody
from glassloop.server.openai.tool_calls import NamedTool, ToolCall
from glassloop.server.openai.turn import AssistantTurn, TurnStream
from glassloop.server.sampling_options import options_of
from glassloop.server.service import Service


class ChatBody(ChoicesBody):
    """OpenAI's parameters, and every field of Sampling."""

    messages: Messages
    max_completion_tokens: Whole | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    tools: Tools | None = None
    tool_choice: word_or(Literal["auto", "none", "required"], NamedTool) | None = None  # type: ignore[valid-type]
    parallel_tool_calls: bool | None = None
    # Accepted because they ask for nothing that changes an answer.
    modalities: many(Literal["text"], 16) | None = None  # type: ignore[valid-type]
    service_tier: Name | None = None
    verbosity: Name | None = None
    reasoning_effort: Effort | None = None  # for templates that have a variable for it
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    # Beyond OpenAI: the last message is the assistant's, and the model continues it.
    continue_final_message: bool | None = None
    # Beyond OpenAI: values that the model's chat template knows, such as enable_thinking.
    chat_template_kwargs: TemplateValues | None = None
    # Beyond OpenAI: the answer is searched for with several paths.
    search: SearchBody | None = None


class ChatLogprobs(TypedDict):
    content: list[TokenLogprob]
    refusal: None


class AssistantMessage(TypedDict):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: NotRequired[str]  # what the model thought, if it did
    tool_calls: NotRequired[list[ToolCall]]


class ChatChoice(TypedDict):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]
    stop_reason: str | None


@api_answer
class ChatAnswer(TypedDict):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str | None
    choices: list[ChatChoice]
    usage: UsageAnswer
    prompt_logprobs: NotRequired[PromptLogprobs]
    search: NotRequired[dict[str, Any]]  # the result of a search, if it was asked for


class ChatChoices(Choices):
    """The answer of the model, or `n` of them, to a conversation."""

    id_prefix, chunk_kind = CHAT, "chat.completion.chunk"

    def __init__(self, service: Service, body: ChatBody) -> None:
        self._logprobs, self._top = bool(body.logprobs), body.top_logprobs or 0
        if body.tool_choice not in (None, "none", "auto") and body.tools is None:
            raise unsupported("tool_choice", "there are no tools")
        continues = bool(body.continue_final_message)
        if continues and body.messages[-1].role != "assistant":
            message = "continue_final_message is true; a last message by the assistant is expected"
            raise invalid("continue_final_message", message)
        self._turn = AssistantTurn(
            service,
            body.messages,
            _options(body),
            tools=body.tools,
            tool_choice=body.tool_choice,
            parallel=body.parallel_tool_calls,
            continue_final=continues,
            values={
                **effort_values(service, body.reasoning_effort),
                **(body.chat_template_kwargs or {}),
            },
        )
        self._streams: dict[int, TurnStream] = {}  # by choice
        super().__init__(service, body, [self._turn.request])

    def answer(self, runs: list[Run]) -> ChatAnswer:
        answer = ChatAnswer(
            id=self.id_prefix + runs[0].id,
            object="chat.completion",
            created=int(time.time()),
            model=self.model,
            system_fingerprint=self.fingerprint,
            choices=[self.choice(index, run) for index, run in enumerate(runs)],
            usage=self.usage(),
        )
        if self.with_prompt:
            answer["prompt_logprobs"] = prompt_logprobs(runs[0])
        return answer

    def choice(self, index: int, run: Run) -> ChatChoice:
        thought, content, calls = self._turn.parts(run)
        message = AssistantMessage(role="assistant", content=content, refusal=None)
        if thought:
            message["reasoning_content"] = thought
        if calls:
            message["content"] = content if content.strip() else None
            message["tool_calls"] = calls
        return ChatChoice(
            index=index,
            message=message,
            logprobs=self._shown(run.tokens),
            finish_reason=_reason(run, calls),
            stop_reason=run.stop_reason,
        )

    def begin(self, runs: list[Run]) -> bytes:
        start = {"role": "assistant", "content": ""}
        return super().begin(runs) + b"".join(self.chunk(index, delta=start) for index in range(len(runs)))

    def token(self, index: int, run: Run, token: Token) -> bytes:
        thought, text = self._stream(index).add(token)
        shown = self._shown([token])
        if not thought:
            return self.chunk(index, shown, delta={"content": text}) if text or self._logprobs else b""
        chunk = self.chunk(index, shown, delta={"reasoning_content": thought})
        return chunk + self.chunk(index, delta={"content": text}) if text else chunk

    def end(self, index: int, run: Run) -> bytes:
        thought, rest, calls = self._stream(index).end(run)
        last = self.chunk(index, delta={"reasoning_content": thought}) if thought else b""
        last += self.chunk(index, delta={"content": rest}) if rest else b""
        for place, call in enumerate(calls):
            last += self.chunk(index, delta={"tool_calls": [{"index": place, **call}]})
        reason = _reason(run, calls)
        return last + self.chunk(index, delta={}, finish_reason=reason, stop_reason=run.stop_reason)

    def _stream(self, index: int) -> TurnStream:
        if index not in self._streams:
            self._streams[index] = self._turn.stream()
        return self._streams[index]

    def _shown(self, tokens: list[Token]) -> ChatLogprobs | None:
        if not self._logprobs:
            return None
        content = [token_logprob(self.service, token, self._top) for token in tokens]
        return ChatLogprobs(content=content, refusal=None)


def _reason(run: Run, calls: list[ToolCall]) -> Literal["stop", "length", "tool_calls"]:
    """Returns how an answer ended. The last of its calls may be a part of one, which was cut off."""
    reason = finish_reason(run)
    return "tool_calls" if calls and reason == "stop" else reason


def _options(body: ChatBody) -> dict[str, Any]:
    """Returns the options for `Sampling`."""
    options = options_of(body)
    options.pop("logprobs", None)
    most = body.max_completion_tokens
    if most is not None and options.setdefault("max_tokens", most) != most:
        raise invalid("max_completion_tokens", "max_tokens and max_completion_tokens differ")
    add_top_logprobs(options, body.top_logprobs, bool(body.logprobs), "logprobs: true")
    add_formats(options, body)
    return options
