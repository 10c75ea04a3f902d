"""A hostile template ends in one line, soon, without the memory of the machine."""

from __future__ import annotations

import resource
import time

import pytest

from glassloop.errors import TextError
from glassloop.text import sandbox
from glassloop.text.chat import ChatTemplate

MESSAGE = [{"role": "user", "content": "x"}]
GROW = """{% set ns = namespace(x='aaaaaaaa') %}
{% for i in range(60) %}{% set ns.x = STEP %}{% endfor %}{{ ns.x END }}"""
MANY = "{% for i in range(99999) %}"


def _grow(step: str, end: str = "") -> str:
    return GROW.replace("STEP", step).replace("END", end)


HOSTILE = {
    "a long range": "{% for i in range(10**9) %}x{% endfor %}",
    "loops in loops": MANY + MANY + "{% set x = i %}{% endfor %}{% endfor %}",
    "loops that skip": MANY + "{% for j in range(99999) if false %}{% endfor %}{% endfor %}",
    "loops that print": MANY + MANY + "x" * 99 + "{% endfor %}{% endfor %}",
    "doubling macros": "{% macro f(n) %}{% if n %}{{ f(n-1) ~ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "endless macro": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "deep parentheses": "{{ " + "(" * 500 + "1" + ")" * 500 + " }}",
    "a test for each item": "{{ range(99999) | select('in', range(99999) | list) | list | length }}",
    "times": "{{ 'a' * 10**9 }}",
    "list times": "{{ ([[1] * 1000] * 10000) | length }}",
    "power": "{{ 10 ** 999999999 }}",
    "big product": "{{ 9 ** 99999 * 9 ** 99999 }}",
    "doubling with ~": _grow("ns.x ~ ns.x"),
    "doubling with +": _grow("ns.x + ns.x"),
    "doubling lists": _grow("[ns.x, ns.x]"),
    "doubling tuples": _grow("(ns.x, ns.x)", "== ns.x"),
    "doubling dicts": _grow("{'a': ns.x, 'b': ns.x}", "| tojson"),
    "doubling by call": _grow("dict(a=ns.x, b=ns.x)", "| string"),
    "doubling by join": _grow("[ns.x, ns.x] | join"),
    "percent width": "{{ '%1000000000d' % 1 }}",
    "percent star": "{{ '%*d' % (1000000000, 1) }}",
    "format filter": "{{ '%1000000000d' | format(1) }}",
    "format width": "{{ '{:>1000000000}'.format('') }}",
    "format inner width": "{{ '{:{w}}'.format('', w='>1000000000') }}",
    "center": "{{ 'a' | center(10**9) }}",
    "ljust": "{{ 'a'.ljust(10**9) }}",
    "replace": "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}",
    "replace filter": "{{ ('a' * 1000000) | replace('a', 'b' * 1000000) }}",
    "join": "{{ ('a' * 1000000).join(range(99999) | map('string') | list) }}",
    "join filter": "{{ range(99999) | join('a' * 1000000) }}",
    "indent": "{{ ('a\\n' * 1000000) | indent(99999) }}",
    "expandtabs": "{{ ('\\t' * 1000000).expandtabs(99999) }}",
    "sum of lists": "{{ [[1] * 1000] * 1000 | sum(start=[]) }}",
    "tojson indent": "{{ messages | tojson(indent=99999 * 100) }}",
    "date width": "{{ strftime_now('%99999999d') }}",
    "classes": "{{ ''.__class__.__mro__ }}",
    "globals": "{{ cycler.__init__.__globals__ }}",
    "changing messages": "{{ messages.append(1) }}",
    "files": "{% include '/etc/passwd' %}",
    "a message of lines": "{{ raise_exception('first\\nsecond') }}",
    "syntax": "{% for %}",
    "undefined": "{{ x.y.z }}",
    "unknown filter": "{{ x | nothing }}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_templates_end_in_one_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "MOST_SECONDS", 1.0)
    before, memory = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(TextError, match=r"^mine: ") as caught:
        ChatTemplate(HOSTILE[name], name="mine").render(MESSAGE)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400
    assert time.monotonic() - before < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 600_000  # KiB


def test_what_the_template_says_is_what_is_reported() -> None:
    with pytest.raises(TextError, match="mine: Only text, please"):
        ChatTemplate("{{ raise_exception('Only text, please') }}", name="mine").render(MESSAGE)
    with pytest.raises(TextError, match="mine: line 3: "):
        ChatTemplate("a\nb\n{% if %}", name="mine").render(MESSAGE)


def test_long_conversations_are_not_hostile() -> None:
    source = "{% for m in messages %}{{ m.role + ': ' + m.content | trim }}\n{% endfor %}"
    messages = [{"role": "user", "content": "word " * 2000}] * 500
    assert len(ChatTemplate(source).render(messages)) > 4_900_000


def test_one_rendering_does_not_spend_anothers_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "MOST_STEPS", 50)
    template = ChatTemplate("{% for i in range(10) %}{{ i }}{% endfor %}")
    for _ in range(20):
        assert template.render(MESSAGE) == "0123456789"
