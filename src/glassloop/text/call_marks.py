"""The form of tool calls of a chat template: found by rendering probe conversations with calls.

What the template writes around known names and values is the form. A template that writes no calls is known
by its instructions, as they are rendered.
"""

from __future__ import annotations

import json
import re
from itertools import takewhile
from typing import Any, NamedTuple

from glassloop.text.answer_form import AnswerForm
from glassloop.text.call_form import HERMES, ID, INDEX, INSTRUCTED, NAME, CallForm, PairForm
from glassloop.text.chat import ChatTemplate
from glassloop.text.probing import ANSWER, USER, Probe

_TOOL = "qxweatherxq"
_IDS = "qxcallx01", "qxcallx02"
_ARGUMENTS: tuple[dict[str, Any], ...] = (
    {"qxacity": "QxPARISxQ", "qxbtown": "QxLIMAxQ", "qxcdays": 7301, "qxdweeks": 7302, "qxeflag": True},
    {"qxacity": "QxROMExQ", "qxbtown": "QxOSLOxQ", "qxcdays": 7303, "qxdweeks": 7304, "qxeflag": True},
)
_PARAMETERS = {
    "type": "object",
    "properties": {
        name: {"type": kind, "description": "x"}
        for name, kind in zip(
            _ARGUMENTS[0], ("string", "string", "integer", "integer", "boolean"), strict=True
        )
    },
    "required": list(_ARGUMENTS[0]),
}
_TOOLS = [
    {
        "type": "function",
        "function": {"name": _TOOL, "description": "x", "parameters": _PARAMETERS},
    }
]


class TemplateTools(NamedTuple):
    """What a chat template does with tools."""

    lists: bool  # it writes the tools of a request
    calls: bool  # it writes the calls of earlier messages
    known: CallForm | None  # None: it is not known, or the template has no tools

    @property
    def form(self) -> CallForm | None:
        """The form of the calls that the model writes, None if it is not known. Where a template has no place
        for tools they are described in the system message, with a form of our own."""
        return self.known if self.known or self.lists else HERMES


def template_tools(template: ChatTemplate, answer: AnswerForm | None) -> TemplateTools:
    """Returns what a template does with tools. `answer` has its marks around thoughts."""
    probe = Probe(template)
    asked = [{"role": "user", "content": USER}]
    plain, listed = probe.render(asked, open=True), probe.render(asked, open=True, tools=_TOOLS)
    lists = listed is not None and _TOOL in listed
    calls = False
    for content in ("", None):
        for as_text in (False, True):
            message = _message(content, as_text)
            texts = [
                probe.render([*asked, {**message, "tool_calls": message["tool_calls"][:count]}], tools=_TOOLS)
                for count in (1, 2)
            ]
            turn = (texts[0] or "").rpartition(USER)[2]
            calls = calls or any(word in turn for word in (_TOOL, _IDS[0], "QxPARISxQ"))
            form = _form_of(probe, texts[0], texts[1], answer) if texts[0] and _TOOL in turn else None
            if form is not None:
                return TemplateTools(lists, True, form)
    if listed is None or listed == plain:
        return TemplateTools(False, calls, None)
    form = next((form for sign, form in INSTRUCTED.items() if sign in listed), None)
    return TemplateTools(lists, calls, form)


def _message(content: str | None, as_text: bool) -> dict[str, Any]:
    calls = [
        {
            "id": id,
            "type": "function",
            "function": {"name": _TOOL, "arguments": json.dumps(values) if as_text else values},
        }
        for id, values in zip(_IDS, _ARGUMENTS, strict=True)
    ]
    return {"role": "assistant", "content": content, "tool_calls": calls}


class _Site(NamedTuple):
    """Where a call is in a text: the places of its name and of its arguments."""

    name: int
    first: int  # of the arguments
    last: int  # after the arguments


def _form_of(probe: Probe, one: str, two: str | None, answer: AnswerForm | None) -> CallForm | None:
    """Returns the form of a template that has written a message with one call and, unless it refuses that,
    with two."""
    one = _blank(_answer_of(probe, one, answer))
    site = _site(one, 0)
    if site is None:
        return None
    arguments, middle = one[site.first : site.last], one[site.name + 1 : site.first]
    before, ends = one[: site.name], one[site.last :]
    opening, after, between, closing = "", ends, "", ""
    most: int | None = 1
    both = None if two is None else _blank(_answer_of(probe, two, answer))
    second = None if both is None else _site(both, 1)
    if both is not None and second is not None:
        first = _site(both, 0)
        assert first is not None
        begins, joint, ends = both[: first.name], both[first.last : second.name], both[second.last :]
        before = _common_suffix(begins, joint)
        opening, joint = begins[: len(begins) - len(before)], joint[: len(joint) - len(before)]
        after = _common_prefix(joint, ends)
        between, closing, most = joint[len(after) :], ends[len(after) :], None
    pairs = None
    if not arguments.startswith("{"):
        pairs = _pairs(arguments)
        if pairs is None:
            return None
        middle, end = middle.removesuffix(pairs.key), pairs.other[1].replace(NAME, "qxeflag")
        after = after.removeprefix(end) if after.startswith(end) else after.removeprefix(end.rstrip())
    if not opening:
        before = before.lstrip()
    return CallForm(before, middle, after, opening.lstrip(), between, closing, pairs, most)


