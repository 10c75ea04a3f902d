"""Records with any numbers come back from their columns bit for bit."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassloop.decode import chosen as choices
from glassloop.decode.chosen import Chosen, pack_alternatives
from glassloop.errors import TraceError
from glassloop.record.format.columns import pack, unpack
from glassloop.record.format.packing import SOURCES, pack_tokens, unpack_tokens
from glassloop.record.token import Token

IDS = st.integers(0, 300_000)
NUMBERS = st.floats(allow_nan=False)  # float64, infinities, zeros of both signs and subnormals among them
# Logits that lose their last bits when a large sum is added to them and taken off again.
LOGITS = st.floats(width=32, allow_nan=False, allow_infinity=False) | st.floats(-1e-9, 1e-9)


@st.composite
def tokens(draw) -> Token:
    count = draw(st.integers(0, 6))
    lse, after_lse, scale = draw(st.floats(-50, 50)), draw(st.floats(-50, 50)), draw(st.floats(0.01, 100))
    made = draw(st.lists(LOGITS, min_size=count + 1, max_size=count + 1))
    if draw(st.booleans()):  # as the decoder makes them
        with np.errstate(all="ignore"):
            logits = np.array(made, np.float32).astype(np.float64)
        raw, after = logits - lse, logits * scale - after_lse
        after[draw(st.lists(st.integers(0, count)))] = -np.inf
    else:
        raw, after = (np.array(draw(st.lists(NUMBERS, min_size=count + 1, max_size=count + 1))) for _ in "12")
    chosen = Chosen.of(
        id=draw(IDS),
        logprob=float(after[0]),
        raw_logprob=float(raw[0]),
        rank=draw(IDS) + 1,
        rank_after=draw(IDS) + 1,
        entropy=draw(NUMBERS),
        log_sum_exp=lse,
        log_sum_exp_after=after_lse,
        scale=scale,
        luck=draw(NUMBERS),
        margin=draw(NUMBERS),
        runner_up=draw(st.none() | IDS),
        survivors=draw(st.none() | IDS),
        packed_alternatives=pack_alternatives(
            np.array(draw(st.lists(IDS, min_size=count, max_size=count)), np.int32), after[1:], raw[1:]
        ),
    )
    data = _piece(chosen.id).encode() if chosen.id % 3 else bytes([chosen.id % 256, 0xFF])
    text, source = draw(st.text(max_size=5)), draw(st.sampled_from(SOURCES))
    return Token(chosen, text, data, _piece, source, draw(NUMBERS), draw(st.integers(0, 1023)))


def _piece(token: int) -> str:
    return f" é{token}\n" if token % 2 else ""


def bits(token: Token) -> tuple[object, ...]:
    chosen = token.chosen
    numbers = (chosen.logprob, chosen.raw_logprob, chosen.entropy, chosen.luck, chosen.margin, token.seconds)
    sums = (chosen.log_sum_exp, chosen.log_sum_exp_after, chosen.scale)
    rest = (chosen.survivors, token.source, token.sample, [each.text for each in token.alternatives])
    return token.record, struct.pack("<9d", *numbers, *sums), rest


@settings(max_examples=300, deadline=None)
@given(st.lists(tokens(), max_size=5))
def test_any_record_comes_back(made):
    plan, block = pack(pack_tokens(made))
    back = unpack_tokens(unpack(plan, block))
    assert [bits(token) for token in back] == [bits(token) for token in made]


@pytest.mark.parametrize("name", ["luck", "runner_up", "source", "seconds"])
def test_columns_of_different_lengths_are_refused(name):
    chosen = Chosen.of(**dict.fromkeys(choices.RECORD.names, 1))
    columns = pack_tokens([Token(chosen, "a", b"a", _piece) for _ in range(3)])
    for length in (1, 2):  # one number would fit any place
        with pytest.raises(TraceError, match="same length"):
            unpack_tokens(columns | {name: columns[name][:length]})
