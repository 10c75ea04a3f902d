"""Chat templates of current families, as llama.cpp has collected them: each has its right form, or no
tools. They are third-party, so they are not in this repository: set GLASSLOOP_TEMPLATES to the folder
`models/templates` of llama.cpp's sources, which the source distribution of `xllamacpp` has too.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from glassloop.text import call_marks
from glassloop.text.answer_marks import answer_form
from glassloop.text.call_marks import template_tools
from glassloop.text.call_reader import read_calls
from glassloop.text.chat import ChatTemplate
from glassloop.text.probing import USER, Probe

FOLDER = os.environ.get("GLASSLOOP_TEMPLATES")
FILES = sorted(Path(FOLDER).glob("*.jinja")) if FOLDER else []
NO_TOOLS = (
    "HuggingFaceTB-SmolLM3-3B",
    "google-gemma-2-2b-it",
    "llama-cpp-rwkv-world",
    "microsoft-Phi-3.5-mini-instruct",
)
# Their instructions have the form; they write no calls of earlier messages.
INSTRUCTED = ("LFM2-8B-A1B", "LFM2.5-Instruct", "ibm-granite-granite-3.3-2B-Instruct")
CALLS = [
    ("find", {"city": 'New York, "NY" 10001', "days": 5, "note": "17", "text": "a\nb <c>"}),
    ("look", {"city": "Oslo", "days": 7}),
]
PARAMETERS = {
    "type": "object",
    "properties": {
        name: {"type": kind, "description": "x"}
        for name, kind in (("city", "string"), ("days", "integer"), ("note", "string"), ("text", "string"))
    },
    "required": ["city"],
}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "x", "parameters": PARAMETERS}}
    for name, _ in CALLS
]


@pytest.mark.skipif(not FOLDER, reason="GLASSLOOP_TEMPLATES is not set")
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_template_has_its_form(file, monkeypatch):
    template = ChatTemplate(file.read_text(), "<BOS>", "<EOS>", file.name)
    answer = answer_form(template)
    tools = template_tools(template, answer)
    if file.stem in NO_TOOLS:
        assert not tools.lists and tools.known is None
        return
    assert tools.form is not None and (tools.calls or file.stem in INSTRUCTED)
    if file.stem in INSTRUCTED:
        return
    monkeypatch.setattr(call_marks, "_TOOLS", TOOLS)
    for count in (1, 2) if tools.form.most is None else (1,):
        assert CALLS[:count] in list(read_back(template, tools.form, answer, CALLS[:count]))


def read_back(template, form, answer, calls):
    """Yields the calls that are read in what a template writes of them, for each way of giving it calls."""
    probe = Probe(template)
    for content in ("", None):
        for as_text in (False, True):
            listed = [
                {
                    "id": f"callx000{place}",
                    "type": "function",
                    "function": {"name": name, "arguments": json.dumps(values) if as_text else values},
                }
                for place, (name, values) in enumerate(calls)
            ]
            message = {"role": "assistant", "content": content, "tool_calls": listed}
            text = probe.render([{"role": "user", "content": USER}, message], tools=TOOLS)
            if text is not None:
                text = call_marks._answer_of(probe, text, answer)
                _, read = read_calls(text, form, {name: PARAMETERS for name, _ in calls})
                yield [(call.name, json.loads(call.arguments)) for call in read]
