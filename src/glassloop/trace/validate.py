"""The one validator of a `.glass` header: every field has the type, the range and the length that the rest of
the code relies on. docs/trace-header.schema.json says the same for other programs, as far as a schema can.

A file is input that anyone may have made. What passes here can be shown, listed, saved and linked without
another check; whether its token ids and its length fit a model is the engine's question.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from glassloop.errors import TraceError
from glassloop.shown import printable, shown
from glassloop.trace.limits import DEEPEST, MOST_CONTAINERS

Header = dict[str, Any]
Check = Callable[[str, Any], None]  # (the name of the field, its value): raises TraceError

MOST_ID = (1 << 31) - 1  # the largest token id
_MOST_COUNT = (1 << 31) - 1
_MOST_SECONDS = 1e12  # a duration; also keeps sums of durations finite
_LAST_YEAR = 253_402_300_799  # the last second of the year 9999, beyond which there are no dates
_MOST_PAST = 4096  # forks of forks
_MOST_SAMPLES = 1024  # as many as `Sampling.n` allows
_LARGEST = 1e308  # of any number: beyond it is no float64

_RUN_ID = re.compile(r"[0-9a-f]{16}")
_MODEL_HASH = re.compile(r"([0-9a-f]{64}(\+[a-z0-9_]{1,16})?)?")
_POSITION = re.compile(r"0|[1-9][0-9]{0,9}")
_SURROGATE = re.compile("[\ud800-\udfff]")


def read_header(data: bytes) -> Header:
    """Parses and validates a header. The caller has bounded its size."""
    if data.count(b"[") + data.count(b"{") > MOST_CONTAINERS:
        raise TraceError(f"the header has more than {MOST_CONTAINERS} brackets")
    try:
        parsed = json.loads(
            data.decode("utf-8", "surrogatepass"), object_pairs_hook=_object, parse_constant=_no_constant
        )
    except (ValueError, RecursionError) as error:
        raise TraceError(f"the header is not JSON: {printable(str(error))}") from error
    if not isinstance(parsed, dict):
        raise TraceError("the header is not an object")
    header = {replace_surrogates(name): _plain(printable(name), each, 1) for name, each in parsed.items()}
    _check_object("", header, _FIELDS, optional=_OPTIONAL)
    _check_counts(header)
    return header


def replace_surrogates(text: str) -> str:
    """Returns the text with each lone surrogate, which UTF-8 cannot hold, replaced by U+FFFD. Files of ours
    may have them: in the name of a model whose path is not UTF-8."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


# ── any JSON ───────────────────────────────────────────────────────────────────────────────────────────────


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a name comes twice in one object")
    return made


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number in JSON")


def _plain(name: str, value: Any, depth: int) -> Any:
    """Returns the value with lone surrogates replaced, if it is not nested too deeply and every number fits
    a float64."""
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, int | float):
        if not -_LARGEST <= value <= _LARGEST:  # NaN included
            raise TraceError(f"{name} has a number beyond {_LARGEST:g}")
        return value
    if depth == DEEPEST:
        raise TraceError(f"{name} is nested more than {DEEPEST} levels deep")
    if isinstance(value, list):
        return [_plain(name, each, depth + 1) for each in value]
    if isinstance(value, dict):
        return {replace_surrogates(key): _plain(name, each, depth + 1) for key, each in value.items()}
    return value


# ── checks of one value ────────────────────────────────────────────────────────────────────────────────────


def _wrong(name: str, value: object, expected: str) -> TraceError:
    return TraceError(f"{name} is {shown(value)}; {expected} is expected")


def _whole(low: int, high: int) -> Check:
    def check(name: str, value: Any) -> None:
        if type(value) is not int or not low <= value <= high:
            raise _wrong(name, value, f"a whole number from {low} to {high}")

    return check


def _number(low: float, high: float) -> Check:
    def check(name: str, value: Any) -> None:
        if type(value) not in (int, float) or not low <= value <= high:
            raise _wrong(name, value, f"a number from {low:g} to {high:g}")

    return check


def _seconds(name: str, value: Any) -> None:
    """Speeds are counts divided by these, so a value that no clock measures would overflow."""
    _number(0, _MOST_SECONDS)(name, value)
    if 0 < value < 1e-12:
        raise _wrong(name, value, "0 or a number from 1e-12")


def _text(most: int | None = None, pattern: re.Pattern[str] | None = None, what: str = "a text") -> Check:
    def check(name: str, value: Any) -> None:
        if not isinstance(value, str) or (pattern is not None and not pattern.fullmatch(value)):
            raise _wrong(name, value, what)
        if most is not None and len(value) > most:
            raise TraceError(f"{name} has {len(value)} characters; at most {most} are expected")

    return check


def _one_of(*allowed: object) -> Check:
    def check(name: str, value: Any) -> None:
        if not any(type(value) is type(each) and value == each for each in allowed):
            shown = ", ".join("null" if each is None else str(each) for each in allowed)
            raise _wrong(name, value, f"one of {shown}")

    return check


def _optional(check: Check) -> Check:
    def checked(name: str, value: Any) -> None:
        if value is not None:
            check(name, value)

    return checked


def _list(item: Check, least: int = 0, most: int = _MOST_COUNT, unique: bool = False) -> Check:
    def check(name: str, value: Any) -> None:
        if not isinstance(value, list):
            raise _wrong(name, value, "a list")
        if not least <= len(value) <= most:
            raise TraceError(f"{name} has {len(value)} entries; {least} to {most} are expected")
        for place, each in enumerate(value):
            item(f"{name}[{place}]", each)
        if unique and len(set(value)) != len(value):
            raise TraceError(f"{name} has the same entry twice")

    return check


