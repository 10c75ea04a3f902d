"""Probe conversations: texts that no template contains, and what a template writes of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glassloop.errors import TextError
from glassloop.text.chat import ChatTemplate

_LONGEST = 200_000  # characters of a probe conversation; instructions about tools have up to some 10,000
USER, THOUGHT, ANSWER = "QxUSERxQ", "QxTHOUGHTxQ", "QxANSWERxQ"


class Probe:
    """What one template writes of probe conversations."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template

    def render(
        self, messages: Sequence[dict[str, Any]], *, open: bool = False, tools: Any = None, **values: Any
    ) -> str | None:
        """Returns the text of a conversation, None if the template refuses it or writes too much. `open`
        opens the next turn."""
        values = {"messages": list(messages), "tools": tools, "add_generation_prompt": open, **values}
        try:
            text = self._template.write(values)
        except TextError:
            return None
        return text if len(text) <= _LONGEST else None
