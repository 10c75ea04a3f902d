"""The words around a token, and the first unlikely one."""

from __future__ import annotations

from math import log, nan
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from glassloop.record.worst import UNLIKELY, around, first_unlikely

texts = st.lists(st.text(max_size=6), min_size=1, max_size=60)


def _token(text: str, logprob: float = -1.0, source: str = "sampled"):
    return SimpleNamespace(text=text, raw_logprob=logprob, source=source)


@given(texts, st.integers(0, 59))
def test_the_words_around_a_token_are_those_of_the_text(pieces, place):
    place %= len(pieces)
    tokens = [_token(piece) for piece in pieces]
    before, after = around(tokens, place)
    left, right = "".join(pieces[:place]), "".join(pieces[place + 1 :])
    assert len(before) <= 25 and len(after) <= 17
    assert before == left or (before[0] == "…" and left.endswith(before[1:]))
    assert after == right or (after[-1] == "…" and right.startswith(after[:-1]))


@given(st.lists(st.tuples(st.floats(-20, 0) | st.just(nan), st.sampled_from(["sampled", "forced", "draft"]))))
def test_the_first_unlikely_token_is_below_one_percent_and_not_forced(records):
    tokens = [_token("a", logprob, source) for logprob, source in records]
    unlikely = [
        place
        for place, (logprob, source) in enumerate(records)
        if logprob < log(UNLIKELY) and source != "forced"
    ]
    assert first_unlikely(tokens) == (unlikely[0] if unlikely else None)
