"""Hostile decoding options as strategies of hypothesis, which finds a smaller example of what fails. They
draw on the same values and forms as the other generators. Those need no hypothesis: a case has a seed and a
number, so that a long run in many processes can repeat it."""

from __future__ import annotations

from dataclasses import fields
from random import Random

from hostile import grammars
from hostile.values import TEXTS, nested
from hypothesis import strategies as st

from glassloop import Sampling

NAMES = [field.name for field in fields(Sampling)]
# By name: Python does not print the largest.
HUGE = {
    "10^18": 10**18,
    "2^31 - 1": 2**31 - 1,
    "2^31": 2**31,
    "2^32": 2**32,
    "2^63 - 1": 2**63 - 1,
    "2^63": 2**63,
    "2^64": 2**64,
    "10^308": 10**308,
    "10^309": 10**309,
    "10^5000": 10**5000,
    "-10^5000": -(10**5000),
}
DEPTHS = [1, 3, 50, 127, 128, 300, 3000]
SIZES = [1, 3, 10, 50, 127, 128, 300, 1000, 4000]


def huge() -> st.SearchStrategy[int]:
    return st.sampled_from(sorted(HUGE)).map(lambda name: HUGE[name])


def texts() -> st.SearchStrategy[str]:
    """Short and long, with control characters, bytes of all lengths and lone surrogates."""
    return st.one_of(
        st.text(max_size=20),
        st.text(st.characters(categories=["Cs", "Cc", "Lu"]), max_size=5),
        st.sampled_from(["a" * 100_000, "é" * 5000, "{", "[", *TEXTS]),
    )


def values() -> st.SearchStrategy[object]:
    """Any JSON value, and those that Python's parser lets through besides."""
    leaves = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        huge(),
        st.floats(),
        texts(),
        st.sampled_from(DEPTHS).map(nested),
        st.sampled_from(DEPTHS).map(lambda depth: nested(depth, "object")),
    )
    return st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(texts() | st.sampled_from(["0", "7", "$ref", "type"]), inner, max_size=4)
        ),
        max_leaves=8,
    )


def options() -> st.SearchStrategy[dict[str, object]]:
    """Any values for any options, with a name now and then that is none."""
    return st.dictionaries(st.sampled_from(NAMES) | texts(), values(), max_size=4)


def constraints() -> st.SearchStrategy[dict[str, object]]:
    """One of the options that say what the text must be: small and of any form, of a family at some size, or
    text that is none."""
    families = {"grammar": grammars.GRAMMARS, "json_schema": grammars.SCHEMAS, "regex": grammars.REGEXES}
    sized = [
        st.tuples(st.sampled_from(sorted(family)), st.sampled_from(SIZES)).map(
            lambda drawn, option=option, family=family: {option: family[drawn[0]](drawn[1])}
        )
        for option, family in families.items()
    ]
    return st.one_of(
        st.integers(0, 2**64).map(lambda seed: grammars.form(Random(seed))),
        *sized,
        st.tuples(st.sampled_from(sorted(families)), texts()).map(lambda drawn: dict([drawn])),
        st.lists(texts(), max_size=5).map(lambda some: {"choice": some}),
    )
