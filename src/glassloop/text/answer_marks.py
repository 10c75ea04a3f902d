"""Which marks a chat template puts around thoughts and answers: found by rendering probe conversations.

What the template writes before and after a probe text is looked at, never its source. Templates that leave
thoughts out of earlier turns are recognized by what they open a new turn with.
"""

from __future__ import annotations

import re
from typing import Any

from glassloop.text.answer_form import AnswerForm
from glassloop.text.chat import ChatTemplate
from glassloop.text.probing import ANSWER, THOUGHT, USER, Probe

# Marks that are not one tag, or that no earlier turn shows. A thought in other tags is recognized by itself.
FORMS = (
    AnswerForm("<think>", "</think>"),
    AnswerForm("<|channel|>analysis<|message|>", "<|end|>"),  # gpt-oss (harmony)
    AnswerForm("<|channel>thought", "<channel|>"),  # Gemma 4
    AnswerForm("<|START_THINKING|>", "<|END_THINKING|>"),  # Cohere
    AnswerForm("<|open|>think<|sep|>", "<|close|>think<|sep|>"),  # Kimi K3
    AnswerForm("to=self<|message|>", "<|eom|>"),  # Muse
    AnswerForm("<|inner_prefix|>", "<|inner_suffix|>"),  # Apertus
    AnswerForm("[THINK]", "[/THINK]"),  # Mistral
    AnswerForm(
        "Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]", closing="[END FINAL RESPONSE]"
    ),  # Apriel
)
# Marks that only the instructions of a template name.
_INSTRUCTED = (
    AnswerForm("<think>", "</think>", opening="<response>", closing="</response>"),  # Granite 3
    FORMS[-1],
)
_TAG = r"<[^<>\s]{1,60}>|\[[^\[\]\s]{1,60}\]"
_ON: dict[str, Any] = {"enable_thinking": True, "thinking": True}
_OFF: dict[str, Any] = {"enable_thinking": False, "thinking": False}
_THOUGHTFUL: tuple[dict[str, Any], ...] = (
    {"content": ANSWER, "reasoning_content": THOUGHT, "reasoning": THOUGHT, "thinking": THOUGHT},
    {"content": [{"type": "thinking", "thinking": THOUGHT}, {"type": "text", "text": ANSWER}]},
    {
        "content": {
            "blocks": [{"type": "thoughts", "text": THOUGHT}, {"type": "response", "text": ANSWER}],
        }
    },
)


def answer_form(template: ChatTemplate) -> AnswerForm | None:
    """Returns the marks of a template, None if it has none."""
    probe = Probe(template)
    asked = [{"role": "user", "content": USER}]
    prompts = [probe.render(asked, open=True, **values) or "" for values in (_ON, _OFF, {})]
    plain = probe.render([*asked, {"role": "assistant", "content": ANSWER}], **_ON) or ""
    header, _, after = plain.partition(ANSWER)
    opening, closing = _around(prompts, header, after)
    for message in _THOUGHTFUL:
        text = probe.render([*asked, {"role": "assistant", **message}], **_ON) or ""
        before, found, rest = text.partition(THOUGHT)
        between, answered, _ = rest.partition(ANSWER)
        form = _shown(before, between, header, prompts) if found and answered else None
        if form is not None:
            link = between[between.index(form.end) + len(form.end) :]
            if link.strip() and not opening:
                opening, closing = link.strip(), _closing(after)
            return form._replace(link=link, opening=opening, closing=closing or form.closing)
    form = _opened(prompts, header) or _instructed(prompts)
    if form is not None:
        return form._replace(opening=opening or form.opening, closing=closing or form.closing)
    return AnswerForm(opening=opening, closing=closing) if opening else None


def _around(prompts: list[str], header: str, after: str) -> tuple[str, str]:
    """Returns what a template writes around an answer, as far as the model writes it too: it is not a part of
    the prompt, nor an empty thought."""
    for prompt in sorted(filter(None, prompts), key=len, reverse=True):
        if header.startswith(prompt):
            opening = header[len(prompt) :].strip()
            break
    else:
        return "", ""
    for form in FORMS:
        empty = opening.removeprefix(form.begin).lstrip()
        if empty.startswith(form.end):
            opening = empty.removeprefix(form.end).strip()
    opening = "" if re.fullmatch(r"</?[^<>\s]*think[^<>\s]*>\s*(</[^<>\s]+>)?", opening) else opening
    return opening, _closing(after) if opening else ""


def _closing(after: str) -> str:
    """Returns the mark at the beginning of what a template writes after an answer."""
    tags = re.match(rf"\s*((?:{_TAG})(?:\w+(?:{_TAG}))?)", after)
    return tags[1] if tags else ""


def _shown(before: str, between: str, header: str, prompts: list[str]) -> AnswerForm | None:
    """Returns the marks of a thought that a template has written between these texts."""
    left, right = before.rstrip(), between.lstrip()
    for form in FORMS:
        begins = left.endswith(form.begin) or any(each.rstrip().endswith(form.begin) for each in prompts)
        if begins and right.startswith(form.end):
            return form
    begin, end = re.search(rf"({_TAG})$", left), re.match(_TAG, right)
    if begin is None or end is None or header.rstrip().endswith(begin[1]):
        return None
    return AnswerForm(begin[1], end[0])


def _opened(prompts: list[str], header: str) -> AnswerForm | None:
    """Returns the marks with which a template opens a turn: a thought that is begun, or an empty one."""
    for form in FORMS:
        pair = re.compile(rf"{re.escape(form.begin)}\s*{re.escape(form.end)}\s*$")
        for text in (*prompts, header):
            if text.rstrip().endswith(form.begin) or pair.search(text):
                return form
    return None


def _instructed(prompts: list[str]) -> AnswerForm | None:
    """Returns the marks that the instructions of a template ask for."""
    thinking = prompts[0]
    for form in _INSTRUCTED:
        if all(mark in thinking for mark in (form.end, form.opening, form.closing)):
            return form
    return None
