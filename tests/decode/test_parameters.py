"""The options of a stage: what its function declares, and what a request may give."""

from __future__ import annotations

from typing import Any, Literal, Optional

import pytest

from glassloop import SamplingError
from glassloop.decode.parameters import bind, parameters_of


def read(function: Any, given: dict[str, Any]) -> dict[str, Any]:
    return bind("mine", parameters_of("mine", function), given)


def everything(
    candidates: Unknown,  # noqa: F821  (the annotations of the first two do not matter)
    step: Unknown,  # noqa: F821
    size: int,
    share: float = 0.5,
    *,
    word: str = "a",
    on: bool = False,
    mode: Literal["soft", "hard", 3] = "soft",
    ids: list[int] = (),
    texts: tuple[str, ...] = (),
    most: int | None = None,
    other: Optional[str] = None,  # noqa: UP045
) -> None: ...


@pytest.mark.parametrize(
    ("name", "value", "made"),
    [
        ("size", -3, -3),
        ("share", 1, 1.0),
        ("share", 0.25, 0.25),
        ("word", "", ""),
        ("on", True, True),
        ("mode", "hard", "hard"),
        ("mode", 3, 3),
        ("ids", (1, 2), [1, 2]),
        ("ids", (), []),
        ("texts", ("x",), ("x",)),
        ("most", None, None),
        ("most", 7, 7),
        ("other", "x", "x"),
    ],
)
def test_a_value_of_the_right_type_is_passed_on(name, value, made):
    found = read(everything, {"size": 1, name: value})[name]
    assert found == made and type(found) is type(made)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("size", True, "a whole number"),
        ("size", 1.0, "a whole number"),
        ("size", None, "a whole number"),
        ("share", "1", "a number"),
        ("share", False, "a number"),
        ("word", 1, "a text"),
        ("on", 1, "True or False"),
        ("mode", "x", "one of 'soft', 'hard', 3"),
        ("mode", True, "one of 'soft', 'hard', 3"),
        ("ids", 1, "a list, each a whole number,"),
        ("ids", (1, "2"), "a list, each a whole number,"),
        ("texts", "x", "a list, each a text,"),
        ("most", "x", "a whole number or None"),
        ("other", 1, "a text or None"),
    ],
)
def test_a_value_of_another_type_is_an_error_that_says_what_is_expected(name, value, expected):
    with pytest.raises(SamplingError) as raised:
        read(everything, {"size": 1, name: value})
    assert str(raised.value).startswith(f"stage_options.mine.{name} is ")
    assert str(raised.value).endswith(f"; {expected} is expected")
    assert raised.value.field == f"stage_options.mine.{name}"


def test_only_given_values_are_passed_and_a_required_one_must_be_given():
    assert read(everything, {"size": 1}) == {"size": 1}
    with pytest.raises(SamplingError, match=r"stage_options\.mine\.size is missing; a whole number is exp"):
        read(everything, {})


def test_an_unknown_option_is_an_error():
    with pytest.raises(SamplingError, match="is not an option of the stage 'mine'; did you mean size"):
        read(everything, {"sise": 1})
    with pytest.raises(SamplingError, match="it has no options"):
        read(lambda candidates, step: candidates, {"size": 1})


def test_without_an_annotation_the_default_has_the_type():
    tokenizer = object()

    def plain(candidates, step, words=2, strength=1.0, names=None, tokenizer=tokenizer, *rest, **more): ...

    found = parameters_of("mine", plain)
    assert {name: each.expected for name, each in found.items()} == {
        "words": "a whole number",
        "strength": "a number",
        "names": "any value",
    }
    assert [each.default for each in found.values()] == [2, 1.0, None]
    assert read(plain, {"names": ("a",)}) == {"names": ("a",)}


@pytest.mark.parametrize("kind", [dict, bytes, list[list[int]], int | bytes, Literal[1.5], tuple[int, str]])
def test_a_type_that_json_does_not_have_is_an_error_when_the_stage_is_registered(kind):
    def wrong(candidates, step, *, value=None): ...

    wrong.__annotations__["value"] = kind
    with pytest.raises(SamplingError, match=r"stage 'mine': the type of its option value is .* is expected"):
        parameters_of("mine", wrong)
