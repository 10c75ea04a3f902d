"""The next turn of a conversation: its engine request, and the text and the calls of its answer.

Every protocol (chat, responses, Anthropic's, Ollama's) brings a conversation into OpenAI's form,
asks for a turn, and writes its parts in shapes of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glassloop.record.run import Run
from glassloop.record.token import Token
from glassloop.server.openai.conversation import Message, Tool, as_recorded, encode_messages
from glassloop.server.openai.tool_calls import NamedTool, ToolCall, build, tools_in_use
from glassloop.server.service import Service


class AssistantTurn:
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
        self.tools = tools_in_use(service, offered, tool_choice, parallel)
        self.sampling, compiled = build(service, {"max_tokens": room, **options}, self.tools)
        self.request = service.prepare(ids, self.sampling, compiled, as_recorded(messages))

    def parts(self, run: Run) -> tuple[str, list[ToolCall]]:
        """Returns the text and the tool calls of an answer that has ended."""
        if self.tools is None:
            return run.text, []
        return self.tools.split(run, whole=run.finish_reason in ("stop", "repetition"))

    def stream(self) -> TurnStream:
        return TurnStream(self)


class TurnStream:
    """The parts of one answer as its tokens come."""

    def __init__(self, turn: AssistantTurn) -> None:
        self._turn = turn
        self._calls = None if turn.tools is None else turn.tools.stream()

    def add(self, token: Token) -> str:
        """Returns the text that can be sent now: what may be the beginning of a call is held back."""
        return token.text if self._calls is None else self._calls.add(token.text)

    def end(self, run: Run) -> tuple[str, list[ToolCall]]:
        """Returns the text that was held back, and the calls."""
        if self._calls is None:
            return run.tail, []
        text, calls = self._turn.parts(run)
        return text[self._calls.sent :], calls
