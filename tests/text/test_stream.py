"""A stream gives out the text of all its bytes, whatever the split, and nothing later than it must."""

from __future__ import annotations

from itertools import pairwise, takewhile

from hypothesis import given, settings
from hypothesis import strategies as st
from text.strings import BYTES

from glassloop.text.stream import TextStream

NEAR_UTF8 = st.lists(
    st.sampled_from(
        [b"\xe2", b"\x96", b"\x81", b"\xf0", b"\x9f", b"\x8e", b"\x88", b"\xc3", b"\xa9", b"a", b"\xff"]
    ),
    max_size=12,
).map(b"".join)


def _common_start(texts: list[str]) -> str:
    pairs = zip(min(texts), max(texts), strict=False)  # in order, the first and the last differ the most
    return "".join(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


@settings(max_examples=600)
@given(BYTES | NEAR_UTF8, st.lists(st.integers(0, 30), max_size=8))
def test_the_split_does_not_matter(data: bytes, cuts: list[int]) -> None:
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    stream = TextStream()
    given_out = [stream.feed(data[a:b]) for a, b in pairwise(places)]
    assert "".join(given_out) + stream.flush() == data.decode("utf-8", "replace")


@settings(max_examples=250)
@given(BYTES | NEAR_UTF8)
def test_what_is_out_is_what_is_certain(data: bytes) -> None:
    """After each byte: no more and no less than what all possible continuations have in common."""
    stream = TextStream()
    out = ""
    for i in range(len(data)):
        out += stream.feed(data[i : i + 1])
        seen = data[: i + 1]
        futures = [b"", b"a", b"\xff", b"\x80\x80\x80", b"\x90\x80\x80", b"\xa0\x80\x80"]
        texts = [(seen + future).decode("utf-8", "replace") for future in futures]
        assert out == _common_start(texts)


def test_a_character_comes_with_its_last_byte() -> None:
    stream = TextStream()
    assert [stream.feed(bytes([b])) for b in "é🎈".encode()] == ["", "é", "", "", "", "🎈"]
    assert stream.flush() == ""


def test_an_impossible_byte_comes_at_once() -> None:
    stream = TextStream()
    assert stream.feed(b"\xf0\x9f") == ""
    assert stream.feed(b"a") == "\ufffda"
    assert stream.feed(b"\xff") == "\ufffd"


def test_flush_gives_the_rest_and_starts_anew() -> None:
    stream = TextStream()
    assert stream.feed(b"\xe2\x96") + stream.flush() == "\ufffd"
    assert stream.feed(b"\x81a") + stream.flush() == "\ufffda"
