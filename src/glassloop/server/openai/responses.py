"""`POST /v1/responses`: OpenAI's newer endpoint, for text and function calls. `kept_responses` has those that
were given before, `response_state` what a response goes on from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from glassloop.engine.request import Request as EngineRequest
from glassloop.errors import LengthError
from glassloop.record.run import Run
from glassloop.record.run_name import MESSAGE, RESPONSE
from glassloop.record.token import Token
from glassloop.server.http.bodies import BodyRoute
from glassloop.server.http.errors import ERRORS, APIError, unsupported
from glassloop.server.http.streaming import STREAMED, event
from glassloop.server.openai.conversation import Message, effort_values
from glassloop.server.openai.generation import (
    Generation,
    TokenLogprob,
    add_format,
    add_top_logprobs,
    respond,
    token_logprob,
)
from glassloop.server.openai.response_body import (
    LOGPROBS,
    NamedFunction,
    ResponsesBody,
    choice_of,
    messages_of,
    tools_of,
)
from glassloop.server.openai.response_shapes import (
    REASONING,
    ResponseAnswer,
    call_items,
    incomplete_details,
    message_item,
    reasoning_item,
    response_status,
    text_part,
    usage_shape,
)
from glassloop.server.openai.response_state import conversation_id, keep_response, past_of
from glassloop.server.openai.tool_calls import recorded_parts, tools_in_use
from glassloop.server.openai.turn import AssistantTurn, TurnParts, TurnReader
from glassloop.server.sampling_options import options_of
from glassloop.server.service import Service


def router(service: Service) -> APIRouter:
    routes = APIRouter(route_class=BodyRoute, tags=["OpenAI"], responses=ERRORS)

    @routes.post("/v1/responses", response_model=ResponseAnswer, operation_id="responses", responses=STREAMED)
    async def responses(request: Request, body: ResponsesBody) -> Response:
        past = await past_of(service, body)
        return await respond(service, request, body, partial(prepared, past=past))

    return routes


def prepared(service: Service, body: ResponsesBody, past: Sequence[dict[str, Any]]) -> ModelResponse:
    """Returns the response to a body, after what was said before, whose run has not begun."""
    if body.given.get("prompt_logprobs"):
        raise unsupported("prompt_logprobs", "this endpoint has no place for it; use /v1/chat/completions")
    messages = messages_of(service, body, past)
    options = options_of(body)
    if body.max_output_tokens is not None:
        options["max_tokens"] = body.max_output_tokens
    with_logprobs = LOGPROBS in (body.include or ())
    add_top_logprobs(options, body.top_logprobs, with_logprobs, f"include: [{LOGPROBS}]")
    if body.text is not None and body.text.format is not None:
        add_format(options, body.text.format.type, body.text.format.schema_, "text.format.schema")

    effort = effort_values(service, body.reasoning.effort if body.reasoning else None)

    def turn(messages: Sequence[Message]) -> AssistantTurn:
        return AssistantTurn(
            service,
            messages,
            options,
            tools=tools_of(body),
            tool_choice=choice_of(body),
            parallel=body.parallel_tool_calls,
            values={**effort, **(body.chat_template_kwargs or {})},
            field="input",
            note="" if body.instructions is None else ", instructions included",
        )

    made = turn(messages) if body.truncation != "auto" else _fitting(turn, messages)
    return ModelResponse(service, body, made, made.request.runs[0], [made.request])


def _fitting(turn: Callable[[Sequence[Message]], AssistantTurn], messages: list[Message]) -> AssistantTurn:
    """Returns the turn after as many of the last messages as the context holds. What comes first is left out
    up to a message by the user; system messages at the beginning stay."""
    try:
        return turn(messages)
    except LengthError as error:
        first = next((i for i, each in enumerate(messages) if each.role not in ("system", "developer")), 0)
        starts = [i for i, each in enumerate(messages) if i > first and each.role == "user"]
        if not starts:
            raise
        too_long = error
    fitting: AssistantTurn | None = None
    low, high = 0, len(starts)
    while low < high:  # the first start from which all fits
        middle = (low + high) // 2
        try:
            fitting = turn([*messages[:first], *messages[starts[middle] :]])
            high = middle
        except LengthError as error:
            too_long, low = error, middle + 1
    if fitting is None:
        raise too_long
    return fitting


class RecordedTurn(TurnReader):
    """Reads the answer of a run whose request is not known: that it had tools shows in its grammar."""

    def __init__(self, service: Service, run: Run) -> None:
        super().__init__(None, run.form)
        self._tokenizer = service.llm.tokenizer

    def parts(self, run: Run) -> TurnParts:
        text, calls = recorded_parts(self._tokenizer, run)
        return TurnParts(run.thoughts if run.form else "", text, calls)


def turn_of(service: Service, body: ResponsesBody, run: Run) -> TurnReader:
    """Returns what reads the answer of a response that was given before."""
    tools, choice = tools_of(body), choice_of(body)
    if not tools:
        return RecordedTurn(service, run)
    return TurnReader(tools_in_use(service, tools, choice, body.parallel_tool_calls), run.form)


class ModelResponse(Generation):
    """A response: one that is computed for a client, or, without requests, one that was given before. Events
    up to the number `after` are left out of its stream."""

    def __init__(
        self,
        service: Service,
        body: ResponsesBody,
        turn: TurnReader,
        run: Run,
        requests: Sequence[EngineRequest] = (),
        after: int = -1,
    ) -> None:
        super().__init__(service, requests)
        self._body, self._turn, self._run = body, turn, run
        self._wants_logprobs = LOGPROBS in (body.include or ())
        self._format = body.text.format if body.text is not None else None
        self._run_id = run.id
        self._after = after
        self._sequence_number = -1
        self._place = {"item_id": f"{MESSAGE}{self._run_id}", "output_index": 0, "content_index": 0}
        self._thoughts = {"item_id": f"{REASONING}{self._run_id}", "output_index": 0, "content_index": 0}
        self._has_thought = False  # the events of the reasoning
        self._stream = self._turn.stream()
        self._has_begun = False  # the events of the message

    @property
    def model(self) -> str:
        model, adapter = self.service.public_name(self._run.model), self._run.sampling.adapter
        return model if adapter is None else f"{model}:{adapter}"

    @property
    def runs(self) -> list[Run]:
        return super().runs or [self._run]

    async def keep(self) -> None:
        await keep_response(self.service, self._body, self._run_id)

    def at_once(self) -> ResponseAnswer:
        return {**self.shape(None), "status": "queued"}

    def answer(self, runs: list[Run]) -> ResponseAnswer:
        return self.shape(runs[0])

    # ── as it comes ────────────────────────────────────────────────────────────────────────────────────────

    def begin(self, runs: list[Run]) -> bytes:
        started = self._event("response.created", response=self.shape(None))
        started += self._event("response.in_progress", response=self.shape(None))
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
        response = self.shape(run)
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
        response = {**self.shape(None), "status": "failed", "error": detail}
        return self._event("response.failed", response=response)

    def _delta(self, text: str, logprobs: list[TokenLogprob]) -> bytes:
        return self._event("response.output_text.delta", delta=text, logprobs=logprobs, **self._place)

    def _event(self, kind: str, **details: Any) -> bytes:
        self._sequence_number += 1
        if self._sequence_number <= self._after:
            return b""
        return event(kind, {"type": kind, "sequence_number": self._sequence_number, **details})

    # ── shapes ─────────────────────────────────────────────────────────────────────────────────────────────

    def shape(self, run: Run | None) -> ResponseAnswer:
        """Returns the response with a run that has ended, or with None as it is at the beginning."""
        body, form, choice = self._body, self._format, self._body.tool_choice
        sampling, status, conversation = self._run.sampling, response_status(run), conversation_id(body)
        reason = self._run.stop_reason or ""
        return ResponseAnswer(
            id=f"{RESPONSE}{self._run_id}",
            object="response",
            created_at=int(self._run.created),
            status=status,
            error={"code": "server_error", "message": reason} if status == "failed" else None,
            incomplete_details=incomplete_details(run),
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            model=self.model,
            output=[] if run is None else self._output(run),
            parallel_tool_calls=body.parallel_tool_calls is not False,
            previous_response_id=body.previous_response_id,
            conversation=None if conversation is None else {"id": conversation},
            background=bool(body.background),
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            text={
                "format": {"type": "text"}
                if form is None
                else form.model_dump(by_alias=True, exclude_none=True)
            },
            tool_choice=choice.model_dump(exclude_none=True)
            if isinstance(choice, NamedFunction)
            else choice or "auto",
            tools=[tool.model_dump() for tool in body.tools or ()],
            truncation=body.truncation or "disabled",
            reasoning=None if body.reasoning is None else body.reasoning.model_dump(exclude_none=True),
            metadata=body.metadata or {},
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