def _row(*items: Check) -> Check:
    def check(name: str, value: Any) -> None:
        if not isinstance(value, list) or len(value) != len(items):
            raise _wrong(name, value, f"a list of {len(items)} entries")
        for place, (item, each) in enumerate(zip(items, value, strict=True)):
            item(f"{name}[{place}]", each)

    return check


def _object_of(fields: Mapping[str, Check]) -> Check:
    def check(name: str, value: Any) -> None:
        _check_object(name, value, fields)

    return check


def _check_object(name: str, value: Any, fields: Mapping[str, Check], optional: Sequence[str] = ()) -> None:
    if not isinstance(value, dict):
        raise _wrong(name, value, "an object")
    place = f"{name}." if name else ""
    for key in value:
        if key not in fields:
            raise TraceError(f"{place}{printable(key)} is no field of the format")
    for key, check in fields.items():
        if key in value:
            check(place + key, value[key])
        elif key not in optional:
            raise TraceError(f"{place}{key} is missing")


# ── checks of fields that are more than one value ──────────────────────────────────────────────────────────


def _prompt_ids(name: str, value: Any) -> None:
    """Like `_list`, for lists that may be as long as a model's context."""
    if not isinstance(value, list) or not value:
        raise _wrong(name, value, "a list of at least one token id")
    for place, each in enumerate(value):
        if type(each) is not int or not 0 <= each <= MOST_ID:
            raise _wrong(f"{name}[{place}]", each, f"a token id from 0 to {MOST_ID}")


def _sampling(name: str, value: Any) -> None:
    """Only names, which may be anything here. `Sampling` checks the values when the run is made of them."""
    if not isinstance(value, dict):
        raise _wrong(name, value, "an object")
    for key in value:
        if len(key) > 64 or not key.isascii() or not key.isprintable():
            raise TraceError(f"{name}.{printable(key)} is not a sampling option")


def _past(name: str, value: Any) -> None:
    _list(_object_of(_PAST_FIELDS), most=_MOST_PAST)(name, value)
    ends = [past["until"] for past in value]
    if any(one >= other for one, other in itertools.pairwise(ends)):
        raise TraceError(f"{name} does not ascend by until")


def _beams(name: str, value: Any) -> None:
    """A beam's parent stands before it, so a search is a forest."""
    _list(_BEAM)(name, value)
    known: set[int] = set()
    for place, (number, parent, *_) in enumerate(value):
        if number in known or (parent is not None and parent not in known):
            raise TraceError(f"{name}[{place}] does not name itself anew and an earlier beam as its parent")
        known.add(number)


def _forks(name: str, value: Any) -> None:
    if not isinstance(value, dict):
        raise _wrong(name, value, "an object")
    for key, count in value.items():
        if not _POSITION.fullmatch(key) or int(key) > _MOST_COUNT:
            raise _wrong(f"a key of {name}", key, f"a position from 0 to {_MOST_COUNT}")
        _count(f"{name}[{key}]", count)


def _check_counts(header: Header) -> None:
    """What fields say of each other."""
    prompt, made, end = (header[name] for name in ("prompt_records", "records", "end_records"))
    most = len(header["prompt_ids"]) - 1
    if prompt > most:
        raise TraceError(f"prompt_records is {prompt}; at most {most} is expected, one for each id but one")
    for place, (at, *_) in enumerate(header.get("refused", ())):
        if at >= made + end:
            raise TraceError(f"refused[{place}][0] is {at}; a token of the answer is expected")


_id = _text(pattern=_RUN_ID, what="16 hexadecimal digits")
_token = _whole(0, MOST_ID)
_count = _whole(0, _MOST_COUNT)
_word64 = _whole(0, (1 << 64) - 1)
_BEAM = _row(
    _count,
    _optional(_count),
    _token,
    _number(-_LARGEST, _LARGEST),
    _one_of("live", "pruned", "finished", "chosen"),
)
_PAST_FIELDS: dict[str, Check] = {
    "until": _count,
    "run": _id,
    "sampling": _sampling,
    "seed": _word64,
    "salt": _word64,
}
_FIELDS: dict[str, Check] = {
    "id": _id,
    "created": _number(0, _LAST_YEAR),
    "model": _text(4096),
    "ops": _text(256),
    "context": _count,
    "prompt": _optional(_text()),
    "prompt_ids": _prompt_ids,
    "seed": _word64,
    "salt": _word64,
    "sample": _whole(0, _MOST_SAMPLES - 1),
    "parent": _optional(_id),
    "fork_at": _optional(_count),
    "reason": _one_of("sampled", "forced", "edited", "rewound", None),
    "tail": _text(),
    "finish_reason": _one_of("stop", "length", "timeout", "repetition", "cancelled", "error", None),
    "stop_reason": _optional(_text()),
    "cached_tokens": _count,
    "model_hash": _text(pattern=_MODEL_HASH, what="a SHA-256 or nothing"),
    "sampling": _sampling,
    "past": _past,
    "samples": _list(_id, most=_MOST_SAMPLES, unique=True),
    "timings": _object_of({"queue": _seconds, "prefill": _seconds, "decode": _seconds, "preempted": _count}),
    "drafts": _object_of({"proposed": _count, "accepted": _count, "seconds": _seconds}),
    "refused": _list(_row(_count, _token, _text(), _one_of("lookup", "model"), _count)),
    "beams": _beams,
    "forks": _forks,
    "prompt_records": _count,
    "records": _count,
    "end_records": _one_of(0, 1),
    "columns": _list(_row(_text(64), _text(2), _count), most=64),
}
_OPTIONAL = ("refused",)  # files from before it was kept have none
