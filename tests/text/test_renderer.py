"""A hostile template ends in one line, soon, without the memory of the machine, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import OrderedDict
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import wait_until

from glassloop.errors import TextError
from glassloop.text import renderer
from glassloop.text.chat import ChatTemplate
from glassloop.text.template_worker import TemplateLimits

MESSAGE = [{"role": "user", "content": "x"}]
GROW = """{% set ns = namespace(x='aaaaaaaa') %}
{% for i in range(60) %}{% set ns.x = STEP %}{% endfor %}{{ ns.x END }}"""
TIGHT = TemplateLimits(seconds=0.5, memory=96 << 20)
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
    "power": "{{ 10 ** 999999999 }}",
    "big product": "{{ 9 ** 99999 * 9 ** 99999 }}",
    "doubling with ~": _grow("ns.x ~ ns.x"),
    "doubling with +": _grow("ns.x + ns.x"),
    "doubling lists": _grow("[ns.x, ns.x]"),
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
    "tojson indent": "{{ messages | tojson(indent=99999 * 100) }}",
    # Found by attacking an earlier sandbox, which counted steps and weighed values inside Python.
    "a long format": "{{ ('{' ~ ':'*400000 ~ '}').format(1) }}",
    "division of large numbers": "{% set a = ('f'*2000000)|int(base=16) %}"
    "{% set b = ('7'*1000000)|int(base=16) %}" + "{{ a//b }}" * 5,
    "code without loops": "{% set a = 'a'*7000000 %}{% set b = 'a'*3000000 ~ 'b' %}"
    + "{%if b in a%}{%endif%}" * 4000,
    "tojson with a long indent": "{{ range(99999)|list|tojson(indent='x'*30000) }}",
    "tojson with long separators": "{{ range(99999)|list|tojson(separators=('x'*30000, ':')) }}",
    "many format fields": "{{ ('{0:>9999}' * 300000).format(1) }}",
    "many percent fields": "{{ ('%9999d' * 100000) % ((1,) * 100000) }}",
    "many large values": "{% set n = namespace() %}"
    + "".join(f"{{%set n.a{i}='😀'*3900000%}}" for i in range(300)),
    "a long source": "{{a}}" * 200_000,
    "a long expression": "{{ " + "~".join("a" * 40_000) + " }}",
    "a constant that takes long to fold": "{{ 7 ** (7 ** 9) % 5 }}",
    "the same text a million times": "{{ (['a' * 1000000] * 1000000) | join }}",
    "regular expressions of filters": "{{ ('<' * 9000000) | striptags }}{{ ('a@' * 3000000) | urlize }}",
    "classes": "{{ ''.__class__.__mro__ }}",
    "globals": "{{ cycler.__init__.__globals__ }}",
    "files": "{% include '/etc/passwd' %}",
    "a message of lines": "{{ raise_exception('first\\nsecond') }}",
    "syntax": "{% for %}",
    "undefined": "{{ x.y.z }}",
    "unknown filter": "{{ x | nothing }}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_templates_end_in_one_line(name: str) -> None:
    with pytest.raises(TextError, match=r"^mine: ") as caught:
        ChatTemplate(HOSTILE[name], name="mine", limits=TIGHT).render(MESSAGE)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_limits_are_named() -> None:
    def refused(template: str, **limits: Any) -> str:
        with pytest.raises(TextError) as caught:
            ChatTemplate(template, limits=TemplateLimits(**limits)).render(MESSAGE)
        return str(caught.value)

    assert refused(MANY + MANY + "{% endfor %}" * 2, seconds=0.2).endswith(": takes more than 0.2 seconds")
    assert refused("{{ 'a' * 10**9 }}").endswith(": needs too much memory")
    assert refused("{{ 'a' * 101 }}", text=100).endswith(": makes a text of more than 100 characters")
    assert refused("a" * 101, source=100).endswith(": has 101 characters; at most 100 are expected")
    assert refused("{{ '" + "a" * 10**6 + "' }}").endswith("at most 100000 are expected")


@settings(max_examples=60)
@given(
    st.recursive(
        st.sampled_from(
            ["m", "'a'", "7", "'%s'", "[1, 'é']", "range(9)", "messages", "{'k': m}", "'{}'", "10**5", "none"]
        ),
        lambda inner: st.one_of(
            st.tuples(inner, st.sampled_from([" * ", " ~ ", " + ", " ** ", " // ", " % ", " in "]), inner),
            st.tuples(
                inner, st.sampled_from([" | list", " | join('ab')", " | string", " | tojson(indent=9)"])
            ),
            st.tuples(
                inner, st.sampled_from([" | batch(9) | list", " | replace('a', m)", " | sum", ".format(m)"])
            ),
            st.tuples(st.just("("), inner, st.just(")"), st.just(" * 9999")),
        ).map(lambda parts: "(" + "".join(parts) + ")"),
        max_leaves=12,
    )
)
def test_any_expression_ends(expression: str) -> None:
    template = ChatTemplate("{% set m = messages[0].content * 99 %}{{ " + expression + " }}", limits=TIGHT)
    try:
        assert len(template.render(MESSAGE)) <= TIGHT.text
    except TextError as error:
        assert "\n" not in str(error)


def test_what_the_template_says_is_what_is_reported() -> None:
    with pytest.raises(TextError, match="mine: Only text, please"):
        ChatTemplate("{{ raise_exception('Only text, please') }}", name="mine").render(MESSAGE)
    with pytest.raises(TextError, match="mine: line 3: "):
        ChatTemplate("a\nb\n{% if %}", name="mine").render(MESSAGE)


def test_long_conversations_are_not_hostile() -> None:
    source = "{% for m in messages %}{{ m.role + ': ' + m.content | trim }}\n{% endfor %}"
    messages = [{"role": "user", "content": "wörd 😀" * 2000}] * 650
    assert len(ChatTemplate(source).render(messages)) > 7_800_000


def _workers() -> dict[int, tuple[str, TemplateLimits]]:
    """Returns the templates of all workers, by process."""
    return {child.pid: template for child, template in list(renderer._pool.children.items())}


def _open_files() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


def test_a_worker_is_used_again_unless_it_was_ended() -> None:
    template = ChatTemplate("{{ messages[0].content }}{{ n * 10**9 }}", limits=TIGHT)
    assert template.render(MESSAGE, n=2) == "x2000000000"
    before = set(_workers())
    with pytest.raises(TextError, match="TypeError"):
        template.render(MESSAGE, n=None)
    assert template.render(MESSAGE, n=1) == "x1000000000"
    assert set(_workers()) == before
    with pytest.raises(TextError, match="too much memory"):
        template.render(MESSAGE, n="a")
    assert template.render(MESSAGE, n=1) == "x1000000000"
    assert set(_workers()) != before


def test_nothing_is_left_of_a_worker_that_was_ended() -> None:
    renderer._pool.close()
    files = _open_files()
    for source in (MANY + MANY + "{% endfor %}" * 2, "{{ 'a' * 10**9 }}", "{% if %}", "{{ x.y.z }}"):
        with pytest.raises(TextError):
            ChatTemplate(source, limits=TIGHT).render(MESSAGE)
    started = set(_workers())  # that of the last one, which only failed
    assert len(started) == 1
    renderer._pool.close()
    assert _open_files() == files
    with pytest.raises(ChildProcessError):  # no child is left, dead or alive
        os.waitpid(started.pop(), os.WNOHANG)


def test_a_worker_that_somebody_killed_is_replaced() -> None:
    template = ChatTemplate("killed {{ messages[0].content }}")
    assert template.render(MESSAGE) == "killed x"
    for pid, (source, _) in _workers().items():
        if source == template.source:
            os.kill(pid, signal.SIGKILL)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert template.render(MESSAGE) == "killed x"


def test_a_worker_sees_no_files_and_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "key")
    template = ChatTemplate("limits of {{ messages[0].content }}")
    template.render(MESSAGE)
    pid = next(pid for pid, (source, _) in _workers().items() if source == template.source)
    assert b"SECRET" not in Path(f"/proc/{pid}/environ").read_bytes()
    assert len([*Path(f"/proc/{pid}/fd").iterdir()]) == 3
    limits = {
        line[:25].strip(): line[25:].split()[:2]
        for line in Path(f"/proc/{pid}/limits").read_text().splitlines()[1:]
    }
    assert limits["Max open files"] == ["3", "3"] and limits["Max file size"] == ["0", "0"]
    assert limits["Max processes"] == ["0", "0"]
    assert limits["Max address space"] == [str(template.limits.memory)] * 2
    assert int(limits["Max cpu time"][0]) < 60


def test_a_worker_ends_with_its_parent() -> None:
    code = """
