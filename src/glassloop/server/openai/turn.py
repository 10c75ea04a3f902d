"""The next turn of a conversation: its engine request, and the text and the calls of its answer.

Every protocol (chat, responses, Anthropic's, Ollama's) brings a conversation into OpenAI's form,
asks for a turn, and writes its parts in shapes of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from glassloop.record.run import Run
from glassloop.record.run_record import BETWEEN_THOUGHTS
from glassloop.record.token import Token
from glassloop.server.openai.conversation import Message, Tool, as_recorded, encode_messages
from glassloop.server.openai.tool_calls import NamedTool, ToolCall, ToolUse, build, tools_in_use
from glassloop.server.service import Service
from glassloop.text.answer_form import AnswerForm, AnswerReader, Part


class TurnParts(NamedTuple):
    """The parts of an answer: what the model has thought, the text that it answers with, and tool calls."""

    thought: str
    text: str
    calls: list[ToolCall]


class TurnDelta(NamedTuple):
    """What a token adds to the parts of an answer."""

    thought: str
    text: str


class TurnReader:
    """Reads the parts of an answer that is written with these tools, by a template with this form."""

    def __init__(self, tools: ToolUse | None, form: AnswerForm | None) -> None:
        self.tools, self.form = tools, form

    def parts(self, run: Run) -> TurnParts:
        """Returns the parts of an answer that has ended."""
        thought, text = (run.thoughts, run.answer) if run.form else ("", run.text)
        if self.tools is None:
            return TurnParts(thought, text, [])
        text, calls = self.tools.split(run, text, whole=run.finish_reason in ("stop", "repetition"))
        return TurnParts(thought, text, calls)

    def stream(self) -> TurnStream:
        return TurnStream(self)


class AssistantTurn(TurnReader):
    """What the model is asked to write after `messages`. `field` is where the client gives these and `note`
    what else counts as a part of them, for errors; without a limit in `options` the answer may be as long as
    there is room for."""

    def __init__(
        self,
        service: Service,
        messages: Sequence[Message],
        options: dict[str, Any],
        *,
        tools: Sequence[Tool] | None = None,
        tool_choice: NamedTool | str | None = None,
        parallel: bool | None = None,
        continue_final: bool = False,
        values: dict[str, Any] | None = None,
        field: str = "messages",
        note: str = "",
    ) -> None:
        offered = None if tool_choice == "none" else tools
        ids = encode_messages(
            service, messages, offered, field=field, note=note, continue_final=continue_final, values=values
        )
        room = max(1, service.llm.config.context - len(ids))
        use = tools_in_use(service, offered, tool_choice, parallel)
        self.sampling, compiled = build(service, {"max_tokens": room, **options}, use)
        self.request = service.prepare(ids, self.sampling, compiled, as_recorded(messages))
        super().__init__(use, self.request.runs[0].form)


class TurnStream:
    """The parts of one answer as its tokens come."""

    def __init__(self, turn: TurnReader) -> None:
        self._turn = turn
        self._reader = AnswerReader(turn.form)
        self._calls = None if turn.tools is None else turn.tools.stream()
        self._has_thought = False

    def add(self, token: Token) -> TurnDelta:
        """Returns what can be sent now. What may be a mark, or the beginning of a call, is held back."""
        return self._delta(self._reader.feed(token.text))

    def end(self, run: Run) -> TurnParts:
        """Returns what was held back, and the calls."""
        rest = self._delta([*self._reader.feed(run.tail), *self._reader.flush()])
        if self._calls is None:
            return TurnParts(rest.thought, rest.text, [])
        _, text, calls = self._turn.parts(run)
        sent = self._calls.sent - len(rest.text)
        return TurnParts(rest.thought, text[sent:], calls)

    def _delta(self, parts: Sequence[Part]) -> TurnDelta:
        thought = text = ""
        for part in parts:
            if part.kind == "answer":
                text += part.text if self._calls is None else self._calls.add(part.text)
            else:
                thought += BETWEEN_THOUGHTS if part.begins and self._has_thought else ""
                thought += part.text
                self._has_thought = True
        return TurnDelta(thought, text)
