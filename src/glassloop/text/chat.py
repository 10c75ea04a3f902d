"""Chat templates: they turn a conversation into the one text that the model was trained on.

A template is a small Jinja program that comes with the model. `renderer` runs it in a process of its own,
within limits; it is imported when the first template is rendered.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import Any, NamedTuple

from glassloop.errors import TextError
from glassloop.text.template_worker import TemplateLimits
from glassloop.util.files import read_at_most
from glassloop.util.shown import shown

# Appended to the message to be continued while the template runs; the text is cut there. Its trailing space
# shows whether the template trims messages.
_HERE = "\u2403continue-here\u2403 "


class ChatTemplate(NamedTuple):
    source: str
    bos: str = ""  # the text of the model's BOS and EOS, which templates write themselves
    eos: str = ""
    name: str = "chat template"  # what errors call it
    variants: Mapping[str, str] = {}  # by name, such as "tool_use" and "rag"
    limits: TemplateLimits = TemplateLimits()

    @classmethod
    def choose(cls, sources: Mapping[str, str], *, bos: str, eos: str, name: str) -> ChatTemplate | None:
        """Returns the default template of a model with several, each with a name; None if it has none."""
        if not sources:
            return None
        source = sources.get("default") or next(iter(sources.values()))
        return cls(source, bos, eos, name, {key: text for key, text in sources.items() if key != "default"})

    @classmethod
    def from_file(cls, path: Path, *, bos: str = "", eos: str = "") -> ChatTemplate:
        data = read_at_most(path, 4 * TemplateLimits().source, TextError)  # a character has up to four bytes
        try:
            return cls(data.decode(), bos, eos, path.name)
        except UnicodeDecodeError:
            raise TextError(f"{path}: is not UTF-8 text") from None

    def has_variable(self, name: str) -> bool:
        """Returns whether the template, or a variant of it, seems to have a variable of this name: the word
        occurs, and neither as an attribute nor in quotes."""
        word = re.compile(rf"(?<![\w.'\"]){re.escape(name)}(?![\w'\"])")
        return any(word.search(source) for source in (self.source, *self.variants.values()))

    def variant(self, name: str) -> ChatTemplate:
        if name not in self.variants:
            names = ", ".join(sorted(self.variants)) or "none"
            raise TextError(f"{self.name}: has no variant {name!r}; there are: {names}")
        return self._replace(source=self.variants[name], name=f"{self.name}.{name}", variants={})

    def warm(self) -> None:
        """Starts the renderer in the background, so that the first conversation does not wait for it."""

        def start() -> None:
            with suppress(TextError):  # the first rendering raises it
                _renderer().warm(self.source, self.limits)

        Thread(target=start, name="chat template", daemon=True).start()

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final: bool = False,
        tools: Sequence[Any] | None = None,
        **extra: Any,
    ) -> str:
        """Returns the prompt. `continue_final` leaves the last message, the assistant's, open for the model
        to continue; `add_generation_prompt` opens a new one. `extra` are further variables of the
        template."""
        checked = check_messages(messages)
        if continue_final:
            add_generation_prompt = False
            final = checked[-1]
            if final["role"] != "assistant" or not isinstance(final.get("content"), str):
                raise TextError(
                    f"messages[{len(checked) - 1}] cannot be continued: a text of the assistant is expected"
                )
            checked[-1] = {**final, "content": final["content"] + _HERE}
        values = {
            "messages": checked,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
            **extra,
        }
        text = self.write(values)
        return _cut(self.name, text) if continue_final else text

    def write(self, values: Mapping[str, Any]) -> str:
        """Returns the text of values as they are, `messages` and `tools` among them."""
        has_own = values.get("tools") is not None and "tool_use" in self.variants
        template = self.variant("tool_use") if has_own else self
        if values.get("tools") and self.has_variable("functions"):  # Firefunction's name for them
            functions = [each["function"] for each in values["tools"]]
            written = json.dumps(functions, ensure_ascii=False)
            values = {"functions": written, "datetime": "", **values}
        named = {"documents": None, "bos_token": self.bos, "eos_token": self.eos, **values}
        try:
            return str(_renderer().render(template.source, named, template.limits))
        except TextError as error:
            raise TextError(f"{template.name}: {error}") from None


def _renderer() -> ModuleType:
    try:
        from glassloop.text import renderer
    except ImportError:
        raise TextError("cannot be rendered: this system has no limits for processes") from None
    return renderer


def _cut(name: str, text: str) -> str:
    place = text.rfind(_HERE.strip())
    if place < 0:
        raise TextError(f"{name}: leaves out the last message, so it cannot be continued")
    kept = text.startswith(_HERE, place)  # the template keeps white space at the end of a message
    return text[:place] if kept else text[:place].rstrip()


def check_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the conversation as templates expect it: a role and text in each message. OpenAI's lists of
    parts (`[{"type": "text", "text": "…"}]`) are joined, one line each."""
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise TextError.about("messages", f"must be a list of messages, not {type(messages).__name__}")
    if not messages:
        raise TextError.about("messages", "is empty; at least one message is expected")
    return [_check_message(f"messages[{i}]", message) for i, message in enumerate(messages)]


def _check_message(where: str, message: object) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise TextError.about(where, f"must be an object with role and content, not {type(message).__name__}")
    if not isinstance(message.get("role"), str):
        raise TextError.about(f"{where}.role", f"must be text, not {_type(message, 'role')}")
    content = message.get("content")
    if isinstance(content, str):
        return dict(message)
    if isinstance(content, Sequence) and not isinstance(content, bytes):
        return {
            **message,
            "content": "\n".join(_part(f"{where}.content[{i}]", p) for i, p in enumerate(content)),
        }
    if content is None and message.get("tool_calls"):  # a message that only calls tools has no text
        return dict(message)
    problem = f"must be text or a list of text parts, not {_type(message, 'content')}"
    raise TextError.about(f"{where}.content", problem)


def _part(where: str, part: object) -> str:
    if not isinstance(part, Mapping):
        raise TextError.about(where, f"must be an object with type and text, not {type(part).__name__}")
    if part.get("type", "text") != "text":
        raise TextError.about(f"{where}.type", f"is {shown(part.get('type'))}; only text is supported")
    if not isinstance(part.get("text"), str):
        raise TextError.about(f"{where}.text", f"must be text, not {_type(part, 'text')}")
    return str(part["text"])


def _type(mapping: Mapping[str, Any], key: str) -> str:
    return type(mapping[key]).__name__ if key in mapping else "missing"