from glassloop.text import renderer
from glassloop.text.chat import ChatTemplate
ChatTemplate("x").render([{"role": "user", "content": "x"}])
print(*[child.pid for child in renderer._pool.children], flush=True)
import os; os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    pid = int(done.stdout)
    wait_until(lambda: _state(pid) == "Z")


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except FileNotFoundError:
        return "Z"


def test_a_slow_template_does_not_hold_up_another() -> None:
    """The slow ones would take a minute each: they are killed when the quick one has come."""
    slow = ChatTemplate(MANY + MANY + "{% endfor %}" * 2, limits=TemplateLimits(seconds=60))
    quick = ChatTemplate("quick {{ messages[0].content }}")
    quick.render(MESSAGE)
    ended: list[str] = []

    def render() -> None:
        with pytest.raises(TextError) as error:
            slow.render(MESSAGE)
        ended.append(str(error.value))

    def rendering() -> list[int]:
        return [pid for pid, (_, limits) in _workers().items() if limits.seconds == 60]

    def kill() -> bool:
        for pid in rendering():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(ended) == len(threads)

    threads = [threading.Thread(target=render) for _ in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(rendering()) == renderer._MOST_OF_ONE)
    assert quick.render(MESSAGE) == "quick x"
    assert not ended  # it did not wait for any of the others
    wait_until(kill)
    assert not any("seconds" in each for each in ended)


