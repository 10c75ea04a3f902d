"""Choosing from what another device has found in rows of logits gives the records of choosing from the rows
themselves, bit for bit, or says that the row is needed."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ops.found_rows import edited_row, edits_of, found_in, scale_after
from ops.random_choices import (
    ALTERNATIVES,
    RECORD_TYPE,
    choose_natively,
    compare,
    random_lines,
    random_rows,
    read_records,
)

from glassloop.decode.rules import Action, RowRequest, Rule
from glassloop.ops.native import library
from glassloop.ops.rows import Line, RuleError

if not library.available():
    pytest.skip("needs the native op set", allow_module_level=True)

from glassloop.ops.native import chooser as native


def _found(x, lines: list[Line], guesses: list[int]) -> tuple[np.ndarray, list[int], list[float]]:
    """What a device finds for some lines, whose tokens it guesses."""
    pieces, after, edited, scales = [], [], [], []
    for (request, row, position), guess in zip(lines, guesses, strict=True):
        edits = edits_of(request)
        key = None if edits else request.branch_key
        winner = guess if edits else None
        pieces.append(found_in(x[row], request.head, request.scale, key, position, winner))
        edited.append(len(lines) + len(after) if edits else -1)
        scales.append(scale_after(request))
        if edits:
            changed = edited_row(x[row], edits)
            after.append(found_in(changed, request.head, scales[-1], request.branch_key, position))
    memory = np.frombuffer(b"".join(pieces + after), np.uint8).reshape(len(pieces + after), -1)
    return memory, edited, scales


def _compared(seed: int, width: int, happened: Counter[str]) -> None:
    rng = np.random.default_rng(seed)
    x, lines = random_rows(rng, 6, width), random_lines(rng, 6, width)
    expected = choose_natively(x, lines)
    guesses = [int(rng.integers(width)) if rng.random() < 0.1 else max(0, each.id) for each in expected]
    memory, edited, scales = _found(x, lines, guesses)
    made, missing = native.choose_found(memory, width, lines, edited, scales, RECORD_TYPE)
    found = read_records(made)
    known = [number for number in range(6) if number not in missing]
    wrong = compare([expected[number] for number in known], [found[number] for number in known])
    assert wrong == [], (seed, width, wrong)
    for number, (request, _, _) in enumerate(lines):
        kind = "edited" if edits_of(request) else "plain"
        happened[f"{kind}, {'missing' if number in missing else 'known'}"] += 1
        happened["none left"] += number not in missing and expected[number].id < 0


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 30), st.sampled_from([3, 50, 64, 65, 300, 1500, 4100]))
def test_a_choice_has_the_record_that_the_row_itself_gives(seed, width):
    _compared(seed, width, Counter())


def test_most_choices_need_no_row():
    happened: Counter[str] = Counter()
    for seed in range(25):
        _compared(seed, 1500, happened)
    assert happened["edited, known"] > happened["edited, missing"] > 0, happened
    assert happened["plain, known"] > happened["plain, missing"] and happened["none left"] > 0, happened


@pytest.mark.parametrize(
    ("edited", "scales"),
    [([2], [1.0]), ([-2], [1.0]), ([1 << 40], [1.0]), ([-1], []), ([-1, -1], [1.0, 1.0])],
)
def test_wrong_numbers_of_pieces_are_refused(edited, scales):
    request = RowRequest(3, 1.0, [Rule(Action.REMOVE, 0.0, np.array([1], np.int32))], None, ALTERNATIVES - 3)
    memory = np.zeros((2, native.found_bytes(10)), np.uint8)
    with pytest.raises(RuleError):
        native.choose_found(memory, 10, [(request, 0, 0)], edited, scales, RECORD_TYPE)
    with pytest.raises(RuleError):
        native.choose_found(memory[:, 8:].copy(), 10, [(request, 0, 0)], [-1], [1.0], RECORD_TYPE)


def test_a_winner_beyond_the_head_has_its_ranks_before_and_after_the_edits():
    rng = np.random.default_rng(0)
    x = rng.normal(0.0, 0.5, (1, 1500)).astype(np.float32).repeat(40, 0)  # each line may edit its own row
    edits = [Rule(Action.LESS, 0.4, rng.choice(1500, 700, replace=False).astype(np.int32))]
    request = RowRequest(64, 1.0, [*edits, Rule(Action.SCALE, 0.9)], 7, ALTERNATIVES)
    lines: list[Line] = [(request, position, position) for position in range(40)]
    expected = choose_natively(x, lines)
    memory, edited, scales = _found(x, lines, [each.id for each in expected])
    made, missing = native.choose_found(memory, 1500, lines, edited, scales, RECORD_TYPE)
    known = [number for number in range(40) if number not in missing]
    assert compare([expected[n] for n in known], [read_records(made)[n] for n in known]) == []
    assert sum(expected[n].rank_after > 64 and expected[n].rank != expected[n].rank_after for n in known) > 10


def test_choices_from_one_row_with_edits_are_those_of_each_alone():
    library.library().gl_set_threads(2)  # the lines are shared among threads, if a job has not run before
    rng = np.random.default_rng(1)
    x = rng.normal(0.0, 0.5, (1, 20000)).astype(np.float32)
    edits = [Rule(Action.LESS, 0.4, rng.choice(20000, 700, replace=False).astype(np.int32))]
    request = RowRequest(64, 1.0, [*edits, Rule(Action.SCALE, 0.9)], 7, ALTERNATIVES)
    lines: list[Line] = [(request, 0, position) for position in range(40)]
    alone = [choose_natively(x, [line])[0] for line in lines]
    for _ in range(5):
        assert compare(alone, choose_natively(x, lines)) == []
