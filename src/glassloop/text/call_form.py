"""How a model writes tool calls, as data: the texts around names and arguments, and how these are written.

`call_marks.py` finds the form of a chat template by rendering it; `call_reader.py` reads calls in a text, and
the server makes a grammar, from the same description.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

# Characters that stand for what differs from call to call in the texts of a form.
ID, INDEX, NAME = "\ue000", "\ue001", "\ue002"  # an id, a number, the name once more
_MARK = re.compile(r"<[^<>\s]+>|\[[A-Z_]+\]|[^\s\"'{}\ue000-\ue002]{5,}")


class PairForm(NamedTuple):
    """How arguments are written one by one: `key`, its name, then for a text or for any other value what is
    between the name and the value and what is after the value, with `between` between pairs."""

    key: str
    text: tuple[str, str]
    other: tuple[str, str]
    between: str = ""
    true: str = "true"  # how true is written; false accordingly

    @property
    def names_types(self) -> bool:
        """Whether the type of each value is written, in the words of JSON."""
        return self.other[0] == self.text[0].replace("string", "number") != self.text[0]

    @property
    def is_typed(self) -> bool:
        """Whether what is written around a value says if that is a text."""
        return self.text != self.other


@dataclass(frozen=True)
class CallForm:
    """`opening`, then for each call `before`, its name, `middle`, its arguments and `after`, with `between`
    between calls, then `closing`. Without `pairs` the arguments are a JSON object."""

    before: str
    middle: str
    after: str = ""
    opening: str = ""
    between: str = ""
    closing: str = ""
    pairs: PairForm | None = None
    most: int | None = None  # how many calls an answer can have, if that is limited

    @property
    def begins(self) -> str:
        """The text before the first name."""
        return (self.opening + self.before).lstrip()

    @property
    def mark(self) -> str:
        """The text with which calls begin within an answer; empty if calls are the whole answer."""
        mark = _MARK.match(self.begins)
        return mark[0] if mark else ""

    def write(self, name: str, arguments: str) -> str:
        """Returns one call with arguments in JSON."""
        text = f"{self.begins}{name}{self.middle}{arguments}{self.after}{self.closing}"
        return text.replace(ID, "").replace(INDEX, "0").replace(NAME, name)


def json_form(opening: str, closing: str, between: str = ", ", values: str = "arguments") -> CallForm:
    """Returns a form whose calls are JSON objects with a name and arguments."""
    return CallForm('{"name": "', f'", "{values}": ', "}", opening, between, closing)


HERMES = CallForm('<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>", between="\n")
PLAIN = json_form("", "", "; ")  # for calls that are demanded in no known form
_PYTHON = PairForm("", ("='", "'"), ("=", ""), ", ", "True")
# Forms of templates that do not write calls, by a text of what they write instead: their instructions, or
# how they write results.
INSTRUCTED = {
    "<|tool_call|>": json_form("<|tool_call|>[", "]"),  # Granite 3
    "<tool_call>": HERMES,  # SmolLM3
    "functools[": json_form("functools[", "]"),  # Firefunction
    "<|tool_list_start|>": CallForm(
        "", "(", ")", "<|tool_call_start|>[", ", ", "]<|tool_call_end|>", _PYTHON
    ),  # LFM2
    "List of tools: [": CallForm("", "(", ")", "<|tool_call_start|>[", ", ", "]<|tool_call_end|>", _PYTHON),
}
