"""What is written down of a choice is read back bit for bit."""

from __future__ import annotations

import pickle
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassloop.decode.chosen import RECORD, Chosen, pack_alternatives

WHOLE = ("id", "rank", "rank_after")
OR_NONE = ("runner_up", "survivors")
REAL = tuple(name for name in RECORD.names if name not in (*WHOLE, *OR_NONE))


@st.composite
def numbers(draw):
    made = {name: draw(st.integers(0, 2**40)) for name in WHOLE}
    made |= {name: draw(st.none() | st.integers(0, 2**40)) for name in OR_NONE}
    return made | {name: draw(st.floats(width=64)) for name in REAL}


def bits(number):
    return struct.pack("d", number)


@given(numbers(), st.lists(st.tuples(st.integers(0, 2**31 - 1), st.floats(), st.floats()), max_size=5))
def test_every_number_is_read_back(made, others):
    ids, after, raw = ([other[place] for other in others] for place in range(3))
    chosen = Chosen.of(pack_alternatives(np.array(ids, np.int32), np.array(after), np.array(raw)), **made)
    for name in (*WHOLE, *OR_NONE):
        assert getattr(chosen, name) == made[name]
    for name in REAL:
        assert bits(getattr(chosen, name)) == bits(made[name])
    assert chosen.alternatives["id"].tolist() == ids
    assert [bits(x) for x in chosen.alternatives["logprob"]] == [bits(x) for x in after]
    assert [bits(x) for x in chosen.alternatives["raw_logprob"]] == [bits(x) for x in raw]
    again = pickle.loads(pickle.dumps(chosen))
    assert again == chosen == Chosen(chosen.data) and hash(again) == hash(chosen)
    assert f"id={made['id']}, logprob={made['logprob']}" in repr(chosen)


@given(numbers(), st.sampled_from(RECORD.names), st.booleans())
def test_a_number_too_many_or_too_few_is_an_error(made, name, missing):
    if missing:
        del made[name]
    else:
        made["likelihood"] = 1.0
    with pytest.raises(TypeError, match="a choice has id, logprob, raw_logprob"):
        Chosen.of(**made)