def _answer_of(probe: Probe, text: str, answer: AnswerForm | None) -> str:
    """Returns what the model itself has to write of a text: without the prompt, an empty thought and the end
    of the message."""
    asked = [{"role": "user", "content": USER}]
    prompts = [
        probe.render(asked, open=True, tools=_TOOLS, **values) or ""
        for values in ({}, {"enable_thinking": True}, {"enable_thinking": False})
    ]
    plain = probe.render([*asked, {"role": "assistant", "content": ANSWER}], tools=_TOOLS) or ""
    header, _, footer = plain.rpartition(ANSWER)
    starts = [each for each in prompts if each and text.startswith(each)]
    start = max(map(len, starts), default=len(_common_prefix(text, header)))
    end = _common_suffix(text[start:], footer)
    text = text[start : len(text) - len(end)]
    if answer is not None:
        for left, right in ((answer.begin, answer.end), (answer.opening, answer.closing)):
            empty = text.lstrip().removeprefix(left).lstrip() if left else text
            if right and empty.startswith(right):
                text = empty.removeprefix(right)
    return text


def _site(text: str, number: int) -> _Site | None:
    """Returns where the call of this number is in a text whose names of functions are placeholders."""
    values = _ARGUMENTS[number]
    place = text.find(str(values["qxacity"]))
    decoder = json.JSONDecoder()
    for each in [*re.finditer(r"\{", text[: max(0, place)])][::-1]:
        try:
            value, last = decoder.raw_decode(text, each.start())
        except (ValueError, RecursionError):
            continue
        if value == values:
            name = text.rfind(NAME, 0, each.start())
            return None if name < 0 else _Site(name, each.start(), last)
    first = text.rfind("qxacity", 0, max(0, place))
    name, flag = text.rfind(NAME, 0, max(0, first)), text.find("qxeflag", max(0, place))
    true = re.compile("true", re.I).search(text, flag) if flag >= 0 else None
    return None if min(place, first, name) < 0 or true is None else _Site(name, first, true.end())


def _pairs(arguments: str) -> PairForm | None:
    """Returns how arguments are written one by one, from the first name to the last value."""
    gaps, at = list[str](), 0  # what is between name, value, name, value, …
    for name, value in _ARGUMENTS[0].items():
        for word in (name, str(value)):
            place = arguments.lower().find(word.lower(), at)
            if place < 0:
                return None
            gaps.append(arguments[at:place].replace(name, NAME))
            at = place + len(word)
        arguments = arguments[:at] + arguments[at:].replace(name, NAME, 1)
    # A joint is the end of a value, what is between pairs, and what is before a name.
    joint, other_joint = gaps[2], gaps[6]
    shared = _common_suffix(joint, other_joint)
    tag = max(shared.rfind("<"), shared.rfind("<|open|>"))
    key = shared[tag:] if tag >= 0 and not shared.startswith("</", tag) else ""
    between = "" if key else shared
    size = len(key) + len(between)
    text, other = joint[: len(joint) - size], other_joint[: len(other_joint) - size]
    return PairForm(key, (gaps[1], text), (gaps[5], other), between, arguments[at - 4 : at])


def _blank(text: str) -> str:
    """Returns a text of calls in which ids, numbers and names of functions are placeholders."""
    for id in _IDS:
        text = text.replace(id, ID)
    return re.sub(r"(?<![\w.])[0-9](?![\w.])", INDEX, text.replace(_TOOL, NAME))


_UNIT = re.compile(r"<[^<>\s]*>|\[/?[A-Z_]+\]|.", re.S)  # a tag is never cut


def _common_prefix(one: str, other: str) -> str:
    units = zip(_UNIT.findall(one), _UNIT.findall(other), strict=False)
    return "".join([mine for mine, _ in takewhile(lambda pair: pair[0] == pair[1], units)])


def _common_suffix(one: str, other: str) -> str:
    units = zip(_UNIT.findall(one)[::-1], _UNIT.findall(other)[::-1], strict=False)
    return "".join([mine for mine, _ in takewhile(lambda pair: pair[0] == pair[1], units)][::-1])
