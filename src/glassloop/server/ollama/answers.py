"""Answers in Ollama's form, as a whole or as lines of JSON. Each is a run, as that of any other endpoint."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal, NotRequired

from pydantic_core import from_json
from typing_extensions import TypedDict

from glassloop.engine.request import Request
from glassloop.errors import TextError
from glassloop.record.run import Run
from glassloop.record.token import Token
from glassloop.server.http.error_shapes import OllamaErrorAnswer
from glassloop.server.http.errors import APIError, invalid
from glassloop.server.http.streaming import api_answer, to_json
from glassloop.server.ollama.bodies import (
    GeneratingBody,
    OllamaChatBody,
    OllamaGenerateBody,
    check_no_images,
)
from glassloop.server.openai.generation import Generation, TokenLogprob, finish_reason, token_logprob
from glassloop.server.openai.tool_calls import ToolCall
from glassloop.server.openai.turn import AssistantTurn, TurnParts
from glassloop.server.sampling_options import make_sampling
from glassloop.server.service import Service

_NANOSECONDS = 1e9


class OllamaAssistant(TypedDict):
    role: Literal["assistant"]
    content: str
    thinking: NotRequired[str]
    tool_calls: NotRequired[list[dict[str, Any]]]


class _Answer(TypedDict):
    model: str
    created_at: str
    done: bool
    done_reason: NotRequired[Literal["stop", "length", "load", "unload"]]
    logprobs: NotRequired[list[TokenLogprob]]
    total_duration: NotRequired[int]
    load_duration: NotRequired[int]
    prompt_eval_count: NotRequired[int]
    prompt_eval_duration: NotRequired[int]
    eval_count: NotRequired[int]
    eval_duration: NotRequired[int]


@api_answer
class OllamaChatAnswer(_Answer):
    message: OllamaAssistant


@api_answer
class OllamaGenerateAnswer(_Answer):
    response: str
    thinking: NotRequired[str]


def now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


class OllamaGeneration(Generation):
    """The answer to a prompt or a conversation. `turn` is None where the model gets the prompt as it is."""

    media_type = "application/x-ndjson"
    is_chat: bool

    def __init__(
        self, service: Service, body: GeneratingBody, requests: Sequence[Request], turn: AssistantTurn | None
    ) -> None:
        super().__init__(service, requests)
        self._turn = turn
        self._stream = None if turn is None else turn.stream()
        self._logprobs, self._top = bool(body.logprobs), body.top_logprobs or 0

    def answer(self, runs: list[Run]) -> dict[str, Any]:
        (run,) = runs
        parts = TurnParts("", run.text, []) if self._turn is None else self._turn.parts(run)
        return self._piece(parts, **self._shown(run.tokens), **_ending(run))

    def begin(self, runs: list[Run]) -> bytes:
        return b""

    def token(self, index: int, run: Run, token: Token) -> bytes:
        thought, text = ("", token.text) if self._stream is None else self._stream.add(token)
        if not thought and not text and not self._logprobs:
            return b""
        return _line(self._piece(TurnParts(thought, text, []), **self._shown([token]), done=False))

    def end(self, index: int, run: Run) -> bytes:
        rest = TurnParts("", run.tail, []) if self._stream is None else self._stream.end(run)
        last = _line(self._piece(rest, done=False)) if any(rest) else b""
        return last + _line(self._piece(TurnParts("", "", []), **_ending(run)))

    async def finish(self) -> bytes:
        return b""

    def failed(self, error: APIError) -> bytes:
        return _line(error.shaped(OllamaErrorAnswer))

    def still_here(self) -> bytes:
        return b""  # lines of JSON have no comments

    def _piece(self, parts: TurnParts, **fields: Any) -> dict[str, Any]:
        """Returns a part of the answer, or all of it."""
        said: dict[str, Any] = {"thinking": parts.thought} if parts.thought else {}
        if self.is_chat:
            message = OllamaAssistant(role="assistant", content=parts.text, **said)  # type: ignore[typeddict-item]
            if parts.calls:
                message["tool_calls"] = list(map(_call, parts.calls))
            said = {"message": message}
        else:
            said["response"] = parts.text
        return {"model": self.model, "created_at": now(), **said, **fields}

    def _shown(self, tokens: list[Token]) -> dict[str, Any]:
        if not self._logprobs:
            return {}
        return {"logprobs": [token_logprob(self.service, token, self._top) for token in tokens]}


class OllamaChat(OllamaGeneration):
    is_chat = True

    def __init__(self, service: Service, body: OllamaChatBody) -> None:
        turn = AssistantTurn(
            service,
            body.chat(),
            body.sampling(),
            tools=body.tools,
            continue_final=(body.messages or [])[-1].role == "assistant",
            values=body.template_values(service),
        )
        super().__init__(service, body, [turn.request], turn)


class OllamaText(OllamaGeneration):
    is_chat = False

    def __init__(self, service: Service, body: OllamaGenerateBody) -> None:
        check_no_images(body.images, "images")
        assert body.prompt is not None
        if body.suffix:
            raise invalid("suffix", "suffix is not supported: /api/edits/infill fills holes with any model")
        if not body.raw and service.llm.tokenizer.can_chat:
            turn = AssistantTurn(
                service, body.chat(), body.sampling(), field="prompt", values=body.template_values(service)
            )
            super().__init__(service, body, [turn.request], turn)
            return
        if body.system:
            problem = "is given with raw: true, or for a model without a template; put it into the prompt"
            raise TextError.about("system", problem)
        options = {"max_tokens": service.llm.config.context, **body.sampling()}
        sampling = make_sampling(options, service.settings, defaults=service.llm.default_sampling)
        super().__init__(service, body, [service.prepare(body.prompt, sampling)], None)


def _ending(run: Run) -> dict[str, Any]:
    """Returns how a run ended, and what it took."""
    times, used = run.timings, run.usage
    seconds = {
        "total_duration": times.queue + times.prefill + times.decode,
        "load_duration": 0.0,
        "prompt_eval_duration": times.prefill,
        "eval_duration": times.decode,
    }
    return {
        "done": True,
        "done_reason": finish_reason(run),
        **{name: int(value * _NANOSECONDS) for name, value in seconds.items()},
        "prompt_eval_count": used.prompt_tokens or 0,
        "eval_count": used.completion_tokens or 0,
    }


def _call(call: ToolCall) -> dict[str, Any]:
    function = call["function"]
    arguments = from_json(function["arguments"])
    return {"id": call["id"], "function": {"name": function["name"], "arguments": arguments}}


def _line(value: dict[str, Any]) -> bytes:
    return to_json(value) + b"\n"
