"""Hostile grammars: whatever is sent, the process lives, and an error names the field.

Grammars are compiled by native code, so each test runs in a process of its own: a crash there is a failure
here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]

BEGIN = """
from hostile.grammars import LINKS, SCHEMAS, reference_chain, rule_chain, terminal_chain
from hostile.strategies import constraints
from decode.words import tokenizer
from glassloop import Sampling, SamplingError
from glassloop.decode.grammar import Grammar

def follow(options, steps=4):
    "Compiles a constraint and takes a few tokens. Returns what was said against it."
    tokens = tokenizer()
    try:
        grammar = Grammar(Sampling.from_dict(options), tokens.vocab_size, tokens)
        for step in range(steps):
            allowed = grammar.mask()[: tokens.eos_ids[0]].nonzero()[0]  # and not the end
            if grammar.finished or not len(allowed):
                break
            grammar.fork().commit(int(allowed[0]))
            grammar.commit(int(allowed[-1]))
        grammar.rewind(0)
    except SamplingError as error:
        assert next(iter(options)) in str(error) and len(str(error)) < 500, error
        return str(error)
    return ""
"""


def run(code: str) -> list[str]:
    """Runs code in a process of its own; returns the lines that it prints."""
    path = os.pathsep.join([str(TESTS), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + code],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, (done.returncode, done.stdout[-500:], done.stderr[-2000:])
    return done.stdout.splitlines()


def test_no_chain_of_rules_or_references_ends_the_process():
    lines = run("""
for length in (200, 4000):
    print(length, "rules", follow({"grammar": rule_chain(length)}))
    print(length, "terminals", follow({"grammar": terminal_chain(length, '"b" | {} "c"')}))
    for name, link in LINKS.items():
        print(length, name, follow({"json_schema": reference_chain(link, length)}))
print(60_000, "rules", follow({"grammar": rule_chain(60_000)}))
print(9_000, "properties", follow({"json_schema": reference_chain(LINKS["properties"], 9_000)}))
""")
    assert len(lines) == 2 * (2 + 12) + 2
    for line in lines:
        length, name, *said = line.split(maxsplit=2)
        supported = name not in ("oneOf", "if")
        assert length != "200" or not supported or not said, line  # a few hundred are no attack


def test_what_takes_too_long_to_compile_is_refused():
    lines = run("""
for name in ("multiple", "many patterns"):
    print(follow({"json_schema": SCHEMAS[name](6000)}))
print(follow({"json_schema": {"type": "integer", "multipleOf": 7}}))
""")
    *expensive, cheap = lines
    assert all("too much time or memory to compile" in line for line in expensive) and cheap == ""


def test_what_takes_too_long_to_follow_fails_its_own_request():
    (said,) = run("""
print(follow({"grammar": 'start: a' + chr(10) + 'a: "x" | a a | a a a | a a a a'}, 200))
""")
    assert "grammar cannot be used" in said


def test_generated_grammars_end_nothing():
    run("""
from hypothesis import HealthCheck, given, settings

@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(constraints())
def test(options):
    try:
        Sampling.from_dict(options)
    except SamplingError:
        return
    follow(options)

test()
""")


def test_what_was_refused_or_compiled_is_remembered_within_bounds():
    lines = run("""
from glassloop.decode import grammar
compiler = grammar._compiler(tokenizer())
for number in range(40):
    follow({"regex": f"a{{{number}}}"})
    follow({"regex": f"({number}"})
print(len(compiler._cache), compiler._size, sum(one.size for one in compiler._cache.values()))
tried = []
compiler._trials.run = tried.append
print(repr(follow({"regex": "a{39}"})), tried)
""")
    count, size, total = map(int, lines[0].split())
    assert count <= 8 and size == total
    assert lines[1] == "'' []"


def test_a_grammar_is_not_refused_because_the_child_was_killed_or_stopped():
    lines = run("""
import os, signal
from glassloop.decode import grammar, trial
trials = grammar._compiler(tokenizer())._trials
os.kill(next(iter(trials.pool.children)).pid, signal.SIGKILL)
print(repr(follow({"regex": "a"})))
trial._WAIT = 1.0
os.kill(next(iter(trials.pool.children)).pid, signal.SIGSTOP)
print(repr(follow({"regex": "b"})))
""")
    assert lines == ["''", "''"]


def test_a_grammar_is_not_refused_because_it_was_slow_once():
    lines = run("""
from glassloop.decode import grammar
from glassloop.decode.trial_worker import TOO_SLOW, TrialVerdict
trials = grammar._compiler(tokenizer())._trials
slow = TrialVerdict(TOO_SLOW, 0)
verdicts = [slow, TrialVerdict("", 0), slow, slow]
trials._try = lambda source: verdicts.pop(0)
print(repr(follow({"regex": "a"})))
print(follow({"regex": "b"}), verdicts)
""")
    assert lines == ["''", "regex cannot be used: it takes too long to follow; a simpler one is expected []"]


def test_what_ended_the_child_is_remembered_for_a_while():
    lines = run("""
from glassloop.decode import grammar
tried = []
trials = grammar._compiler(tokenizer())._trials
run = trials.run
trials.run = lambda source: tried.append(source) or (None if len(tried) == 1 else run(source))
print(follow({"regex": "a"}), len(tried))
print(follow({"regex": "a"}), len(tried))
grammar.monotonic = lambda: 1e12
print(repr(follow({"regex": "a"})), len(tried))
""")
    refused = "regex cannot be used: it takes too much time or memory to compile 1"
    assert lines == [refused, refused, "'' 2"]


def test_the_child_ends_with_its_parent():
    (child,) = run("""
from glassloop.decode import grammar
follow({"regex": "a"})
print(*[child.pid for child in grammar._compiler(tokenizer())._trials.pool.children])
""")
    try:
        os.kill(int(child), 0)
    except ProcessLookupError:
        return
    state = Path(f"/proc/{child}/stat")
    assert not state.exists() or state.read_text().split(")")[1].split()[0] == "Z"


def test_threads_have_the_stack_that_they_had():
    run("""
import threading
before = threading.stack_size()
follow({"regex": "a"})
assert threading.stack_size() == before
""")
