"""The validator of a `.glass` header: every field has the type, range and length that the rest of the code
relies on. docs/trace-header.schema.json says the same for other programs, as far as a schema can.

A file is untrusted input. A run that passes here can be shown, listed, saved and linked without another
check; whether its token ids and its length fit a model is checked by the engine.
"""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

from glassloop.errors import TraceError
from glassloop.record.format.file_limits import DEEPEST, MOST_CONTAINERS
from glassloop.record.passes import MOST_BLOCK, MOST_PASSES
from glassloop.util.check import (
    OBJECT,
    Check,
    FileChecks,
    number_between,
    one_of,
    text_matching,
    whole_between,
)
from glassloop.util.shown import printable, shown

Header = dict[str, Any]

MOST_ID = (1 << 31) - 1  # the largest token id
_MOST_COUNT = (1 << 31) - 1
_MOST_SECONDS = 1e12  # a duration; also keeps sums of durations finite
_LAST_YEAR = 253_402_300_799  # the last second of the year 9999, beyond which there are no dates
_MOST_PAST = 4096  # forks of forks
_MOST_MOVES = 4096  # to other replicas
_MOST_PLUGINS = 1024  # stages of one's own
_MOST_ADAPTERS = 1024
_MOST_DIFFUSION = 32  # options
_MOST_SAMPLES = 1024  # as many as `Sampling.n` allows
_MOST_MARK = 1000  # characters of a mark around thoughts
_LARGEST = 1e308  # of any number, so that it fits a float64
_MOST_MESSAGES = 10_000  # of a conversation, and parts of one message
_MOST_CONVERSATION = 2 << 20  # characters of a conversation as JSON
# Fields that older files do not have.
_LATER = (
    *("refused", "plugins", "messages", "search", "revised", "moves", "adapters", "upstream"),
    *("diffusion", "passes", "pending", "form"),  # of version 2
)

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
    _object_of(FIELDS, optional=_LATER)("", header)
    _check_counts(header)
    return header


