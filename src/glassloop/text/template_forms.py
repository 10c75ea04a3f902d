"""The forms of a model's chat template, found once: the marks of its thoughts, and how it writes calls."""

from __future__ import annotations

from typing import NamedTuple
from weakref import WeakKeyDictionary

from glassloop.text.answer_form import AnswerForm
from glassloop.text.answer_marks import FORMS, answer_form
from glassloop.text.call_marks import TemplateTools, template_tools
from glassloop.text.chat import ChatTemplate
from glassloop.text.tokenizer import Tokenizer


class TemplateForms(NamedTuple):
    template: ChatTemplate
    answer: AnswerForm | None  # None: the template has no marks around thoughts or answers
    tools: TemplateTools


def forms_of(tokenizer: Tokenizer) -> TemplateForms | None:
    """Returns the forms of a tokenizer's chat template, None if it has no template. The first call renders
    probe conversations."""
    template = tokenizer.chat_template
    if template is None:
        return None
    forms = _FORMS.get(tokenizer)
    if forms is None or forms.template is not template:
        answer = answer_form(template) or _by_tokens(tokenizer)
        forms = _FORMS[tokenizer] = TemplateForms(template, answer, template_tools(template, answer))
    return forms


def _by_tokens(tokenizer: Tokenizer) -> AnswerForm | None:
    """Returns the marks of thoughts that are tokens, for templates that leave them to the model."""
    for form in FORMS:
        if all(tokenizer.id_of(mark) is not None for mark in (form.begin, form.end)):
            return form
    return None


_FORMS: WeakKeyDictionary[Tokenizer, TemplateForms] = WeakKeyDictionary()
