"""Every field of a run has a known fate in a run that begins with it, and in a file. A field that is added to
`RunRecord` fails here until its fate is decided.
"""

from __future__ import annotations

from dataclasses import fields

import pytest
from engine.random_runs import PROMPT, small_llm

from glassloop import Run, Sampling
from glassloop.record.format.check_header import FIELDS
from glassloop.record.format.glass_file import from_bytes, to_bytes
from glassloop.record.format.header import COPIED
from glassloop.record.run_record import INHERITED

NAMES = {each.name for each in fields(Run)}
# Set by every run that begins with another: what it kept, and where it comes from.
OF_A_BEGINNING = {"tokens", "prompt_tokens", "past", "parent", "fork_at", "reason", "above"}
# As in a new run, unless a method says otherwise.
NEW = {
    *("id", "created", "samples", "children", "search", "forks", "revised", "pending", "beams", "moves"),
    *("tail", "finish_reason", "stop_reason", "error", "end", "cached_tokens", "timings", "drafts"),
}
# What `Run.rewind` and `Run.revise` set of these.
OF_REWIND = {"tail", "finish_reason", "stop_reason", "pending", "samples"}
OF_REVISE = {"samples", "revised", "moves", "cached_tokens", "timings"}
OF_THIS_PROCESS = {"error", "llm", "above", "children"}
CONVERTED = {
    *("sampling", "samples", "origin", "model_hash", "plugins", "past", "prompt_tokens", "tokens", "end"),
    *("pending", "timings", "drafts", "beams", "moves", "forks", "form"),
}


def _full() -> Run:
    """Returns a run in which every field that is new in a beginning has another value than a new run."""
    run = small_llm().generate(PROMPT, Sampling(seed=3, max_tokens=8))
    for name in NEW - {"children", "samples", "id", "created", "timings", "drafts"}:
        setattr(run, name, {name: 1})
    return run


def test_every_field_is_inherited_or_new_or_set():
    parts = [set(INHERITED), OF_A_BEGINNING, NEW]
    assert set.union(*parts) == NAMES and sum(map(len, parts)) == len(NAMES)


@pytest.mark.parametrize(
    ("begin", "changed"),
    [
        (lambda run: run.beginning(5, "sampled"), set()),
        (lambda run: run.rewind(5), OF_REWIND),
        (lambda run: run.revise(5, 7), OF_REVISE),
    ],
    ids=["beginning", "rewind", "revise"],
)
def test_a_beginning_inherits_what_is_listed_and_nothing_else(begin, changed):
    run = _full()
    run.pending, run.moves, run.revised, run.end = [], [], 0, None
    began, fresh = begin(run), Run("a", [1], 0, 10)
    for name in set(INHERITED) - {"salt", "sampling"}:
        assert getattr(began, name) == getattr(run, name), name
    for name in NEW - {"id", "created"} - changed:
        assert getattr(began, name) == getattr(fresh, name), name
    assert began.id != run.id and began.created >= run.created
    assert began.tokens == run.tokens[:5] and began.above is run and began in run.children


def test_every_field_is_in_a_file_or_an_object_of_this_process():
    parts = [set(COPIED), CONVERTED, OF_THIS_PROCESS]
    assert set.union(*parts) == NAMES and sum(map(len, parts)) == len(NAMES)
    assert set(COPIED) <= FIELDS.keys()


def test_a_file_gives_every_field_back():
    run = small_llm().generate(PROMPT, Sampling(seed=3, max_tokens=8))
    (again,) = from_bytes(to_bytes([run]))
    for name in NAMES - OF_THIS_PROCESS - {"samples"}:
        assert getattr(again, name) == getattr(run, name), name
