"""Thoughts and answers: which marks a template has, and which part of a text is which."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassloop.text.answer_form import AnswerForm, AnswerReader, spans_of
from glassloop.text.answer_marks import answer_form
from glassloop.text.chat import ChatTemplate

LOOP = "{% for m in messages %}<|im_start|>{{ m.role }}\n"
END = "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
TEMPLATES = {
    "none": (LOOP + "{{ m.content }}" + END + "{% endif %}", None),
    "in tags": (
        LOOP + "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
        "{{ m.content }}" + END + "{% endif %}",
        AnswerForm("<think>", "</think>", link="\n\n"),
    ),
    "in tags of its own": (
        LOOP + "{% if m.reasoning %}<my:mind>{{ m.reasoning }}</my:mind>{% endif %}{{ m.content }}"
        + END + "{% endif %}",
        AnswerForm("<my:mind>", "</my:mind>"),
    ),
    "opened, and left out of earlier turns": (
        LOOP + "{{ m.content }}" + END + "<think>\n{% endif %}",
        AnswerForm("<think>", "</think>"),
    ),
    "switched off": (
        LOOP + "{{ m.content }}" + END
        + "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}",
        AnswerForm("<think>", "</think>"),
    ),
    "channels": (
        "{% for m in messages %}<|start|>{{ m.role }}{% if m.role == 'assistant' %}{% if m.thinking %}"
        "<|channel|>analysis<|message|>{{ m.thinking }}<|end|><|start|>assistant{% endif %}"
        "<|channel|>final<|message|>{{ m.content }}<|return|>"
        "{% else %}<|message|>{{ m.content }}<|end|>{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}",
        AnswerForm(
            "<|channel|>analysis<|message|>",
            "<|end|>",
            "<|start|>assistant<|channel|>final<|message|>",
            "<|channel|>final<|message|>",
            "<|return|>",
        ),
    ),
    "a list of parts": (
        LOOP + "{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
        "{% if part.type == 'thinking' %}[THINK]{{ part.thinking }}[/THINK]{% else %}{{ part.text }}"
        "{% endif %}"
        "{% endfor %}{% endif %}" + END + "{% endif %}",
        AnswerForm("[THINK]", "[/THINK]"),
    ),
    "instructions": (
        "{% if thinking %}Think in <think></think>, answer in <response></response>.{% endif %}"
        + LOOP + "{{ m.content }}" + END + "{% endif %}",
        AnswerForm("<think>", "</think>", "", "<response>", "</response>"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_marks_of_a_template_are_found(name):
    source, form = TEMPLATES[name]
    assert answer_form(ChatTemplate(source)) == form


THINK = AnswerForm("<think>", "</think>", "\n\n")
CHANNELS = TEMPLATES["channels"][1]
assert CHANNELS is not None
CASES = [
    (None, "<think>a</think>b", "", "<think>a</think>b"),
    (THINK, "<think>\nSo.\n</think>\n\nYes.", "So.", "Yes."),
    (THINK, "Yes, <think>", "", "Yes, <think>"),
    (THINK, " Yes", "", " Yes"),
    (THINK, "<think>\n\n</think>\n\nYes", "", "Yes"),
    (THINK, "<think>cut </thi", "cut </thi", ""),
    (THINK, "<th", "", "<th"),
    (THINK._replace(opened=True), "So.</think>Yes", "So.", "Yes"),
    (THINK._replace(opened=True), "So. ", "So.", ""),
    (
        CHANNELS,
        "<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>analysis<|message|>B<|end|>"
        "<|start|>assistant<|channel|>final<|message|>Yes<|return|>",
        "A\n\nB",
        "Yes",
    ),
    (CHANNELS, "<|channel|>final<|message|>Yes", "", "Yes"),
    (TEMPLATES["instructions"][1], "<think>A</think> <response>Yes</response>", "A", "Yes"),
]


def parts(form, pieces):
    spans = spans_of(form, pieces)
    thoughts = "\n\n".join(span.text for span in spans if span.kind == "thought")
    return thoughts, "".join(span.text for span in spans if span.kind == "answer")


@pytest.mark.parametrize(("form", "text", "thought", "answer"), CASES)
def test_a_text_is_split_the_same_however_it_comes(form, text, thought, answer):
    assert parts(form, [text]) == (thought, answer)
    assert parts(form, list(text)) == (thought, answer)


@given(
    st.lists(st.sampled_from(["<", "<think>", "</think>", "think>", "a", " ", "\n", "</", "b<"])), st.data()
)
def test_pieces_do_not_matter_and_nothing_is_lost(words, data):
    text = "".join(words)
    form = THINK._replace(opened=data.draw(st.booleans()))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert parts(form, pieces) == parts(form, [text])
    reader = AnswerReader(form)
    read = [each for piece in pieces for each in reader.feed(piece)] + reader.flush()
    assert all(text[each.at : each.at + len(each.text)] == each.text for each in read)
    left = "".join(each.text for each in read).replace("<think>", "").replace("</think>", "")
    kept = text.replace("<think>", "").replace("</think>", "")
    assert "".join(left.split()) == "".join(kept.split())


def test_a_span_has_the_places_of_its_tokens():
    pieces = ["<think>", "\n", "one", " two", "\n</th", "ink>", "\n\n", "three", " four"]
    (thought, answer) = spans_of(THINK, pieces)
    assert (thought.kind, thought.text, thought.first, thought.last) == ("thought", "one two", 2, 4)
    assert (answer.kind, answer.text, answer.first, answer.last) == ("answer", "three four", 7, 9)