def replace_surrogates(text: str) -> str:
    """Returns the text with each lone surrogate, which UTF-8 cannot hold, replaced by U+FFFD. Our own
    files may contain them, in the name of a model whose path is not UTF-8."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


# ── any JSON ───────────────────────────────────────────────────────────────────────────────────────────────


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ValueError("a name comes twice in one object")
    return entries


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number in JSON")


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


_checks = FileChecks(TraceError)
_must_be, _optional = _checks.must_be, _checks.optional
_row, _object_of = _checks.row, _checks.object_of


def _whole(low: int, high: int) -> Check:
    return _checks.of(whole_between(low, high))


def _number(low: float, high: float) -> Check:
    return _checks.of(number_between(low, high))


def _text(most: int = _MOST_COUNT) -> Check:
    expected = "a text" if most == _MOST_COUNT else f"a text of at most {most} characters"
    return _must_be(expected, lambda it: isinstance(it, str) and len(it) <= most)


def _matching(pattern: re.Pattern[str], expected: str) -> Check:
    return _checks.of(text_matching(pattern, expected))


def _one_of(*allowed: object) -> Check:
    return _checks.of(one_of(*allowed))


def _list(item: Check, least: int = 0, most: int = _MOST_COUNT, unique: bool = False) -> Check:
    return _checks.list_of(item, least, most, unique)


_is_object = _checks.of(OBJECT)
# Speeds are counts divided by these, so a value too small for any clock would overflow.
_seconds = _must_be(
    f"0 or a number from 1e-12 to {_MOST_SECONDS:g}",
    lambda it: type(it) in (int, float) and (it == 0 or 1e-12 <= it <= _MOST_SECONDS),
)
_id = _matching(re.compile(r"[0-9a-f]{16}"), "16 hexadecimal digits")
_token = _whole(0, MOST_ID)
_count = _whole(0, _MOST_COUNT)
_word64 = _whole(0, (1 << 64) - 1)


# ── checks of fields that are more than one value ──────────────────────────────────────────────────────────


def _ids(least: int) -> Check:
    """Returns a check of a list of token ids: `_list(_token, least=…)`, but quick, since there may be as many
    as a context has."""

    def check(name: str, value: Any) -> None:
        plain = isinstance(value, list) and len(value) >= least
        if not plain or not all(type(it) is int and 0 <= it <= MOST_ID for it in value):
            _list(_token, least=least)(name, value)

    return check


def _sampling(name: str, value: Any) -> None:
    """Checks names only. `Sampling` checks the values when the run is made of them."""
    _is_object(name, value)
    for key in value:
        if len(key) > 64 or not key.isascii() or not key.isprintable():
            raise TraceError(f"{name}.{printable(key)} is not a sampling option")


def _content(name: str, value: Any) -> None:
    if isinstance(value, list):
        _list(_object_of({"type": _text(64), "text": _text()}), most=_MOST_MESSAGES)(name, value)
    elif value is not None:
        _must_be("a text, a list of parts or null", lambda it: isinstance(it, str))(name, value)


def _message(name: str, value: Any) -> None:
    """Checks what lists and pages show of a message. Its other fields may hold any JSON."""
    _is_object(name, value)
    if "role" not in value:
        raise TraceError(f"{name}.role is missing")
    for key, each in value.items():
        if len(key) > 64 or not key.isascii() or not key.isprintable():
            raise TraceError(f"{name}.{printable(key)} is not a field of a message")
        if key in _MESSAGE_FIELDS:
            _MESSAGE_FIELDS[key](f"{name}.{key}", each)


def _messages(name: str, value: Any) -> None:
    _list(_message, least=1, most=_MOST_MESSAGES)(name, value)
    size = len(json.dumps(value, ensure_ascii=False))
    if size > _MOST_CONVERSATION:
        raise TraceError(f"{name} has {size} characters as JSON; at most {_MOST_CONVERSATION} are expected")


def check_messages(name: str, value: Any) -> list[dict[str, Any]]:
    """Returns a conversation, with lone surrogates replaced, if a header may hold it. Raises if not."""
    plain: list[dict[str, Any]] = _plain(name, value, 1)
    _messages(name, plain)
    return plain


def _past(name: str, value: Any) -> None:
    _list(_object_of(_PAST_FIELDS, optional=("plugins",)), most=_MOST_PAST)(name, value)
    ends = [past["until"] for past in value]
    if any(one >= other for one, other in itertools.pairwise(ends)):
        raise TraceError(f"{name} does not ascend by until")


def _beams(name: str, value: Any) -> None:
    """Checks that the parent of each beam is listed before it, so that a search is a forest."""
    _list(_BEAM)(name, value)
    numbers: set[int] = set()
    for place, (number, parent, *_) in enumerate(value):
        if number in numbers or (parent is not None and parent not in numbers):
            raise TraceError(f"{name}[{place}] does not have a new number and an earlier beam as its parent")
        numbers.add(number)


def _forks(name: str, value: Any) -> None:
    _is_object(name, value)
    for key, count in value.items():
        if not _POSITION.fullmatch(key) or int(key) > _MOST_COUNT:
            raise TraceError(
                f"a key of {name} is {shown(key)}; a position from 0 to {_MOST_COUNT} is expected"
            )
        _count(f"{name}[{key}]", count)


def _small_object(name: str, value: Any, most: int) -> None:
    _is_object(name, value)
    if len(value) > most:
        raise TraceError(f"{name} has {len(value)} entries; at most {most} are expected")


def _plugins(name: str, value: Any) -> None:
    _small_object(name, value, _MOST_PLUGINS)
    for stage, plugin in value.items():
        _stage_name(f"a key of {name}", stage)
        _PLUGIN(f"{name}[{shown(stage)}]", plugin)


def _adapters(name: str, value: Any) -> None:
    _small_object(name, value, _MOST_ADAPTERS)
    for adapter, hash in value.items():
        _stage_name(f"a key of {name}", adapter)
        _sha256(f"{name}[{shown(adapter)}]", hash)


def _diffusion(name: str, value: Any) -> None:
    """Checks that options are few and plain; `decode.diffusion` checks the rest where the passes are computed
    again."""
    _small_object(name, value, _MOST_DIFFUSION)
    for key, each in value.items():
        if len(key) > 64 or not key.isascii() or not key.isprintable():
            raise TraceError(f"{name}.{printable(key)} is not an option of diffusion")
        if key == "after":
            _list(_token, most=MOST_BLOCK)(f"{name}.{key}", each)
        elif not (each is None or _is_plain(each)):
            raise TraceError(f"{name}.{key} is {shown(each)}; a number or a short text is expected")


def _is_plain(value: Any) -> bool:
    """Returns whether this is a number that fits a float64, or a short text."""
    if isinstance(value, str):
        return len(value) <= 256
    return isinstance(value, (bool, int, float)) and abs(value) <= _LARGEST


def _passes(name: str, value: Any) -> None:
    """Checks that passes are numbered from 0, and that each fills places of its own block."""
    _list(_PASS, most=MOST_PASSES)(name, value)
    for place, (number, first, width, unfilled, filled) in enumerate(value):
        if number != place:
            raise TraceError(f"{name}[{place}][0] is {number}; the number of the pass, {place}, is expected")
        for at, *_ in (*unfilled, *filled):
            if not first <= at < first + width:
                raise TraceError(f"{name}[{place}] has the place {at}; one of its block is expected")


def _check_counts(header: Header) -> None:
    """Checks what fields say of each other."""
    if ("diffusion" in header) != ("passes" in header):
        raise TraceError("diffusion and passes are expected together")
    prompt, answer, end = (header[name] for name in ("prompt_records", "records", "end_records"))
    most = len(header["prompt_ids"]) - 1
    if prompt > most:
        raise TraceError(f"prompt_records is {prompt}; at most {most} is expected, one for each id but one")
    for place, (at, *_) in enumerate(header.get("refused", ())):
        if at >= answer + end:
            raise TraceError(f"refused[{place}][0] is {at}; a token of the answer is expected")


_BEAM = _row(
    _count,
    _optional(_count),
    _token,
    _number(-_LARGEST, _LARGEST),
    _one_of("live", "pruned", "finished", "chosen"),
)
_PASS = _row(
    _count,
    _count,
    _whole(1, MOST_BLOCK),
    _list(_row(_count, _token, _text(256)), most=MOST_BLOCK),
    _list(_row(_count, _token, _number(0, 1), *[_number(-_LARGEST, _LARGEST)] * 3), most=MOST_BLOCK),
)
_MESSAGE_FIELDS: dict[str, Check] = {
    "role": _text(64),
    "content": _content,
    "tool_calls": _optional(_list(_is_object, most=_MOST_MESSAGES)),
}
_stage_name = _must_be(
    "a text of 1 to 4096 characters", lambda it: isinstance(it, str) and 0 < len(it) <= 4096
)
_sha256 = _matching(re.compile("[0-9a-f]{64}"), "a SHA-256")
_PLUGIN = _object_of(
    {
        "file": _must_be(
            "the name of a file, 1 to 255 printable characters without a slash,",
            lambda it: isinstance(it, str) and 0 < len(it) <= 255 and it.isprintable() and "/" not in it,
        ),
        "sha256": _sha256,
    }
)
_PAST_FIELDS: dict[str, Check] = {
    "until": _count,
    "run": _id,
    "sampling": _sampling,
    "seed": _word64,
    "salt": _word64,
    "plugins": _plugins,
}
_UPSTREAM = _object_of(
    {
        "url": _text(2048),
        "server": _text(64),
        "endpoint": _one_of("chat", "completions"),
        "logprobs": _one_of(True, False),
        "prompt_tokens": _optional(_count),
        "completion_tokens": _optional(_count),
        "cached_tokens": _optional(_count),
        "fingerprint": _optional(_text(256)),
    }
)
_FORM = _object_of(
    {
        **dict.fromkeys(("begin", "end", "link", "opening", "closing"), _text(_MOST_MARK)),
        "opened": _one_of(True, False),
    }
)
FIELDS: dict[str, Check] = {
    "id": _id,
    "created": _number(0, _LAST_YEAR),
    "model": _text(4096),
    "ops": _text(256),
    "context": _count,
    "prompt": _optional(_text()),
    "prompt_ids": _ids(1),
    "pending": _ids(0),
    "messages": _optional(_messages),
    "form": _optional(_FORM),
    "seed": _word64,
    "salt": _word64,
    "sample": _whole(0, _MOST_SAMPLES - 1),
    "parent": _optional(_id),
    "fork_at": _optional(_count),
    "reason": _one_of("sampled", "forced", "edited", "rewound", "revised", None),
    "revised": _count,
    "tail": _text(),
    "finish_reason": _one_of("stop", "length", "timeout", "repetition", "cancelled", "error", None),
    "stop_reason": _optional(_text()),
    "cached_tokens": _count,
    "model_hash": _matching(_MODEL_HASH, "a SHA-256 or nothing"),
    "sampling": _sampling,
    "past": _past,
    "plugins": _plugins,
    "adapters": _adapters,
    "samples": _list(_id, most=_MOST_SAMPLES, unique=True),
    "timings": _object_of({"queue": _seconds, "prefill": _seconds, "decode": _seconds, "preempted": _count}),
    "drafts": _object_of({"proposed": _count, "accepted": _count, "seconds": _seconds}),
    "refused": _list(_row(_count, _token, _text(), _one_of("lookup", "model", "masks"), _count)),
    "beams": _beams,
    "search": _optional(_is_object),  # `search.record` checks the rest where a search is read
    "forks": _forks,
    "moves": _list(_row(_count, _text(256), _text(256), _text(64)), most=_MOST_MOVES),
    "upstream": _optional(_UPSTREAM),
    "diffusion": _diffusion,
    "passes": _passes,
    "prompt_records": _count,
    "records": _count,
    "end_records": _one_of(0, 1),
    "columns": _list(_row(_text(64), _text(2), _count), most=64),
}
