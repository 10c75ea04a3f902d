"""How much one request may bring: the bounds that a server puts on its options, checked before anything is
built from them.

`Sampling` says what a value may be; this says how large. `check_size` reads each list and text once, without
recursion, and stops at the first bound that is passed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sized
from dataclasses import dataclass
from typing import Any

from glassloop.decode.option import children
from glassloop.errors import SamplingError


@dataclass(frozen=True)
class OptionLimits:
    # Entries of each list
    stop: int = 64
    bad_words: int = 1024
    choice: int = 1024
    logit_bias: int = 1024
    stop_token_ids: int = 1024
    allowed_token_ids: int = 32_768
    stages: int = 64
    bad_word_ids: int = 16_384  # token ids in all lists of bad_words together
    # Characters
    text: int = 4096  # of a stop string, a bad word, a choice, the name of a stage
    grammar: int = 100_000  # of a grammar, a regular expression, a JSON schema
    searched: int = 32_768  # of all stop strings and bad words together: each has a place in an automaton
    total: int = 131_072  # of all texts together
    stage_options: int = 16_384  # of all names and texts in stage_options together
    # Objects, lists, keys and values of a JSON schema, and of stage_options
    schema_values: int = 20_000
    stage_option_values: int = 4096


_LISTS = ("stop", "bad_words", "choice", "logit_bias", "stop_token_ids", "allowed_token_ids", "stages")
_SOURCES = ("regex", "grammar", "json_schema")


def check_size(options: Mapping[str, Any], limits: OptionLimits = OptionLimits()) -> None:
    """Raises a `SamplingError` that names the field if the options are larger than the limits. Values of a
    wrong type are left for `Sampling` to refuse."""
    total = 0
    for name in (*_LISTS, *_SOURCES, "stage_options"):
        value = options.get(name)
        if name in _LISTS:
            total += _check_list(name, value, limits)
            if name == "bad_words":
                _check("stop and bad_words", total, "characters together", limits.searched, field="stop")
        elif isinstance(value, str) and name in _SOURCES:
            _check(name, len(value), "characters", limits.grammar)
            total += len(value)
        elif name == "json_schema":
            total += _check_json(name, value, limits.schema_values, limits.grammar)
        elif name == "stage_options":
            total += _check_json(name, value, limits.stage_option_values, limits.stage_options)
    if total > limits.total:
        raise SamplingError(
            f"the options have {total} characters of text together; at most {limits.total} are expected"
        )


def _check_list(name: str, value: Any, limits: OptionLimits) -> int:
    """Returns how many characters its texts have."""
    if isinstance(value, str):
        _check(name, len(value), "characters", limits.text)
        return len(value)
    if not isinstance(value, (list, tuple, Mapping)):
        return 0
    _check(name, len(value), "entries", getattr(limits, name))
    characters = ids = 0
    for place, item in enumerate(value):
        if isinstance(item, str):
            _check(f"{name}[{place}]", len(item), "characters", limits.text)
            characters += len(item)
        elif isinstance(item, Sized):
            ids += len(item)
            _check(name, ids, "token ids", limits.bad_word_ids)
    return characters


def _check_json(name: str, value: Any, most_values: int, most_characters: int) -> int:
    """Returns how many characters the keys and texts of a JSON value have."""
    values = characters = 0
    left = [value]
    while left:
        value = left.pop()
        values += 1
        if isinstance(value, str):
            characters += len(value)
        elif isinstance(value, Mapping):
            values += len(value)  # before its items are added, so that no list grows beyond the limit
            characters += sum(len(key) for key in value if isinstance(key, str))
        elif isinstance(value, list):
            values += len(value)
        _check(name, values, "objects, lists, keys and values", most_values)
        _check(name, characters, "characters", most_characters)
        left += children(value)
    return characters


def _check(name: str, count: int, what: str, most: int, field: str | None = None) -> None:
    if count > most:
        message = f"{name} has {count} {what}; at most {most} are expected"
        raise SamplingError(message, field=field or name, expected=f"at most {most} {what}")
