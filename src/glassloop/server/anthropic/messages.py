"""`POST /v1/messages` and `POST /v1/messages/count_tokens`: Anthropic's protocol. Each answer is a run, as
that of any other endpoint."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import APIRouter, Request
from pydantic_core import from_json
from starlette.responses import Response
from typing_extensions import TypedDict

from glassloop.record.run import Run
from glassloop.record.run_name import MESSAGE
from glassloop.record.token import Token
from glassloop.server.anthropic.messages_body import CountTokensBody, MessagesBody
from glassloop.server.http.bodies import BodyRoute
from glassloop.server.http.body_fields import texts_in
from glassloop.server.http.error_shapes import MessagesErrorAnswer
from glassloop.server.http.errors import APIError, errors_of
from glassloop.server.http.streaming import JSON, STILL_HERE, STREAMED, api_answer, event
from glassloop.server.openai.conversation import encode
from glassloop.server.openai.generation import Generation, respond
from glassloop.server.openai.tool_calls import ToolCall
from glassloop.server.openai.turn import AssistantTurn
from glassloop.server.service import Service

_PATH = "/v1/messages"
StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class CacheCreation(TypedDict):
    ephemeral_5m_input_tokens: int
    ephemeral_1h_input_tokens: int


class MessageUsage(TypedDict):
    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    cache_creation: CacheCreation
    output_tokens: int
    service_tier: Literal["standard"]


@api_answer
class MessageAnswer(TypedDict):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[dict[str, Any]]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage


@api_answer
class TokenCount(TypedDict):
    input_tokens: int


def router(service: Service) -> APIRouter:
    routes = APIRouter(route_class=BodyRoute, tags=["Anthropic"], responses=errors_of(MessagesErrorAnswer))

    @routes.post(_PATH, response_model=MessageAnswer, operation_id="messages", responses=STREAMED)
    async def messages(request: Request, body: MessagesBody) -> Response:
        return await respond(service, request, body, _Message)

    @routes.post(f"{_PATH}/count_tokens", response_model=TokenCount, operation_id="count_tokens")
    async def count_tokens(request: Request, body: CountTokensBody) -> Response:
        service.adapter_of(body.model)
        return await service.threads.prepare(request, body, _count, service, body)

    return routes


def _count(service: Service, body: CountTokensBody) -> Response:
    messages, choice = body.chat(), body.chat_tool_choice()
    tools = None if choice == "none" else body.chat_tools()
    service.check_texts(texts_in([messages, tools]), "messages")
    ids = encode(
        service.llm.tokenizer,
        messages,
        tools,
        continue_final=body.continues,
        values=body.template_values(service),
    )
    return JSON(TokenCount(input_tokens=len(ids)))


class _Message(Generation):
    """The answer to a conversation, as a message of blocks."""

    def __init__(self, service: Service, body: MessagesBody) -> None:
        self._turn = AssistantTurn(
            service,
            body.chat(),
            body.options(),
            tools=body.chat_tools(),
            tool_choice=body.chat_tool_choice(),
            parallel=False if body.tool_choice and body.tool_choice.disable_parallel_tool_use else None,
            continue_final=body.continues,
            values=body.template_values(service),
        )
        super().__init__(service, [self._turn.request])
        self._stream = self._turn.stream()
        self._space = ""  # white space at the beginning, held back where it may come before a call
        self._blocks = 0  # that have begun
        self._in_text = self._in_thought = False  # the last of them is one that goes on
        self._has_begun = False

    def headers(self, runs: list[Run]) -> dict[str, str]:
        return {**super().headers(runs), "request-id": f"req_{runs[0].id}"}

    def answer(self, runs: list[Run]) -> MessageAnswer:
        (run,) = runs
        thought, text, calls = self._turn.parts(run)
        content: list[dict[str, Any]] = [_thinking_block(thought)] if thought else []
        if text.strip() or (text and not calls):
            content.append({"type": "text", "text": text, "citations": None})
        content += [
            _call_block(call, from_json(call["function"]["arguments"] or "{}", allow_partial=True))
            for call in calls
        ]
        return self._message(run, content, *self._ending(run, calls))

    def _message(
        self, run: Run, content: list[dict[str, Any]], reason: StopReason | None, sequence: str | None
    ) -> MessageAnswer:
        return MessageAnswer(
            id=f"{MESSAGE}{run.id}",
            type="message",
            role="assistant",
            model=self.model,
            content=content,
            stop_reason=reason,
            stop_sequence=sequence,
            usage=_usage(run),
        )

    def _ending(self, run: Run, calls: list[ToolCall]) -> tuple[StopReason, str | None]:
        """Returns how an answer ended, and the stop sequence that ended it."""
        if run.finish_reason not in ("stop", "repetition"):
            return "max_tokens", None
        if calls:
            return "tool_use", None
        if run.stop_reason in self._turn.sampling.stop:
            return "stop_sequence", run.stop_reason
        return "end_turn", None

    # ── as it comes ────────────────────────────────────────────────────────────────────────────────────────

    def begin(self, runs: list[Run]) -> bytes:
        return b""  # how much of the prompt was in the cache is known with the first token

    def _begin(self, run: Run) -> bytes:
        """Returns the events before the first block."""
        if self._has_begun:
            return b""
        self._has_begun = True
        started = self._message(run, [], None, None)
        started["usage"]["output_tokens"] = 0
        return _event("message_start", message=started) + _PING

    def token(self, index: int, run: Run, token: Token) -> bytes:
        thought, text = self._stream.add(token)
        return self._begin(run) + self._think(thought) + self._text(text)

    def end(self, index: int, run: Run) -> bytes:
        thought, rest, calls = self._stream.end(run)
        events = self._begin(run) + self._think(thought) + self._text(rest)
        if self._space and not calls:
            events += self._delta(self._space)
        events += self._end_text()
        for call in calls:
            events += self._call(call)
        reason, sequence = self._ending(run, calls)
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        usage = {name: value for name, value in _usage(run).items() if isinstance(value, int)}
        return events + _event("message_delta", delta=delta, usage=usage)

    async def finish(self) -> bytes:
        return _event("message_stop")

    def failed(self, error: APIError) -> bytes:
        return event("error", error.shaped(MessagesErrorAnswer))

    def still_here(self) -> bytes:
        return _PING if self._has_begun else STILL_HERE

    def _think(self, thought: str) -> bytes:
        """Returns the events for a part of the thoughts."""
        if not thought:
            return b""
        begun = b"" if self._in_thought else self._block(_thinking_block(""))
        self._in_thought = True
        return begun + self._block_delta({"type": "thinking_delta", "thinking": thought})

    def _text(self, text: str) -> bytes:
        if not text:
            return b""
        if not self._in_text and self._turn.tools is not None:
            text, self._space = self._space + text, ""
            if not text.strip():
                self._space = text
                return b""
        return self._delta(text)

    def _delta(self, text: str) -> bytes:
        """Returns the events for a part of the text."""
        begun = b""
        if not self._in_text:
            begun = self._end_text()
            self._in_text = True
            begun += self._block({"type": "text", "text": "", "citations": None})
        return begun + self._block_delta({"type": "text_delta", "text": text})

    def _end_text(self) -> bytes:
        """Returns the event that ends a text or thoughts, if there is one that goes on."""
        was_open = self._in_text or self._in_thought
        self._in_text = self._in_thought = False
        return self._block_stop() if was_open else b""

    def _call(self, call: ToolCall) -> bytes:
        arguments = {"type": "input_json_delta", "partial_json": call["function"]["arguments"]}
        return self._block(_call_block(call, {})) + self._block_delta(arguments) + self._block_stop()

    def _block(self, block: dict[str, Any]) -> bytes:
        self._blocks += 1
        return _event("content_block_start", index=self._blocks - 1, content_block=block)

    def _block_delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._blocks - 1, delta=delta)

    def _block_stop(self) -> bytes:
        return _event("content_block_stop", index=self._blocks - 1)


def _event(kind: str, **details: Any) -> bytes:
    return event(kind, {"type": kind, **details})


_PING = _event("ping")


def _thinking_block(thought: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": thought, "signature": ""}


def _call_block(call: ToolCall, arguments: Any) -> dict[str, Any]:
    id = call["id"].removeprefix("call_")
    return {"type": "tool_use", "id": f"toolu_{id}", "name": call["function"]["name"], "input": arguments}


def _usage(run: Run) -> MessageUsage:
    """Returns the tokens of a run. Those of the prompt are either read from the cache or computed; to keep
    what was computed in the cache costs nothing, so it is not counted apart."""
    used = run.usage
    # What another engine did not report counts as none: clients expect numbers.
    prompt, cached = used.prompt_tokens or 0, used.cached_tokens or 0
    return MessageUsage(
        input_tokens=prompt - cached,
        cache_creation_input_tokens=0,
        cache_read_input_tokens=cached,
        cache_creation=CacheCreation(ephemeral_5m_input_tokens=0, ephemeral_1h_input_tokens=0),
        output_tokens=used.completion_tokens or 0,
        service_tier="standard",
    )
