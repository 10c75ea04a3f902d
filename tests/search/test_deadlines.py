"""Extractors and verifiers of clients end in time: patterns and schemas are compiled and searched in
processes that are ended, under one deadline, and nothing of them is left behind."""

from __future__ import annotations

import json
import re
import threading
from contextlib import ExitStack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassloop import Budget, GlassloopError, Sampling, Verdict
from glassloop.engine.deadline import Cancelled, Deadline, TimedOut
from glassloop.engine.thread import Busy
from glassloop.search.extract import choice, find_extractor
from glassloop.search.judging import Judging
from glassloop.search.verdict import TimedVerifier, verdict_of
from glassloop.search.verify import patterns
from glassloop.search.verify.checks import find_verifier
from glassloop.search.verify.json_schema import check_schema, mismatch
from glassloop.search.verify.unit_tests import python_check

SLOW_TO_COMPILE = "(?i)" + "[!-\uffff]" * 280
SLOW = "(a+)+$"
TEXT = "a" * 20 + "!"  # on which it takes a good part of a second


def slow_schema(count: int) -> str:
    return "json:" + json.dumps(
        {"items": {"anyOf": [{"pattern": f"{SLOW}|{place}x"} for place in range(count)]}}
    )


def test_a_pattern_that_is_slow_to_compile_is_ended(monkeypatch):
    monkeypatch.setattr(patterns, "SECONDS", 0.1)
    for name in (f"regex:{SLOW_TO_COMPILE}", "json:" + json.dumps({"pattern": SLOW_TO_COMPILE})):
        with pytest.raises(GlassloopError, match=r"takes more than|took longer than"):
            find_verifier(name)
    with pytest.raises(GlassloopError, match="takes more than"):
        find_extractor(f"regex:{SLOW_TO_COMPILE}")


def test_the_patterns_of_a_schema_share_the_seconds_of_one(monkeypatch):
    verify = find_verifier(slow_schema(40))
    monkeypatch.setattr(patterns, "SECONDS", 0.3)
    with pytest.raises(TimedOut, match="the check of the schema took longer"):
        verify(json.dumps([TEXT]))


def test_entries_of_an_enumeration_are_steps():
    schema = {"items": {"enum": list(range(1000, 3000))}}
    check_schema(schema)
    with pytest.raises(GlassloopError, match="takes more than 100000 steps"):
        mismatch([2999] * 1000, schema)


@pytest.mark.parametrize("name", ["regex:a", 'json:{"items": {"pattern": "a"}}'])
def test_nobody_is_asked_when_no_time_is_left(monkeypatch, name):
    verify = find_verifier(name)
    assert isinstance(verify, TimedVerifier)
    cancelled = Deadline()
    cancelled.cancel()
    for until, error in ((Deadline(0.0), TimedOut), (cancelled, Cancelled)):
        with pytest.raises(error):
            verify('["a"]', until)
        with pytest.raises(error):
            verify.within(until)('["a"]')
    assert verify('["a"]', Deadline(60.0)).passed


def test_an_extractor_has_a_deadline():
    for name in ("regex:a", "first:a", "choice:a|b"):
        with pytest.raises(TimedOut):
            find_extractor(name)("a", Deadline(0.0))
        assert find_extractor(name)("a", Deadline(60.0)) == "a"


def test_a_check_in_the_sandbox_has_a_deadline():
    verify = python_check("def check(text):\n    while True: pass")
    assert "takes more than" in verify("x", Deadline(0.3)).reason
    with pytest.raises(TimedOut):
        verify("x", Deadline(0.0))


def test_a_slow_pattern_does_not_hold_up_another():
    ends = []

    def search_slowly() -> None:
        with pytest.raises(GlassloopError):
            patterns.find_last(SLOW, "a" * 60 + "!")
        ends.append("slow")

    patterns.find_last("a", "a")
    slow = threading.Thread(target=search_slowly)
    slow.start()
    assert patterns.find_last("b", "ab") == "b"
    ends.append("quick")
    slow.join()
    assert ends == ["quick", "slow"]


def test_who_waits_for_too_long_is_told_so(monkeypatch):
    monkeypatch.setattr(patterns, "_SECONDS_TO_WAIT", 0.05)
    with ExitStack() as taken:
        for _ in range(patterns._WORKERS):
            taken.enter_context(patterns._pool.lend(None))
        with pytest.raises(Busy):
            patterns.is_found("a", "a")
        with pytest.raises(TimedOut):
            patterns.is_found("a", "a", Deadline(0.01))

    def busy(text: str, until: Deadline | None) -> Verdict:
        raise Busy("others are searched")

    with pytest.raises(Busy):  # it says nothing about the text
        verdict_of(TimedVerifier(busy), "text")


def judging(verifier) -> Judging:
    return Judging("best", verifier, None, None)


def test_a_verifier_is_not_asked_without_time():
    asked = []
    verdict = judging(asked.append).ask((0, 1, "verify"), "text", 0.0)
    assert not asked and not verdict.passed and "no time is left" in verdict.reason


def test_a_function_that_hangs_holds_one_thread_and_no_more():
    stuck, asked = threading.Event(), []

    def hang(text: str) -> bool:
        asked.append(text)
        return stuck.wait(600)

    made = judging(hang)
    reasons = [made.ask((path, 1, "verify"), "text", 0.05).reason for path in range(5)]
    assert len(asked) == 1
    assert "took longer" in reasons[0] and all("not asked" in reason for reason in reasons[1:])
    stuck.set()


def test_named_verifiers_leave_no_thread_behind(tiny):
    before = set(threading.enumerate())
    options = Sampling(seed=1, choice=[json.dumps([TEXT])], max_tokens=60)
    made = tiny.solve(
        [104, 101], "best", n=6, sampling=options, verify=slow_schema(60), budget=Budget(seconds=1.5)
    )
    assert not any(path.verdict is not None and path.verdict.passed for path in made.paths)
    left = {each.name for each in threading.enumerate() if each not in before}
    assert "glassloop-verifier" not in left
    assert made.replay().identical


@settings(deadline=None, max_examples=60)
@given(st.text("ab .", max_size=30), st.lists(st.text("ab ", min_size=1, max_size=4), min_size=1, max_size=5))
def test_an_option_is_found_as_in_one_pass_from_the_left(text, options):
    names = sorted({option.casefold() for option in options}, key=len, reverse=True)
    found = re.findall(rf"(?<!\w)(?:{'|'.join(map(re.escape, names))})(?!\w)", text)
    assert choice(text, options) == (found[-1] if found else None)


def test_many_options_are_looked_for_elsewhere(monkeypatch):
    monkeypatch.setattr(patterns, "SECONDS", 0.02)
    with pytest.raises(GlassloopError, match="extract has options that take more than"):
        find_extractor("choice:" + "|".join("a" * size + "b" for size in range(196)))("a " * 100_000)
