"""String arrays in C: what Python would read, or nothing where Python must look closer."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassloop.ops.native import library
from glassloop.ops.strings import read_strings

pytestmark = pytest.mark.skipif(not library.available(), reason="the native op set was not built")


def _stored(strings: list[bytes]) -> bytes:
    return b"".join(struct.pack("<Q", len(string)) + string for string in strings)


@given(st.lists(st.binary(max_size=8), min_size=1), st.binary(max_size=20))
def test_what_is_stored_is_read(strings: list[bytes], after: bytes) -> None:
    stored = _stored(strings)
    found, size = read_strings(np.frombuffer(stored + after, np.uint8), len(strings))
    if b"\0" in b"".join(strings):
        assert (found, size) == ([], 0)
    else:
        assert found == [string.decode("utf-8", "surrogateescape") for string in strings]
        assert size == len(stored)


@given(st.lists(st.binary(max_size=8), min_size=1), st.data())
def test_nothing_is_read_of_what_is_cut_short(strings: list[bytes], data: st.DataObject) -> None:
    stored = _stored(strings)
    cut = stored[: data.draw(st.integers(1, len(stored))) - 1]
    assert read_strings(np.frombuffer(cut, np.uint8), len(strings)) == ([], 0)


@pytest.mark.parametrize("length", [1, 1 << 31, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
def test_a_length_that_lies_is_not_followed(length: int) -> None:
    assert read_strings(np.frombuffer(struct.pack("<Q", length), np.uint8), 1) == ([], 0)
