"""Probe conversations: texts that no template contains, and what a template writes of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glassloop.errors import TextError
from glassloop.text.chat import ChatTemplate

USER, THOUGHT, ANSWER = "QxUSERxQ", "QxTHOUGHTxQ", "QxANSWERxQ"


class Probe:
    """What one template writes of probe conversations."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self.failures: list[str] = []

    def render(
        self, messages: Sequence[dict[str, Any]], *, open: bool = False, tools: Any = None, **values: Any
    ) -> str | None:
        """Returns the text of a conversation, None if the template refuses it. `open` opens the next turn."""
        values = {"messages": list(messages), "tools": tools, "add_generation_prompt": open, **values}
        try:
            return self._template.write(values)
        except TextError as error:
            self.failures.append(str(error))
            return None