def test_threads_render_at_once() -> None:
    template = ChatTemplate("{{ messages[0].content }}")
    wrong: list[str] = []

    def render(name: str) -> None:
        for i in range(50):
            text = f"{name} {i}"
            if template.render([{"role": "user", "content": text}]) != text:
                wrong.append(text)

    threads = [threading.Thread(target=render, args=(str(n),)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len(_workers()) <= 4


def test_a_fork_has_workers_of_its_own() -> None:
    template = ChatTemplate("{{ messages[0].content }}")
    template.render(MESSAGE)
    pid = os.fork()
    if pid == 0:
        try:
            mine = [template.render([{"role": "user", "content": str(i)}]) for i in range(20)]
            os._exit(0 if mine == [str(i) for i in range(20)] else 1)
        finally:
            os._exit(2)
    here = [template.render([{"role": "user", "content": f"p{i}"}]) for i in range(20)]
    assert here == [f"p{i}" for i in range(20)]
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_without_an_interpreter_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for executable in ("/nowhere/python", "", "/bin/true"):
        monkeypatch.setattr(sys, "executable", executable)
        with pytest.raises(TextError, match="mine: the process that renders it cannot be started"):
            ChatTemplate("never seen before", name="mine").render(MESSAGE)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@settings(max_examples=60)
@given(PLAIN)
def test_values_arrive_as_they_are(value: object) -> None:
    text = ChatTemplate("{{ value | tojson }}").render(MESSAGE, value=value)
    assert text == json.dumps(value, ensure_ascii=False)  # keys in the same order, too


def test_values_that_are_not_plain() -> None:
    template = ChatTemplate("{{ value }}", name="mine")
    odd = {"b": (1, 10**4000), "a": OrderedDict(z=MappingProxyType({"y": "\ud800"}))}
    assert template.render(MESSAGE, value=odd) == str({"b": [1, 10**4000], "a": {"z": {"y": "\ud800"}}})
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for value, complaint in [
        ({1, 2}, "mine: value cannot be written as JSON: it holds a set"),
        ([b"x"], "mine: value cannot be written as JSON: it holds a bytes"),
        (10**5000, "mine: value cannot be written as JSON: "),
        (deep, "mine: value is nested too deeply"),
    ]:
        with pytest.raises(TextError, match=complaint):
            template.render(MESSAGE, value=value)


def test_dates_are_those_of_the_time_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    # Two zones whose clocks never show the same hour.
    hours = []
    for zone in ("XXX-10", "XXX+10"):
        monkeypatch.setenv("TZ", zone)
        hours.append(ChatTemplate("{{ strftime_now('%H') }}" + f"{{# {zone} #}}").render(MESSAGE))
    assert hours[0] != hours[1]
    monkeypatch.delenv("TZ")
    assert ChatTemplate("{{ strftime_now('%Y') }}").render(MESSAGE) == datetime.now().strftime("%Y")


def test_a_date_of_a_very_large_width_ends() -> None:
    try:
        assert len(ChatTemplate("{{ strftime_now('%99999999d') }}", limits=TIGHT).render(MESSAGE)) < 10_000
    except TextError as error:
        assert "\n" not in str(error)


def test_a_warm_template_has_its_worker() -> None:
    template = ChatTemplate("warm {{ messages[0].content }}")
    template.warm()
    wait_until(
        lambda: any(renderer._pool.children[child][0] == template.source for child in renderer._pool._idle)
    )
    before = set(_workers())
    assert template.render(MESSAGE) == "warm x" and set(_workers()) == before
    ChatTemplate("{% if %}").warm()  # what is wrong is told when it is rendered
