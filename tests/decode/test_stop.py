"""Where a branch ends: loops of tokens, limits, and stop strings over any borders."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassloop import Sampling
from glassloop.decode.history import History
from glassloop.decode.stop import Ending, Loops, Pause, PausingStopper, Stopper
from glassloop.text.stops import StopStream, StopStrings


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in pairwise(places)]


def by_definition(data: bytes, strings: list[str], include_stop: bool) -> tuple[bytes, str | None]:
    """The string that is complete first; of several with the same end, the longest."""
    ends = [
        (data.find(s.encode()) + len(s.encode()), -len(s.encode()), s) for s in strings if s.encode() in data
    ]
    if not ends:
        return data, None
    end, minus_length, string = min(ends)
    return data[: end if include_stop else end + minus_length], string


@given(
    st.text("aab✓é", max_size=30),
    st.lists(st.text("ab✓é", min_size=1, max_size=5), min_size=1, max_size=5),
    st.lists(st.integers(0, 100), max_size=12),
    st.booleans(),
)
def test_stop_strings_are_found_over_any_borders(text, strings, cuts, include_stop):
    data = text.encode()
    expected, stop = by_definition(data, strings, include_stop)
    stream, given_out = StopStream(StopStrings(strings), include_stop), b""
    for piece in pieces(data, cuts):
        fed = stream.feed(piece)
        given_out += fed.data
        assert expected.startswith(given_out)  # nothing of a stop string was ever given out
        if fed.stop:
            assert (given_out, fed.stop) == (expected, stop)
            return
    assert stop is None and given_out + stream.flush() == data


@given(st.text("ab", max_size=20), st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=4))
def test_what_cannot_become_a_stop_string_is_not_held_back(text, strings):
    stream, given_out = StopStream(StopStrings(strings)), b""
    for place, byte in enumerate(text.encode(), 1):
        fed = stream.feed(bytes([byte]))
        given_out += fed.data
        if fed.stop:
            return
        held = text[len(given_out) : place]
        assert held == "" or any(s.startswith(held) for s in strings)


def test_a_string_that_may_not_stop_yet_is_text():
    stream = StopStream(StopStrings(["END"]))
    assert stream.feed(b"xEN", may_stop=False).data == b"x"
    assert stream.feed(b"D.", may_stop=False).data == b"END."
    assert stream.feed(b"END").stop == "END"


def test_ten_thousand_stop_strings_are_cheap():
    """Counted, not timed: a step follows at most as many links as bytes were fed."""
    strings = StopStrings([f"{'a' * (i % 50)}{i:05d}" for i in range(10_000)])
    steps = 0
    inner = strings.step

    def counted(state, byte):
        nonlocal steps
        steps += 1
        return inner(state, byte)

    strings.step = counted
    stream = StopStream(strings)
    assert stream.feed(b"a" * 5000).stop is None
    assert stream.feed(b"00049").stop == f"{'a' * 49}00049"
    assert steps == 5005


def loop_by_definition(tokens, rounds):
    for period in range(1, len(tokens) // rounds + 1):
        if tokens[-period * rounds :] == tokens[-period:] * rounds:
            return period
    return 0


@given(st.lists(st.integers(0, 2), max_size=90), st.integers(2, 4))
def test_a_loop_is_noticed_when_it_has_come_round_so_often(tokens, rounds):
    loops = Loops(rounds)
    for place, token in enumerate(tokens, 1):
        assert loops.add(token) == loop_by_definition(tokens[:place], rounds)


def ending(options, generated, context=1000, seconds=0.0):
    stopper = Stopper(Sampling(**options), (2,), context)
    history = History([1, 1, 1])
    for token in generated:
        history.append(token)
        found = stopper.after(history, seconds)
        if found:
            return found.reason, found.detail, history.generated_length
    return None


@given(st.lists(st.integers(3, 4), max_size=40), st.integers(2, 4), st.integers(0, 40))
def test_a_loop_does_not_end_a_text_before_its_least_length(tokens, rounds, least):
    """The loop is looked for meanwhile: one that goes on ends the text as soon as it may end."""
    lengths = (
        length
        for length in range(max(1, least), len(tokens) + 1)
        if loop_by_definition(tokens[:length], rounds)
    )
    expected = next(lengths, None)
    found = ending({"stop_on_repetition": rounds, "min_tokens": least}, tokens)
    assert (found and found[2]) == expected and (found is None or found[0] == "repetition")


@given(*[st.lists(st.integers(3, 4), max_size=80)] * 3, st.booleans())
def test_conditions_that_are_forked_know_their_own_tokens_only(shared, one, other, pausing):
    sampling = Sampling(stop_on_repetition=3, timeout=30.0)

    def fresh() -> Stopper:
        stopper = Stopper(sampling, (2,), 1000)
        return PausingStopper(sampling, (2,), 1000, Pause(90)) if pausing else stopper

    def follow(stopper: Stopper, history: History, tokens: list[int]) -> list[Ending | None]:
        endings = []
        for token in tokens:
            history.append(token)
            endings.append(stopper.after(history, 0.25 * len(history) + token))
        return endings

    stopper, history = fresh(), History([1])
    follow(stopper, history, shared)
    twin, history_of_twin = stopper.fork(), history.copy()
    made = [follow(stopper, history, one), follow(twin, history_of_twin, other)]
    for tokens, endings in zip((one, other), made, strict=True):
        assert endings == follow(fresh(), History([1]), shared + tokens)[len(shared) :]


@pytest.mark.parametrize(
    ("options", "context", "seconds", "expected"),
    [
        ({"max_tokens": 4}, 1000, 0, ("length", "max_tokens", 4)),
        ({"max_tokens": 40}, 8, 0, ("length", "context", 5)),
        ({"timeout": 2.5}, 1000, 2.6, ("timeout", "after 2.5 s", 1)),
        ({"timeout": 2.5}, 1000, 2.4, None),
        ({"stop_on_repetition": 3}, 1000, 0, ("repetition", "2 tokens 3 times in a row", 8)),
        ({"stop_on_repetition": 4}, 1000, 0, None),
        ({}, 1000, 0, None),
    ],
)
def test_it_ends_for_the_reason_it_says(options, context, seconds, expected):
    assert ending(options, [9, 8, 5, 6, 5, 6, 5, 6], context, seconds) == expected


def test_a_token_that_would_come_after_the_timeout_is_not_begun():
    stopper, history = Stopper(Sampling(timeout=2.5), (2,), 100), History([1])
    for seconds in (1.0, 1.4, 1.8):  # 0.4 s a token: the next one comes at 2.2, the one after it too late
        history.append(9)
        assert stopper.after(history, seconds) is None
    history.append(9)
    assert stopper.after(history, 2.2) == ("timeout", "after 2.5 s")
    waited = Stopper(Sampling(timeout=100.0), (2,), 100)  # for its turn, which says little of the next token
    assert waited.after(history, 1.0) is None and waited.after(history, 60.0) is None
    drafted = Stopper(Sampling(timeout=2.5), (2,), 100)
    assert drafted.after(history, 1.0) is None and drafted.after(history, 1.6) is None
    assert drafted.after(history, 1.61) is None  # in the same step as the one before it
    assert drafted.after(history, 2.41) == ("timeout", "after 2.5 s")
    preempted = Stopper(Sampling(timeout=2.5), (2,), 100)
    for seconds in (0.1, 0.2, 0.3, 2.0, 2.1):
        assert preempted.after(history, seconds) is None


def test_end_of_sequence_and_stop_tokens():
    assert Stopper(Sampling(), (2, 0), 10).before(0)
    assert not Stopper(Sampling(ignore_eos=True), (2,), 10).before(2)
    assert Stopper(Sampling(ignore_eos=True, stop_token_ids=[7, 2]), (2,), 10).before(2)
    assert not Stopper(Sampling(stop_token_ids=[7]), (2,), 10).before(8)
