"""The answers of another engine, checked: the chunks of a stream with their tokens and log-probabilities, and
the log-probabilities of a prompt. Chat and completions have different forms; both are read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import inf
from typing import Any, NamedTuple

from glassloop.upstream.client import UpstreamError
from glassloop.util.check import OBJECT, ValueRule, require, whole_between
from glassloop.util.shown import printable

_MOST_TEXT = 1 << 20  # characters of one chunk, and bytes of one token
_MOST_ALTERNATIVES = 64  # that are recorded with a token
_MOST_ENTRIES = 1 << 20  # tokens of one chunk
_MOST_COUNT = (1 << 31) - 1
_ROUNDING = 1e-3  # by which a log-probability may exceed 0
_LEAST = -1e300  # below this it is minus infinity; a whole number may be too large for a float
_ESCAPED = re.compile(r"bytes:((?:\\x[0-9a-fA-F]{2})+)")  # how OpenAI writes a token that is not UTF-8

# How servers write a token that is not text, since it is a part of a character.
PART = re.compile(r"\ufffd|<0x[0-9a-fA-F]{2}>|\\x[0-9a-fA-F]{2}")


class ReportedAlternative(NamedTuple):
    piece: str
    data: bytes
    logprob: float


class ReportedToken(NamedTuple):
    """A token as it was told. `data` is empty where its bytes are not known."""

    piece: str
    data: bytes
    logprob: float | None
    alternatives: tuple[ReportedAlternative, ...]


class Counts(NamedTuple):
    """The usage that the upstream told."""

    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None


class AnswerPart(NamedTuple):
    """A chunk of a stream."""

    text: str = ""
    entries: tuple[ReportedToken, ...] = ()
    finish_reason: str | None = None
    stop_reason: str | None = None
    counts: Counts | None = None
    fingerprint: str | None = None


def read_part(chunk: Any) -> AnswerPart:
    """Returns a chunk, checked. Raises if it cannot be understood."""
    counts = _counts(_object("chunk", chunk).get("usage"))
    fingerprint = chunk.get("system_fingerprint")
    fingerprint = printable(fingerprint, 256) if isinstance(fingerprint, str) and fingerprint else None
    choices = _list("choices", chunk.get("choices"))
    if not choices:
        return AnswerPart(counts=counts, fingerprint=fingerprint)
    choice = _object("choices[0]", choices[0])
    delta = choice.get("delta", choice.get("message"))
    text = choice.get("text") if delta is None else _object("delta", delta).get("content")
    reason = choice.get("finish_reason")
    return AnswerPart(
        "" if text is None else _text("text", text),
        _entries(choice.get("logprobs")),
        printable(reason, 64) if isinstance(reason, str) and reason else None,
        _stop_reason(choice.get("stop_reason")),
        counts,
        fingerprint,
    )


def _entries(logprobs: Any) -> tuple[ReportedToken, ...]:
    if logprobs is None:
        return ()
    fields = _object("logprobs", logprobs)
    if "content" in fields:
        content = fields["content"] if fields["content"] is not None else []
        return tuple(_chat_entry(each) for each in _list("logprobs.content", content))
    return completion_entries(fields)


def _chat_entry(value: Any) -> ReportedToken:
    entry = _object("logprobs.content", value)
    piece, data = _piece(entry.get("token"), entry.get("bytes"))
    others = []
    listed = entry.get("top_logprobs")
    for each in _list("top_logprobs", [] if listed is None else listed)[:_MOST_ALTERNATIVES]:
        other = _object("top_logprobs", each)
        logprob = _logprob(other.get("logprob"))
        if logprob is not None:
            others.append(ReportedAlternative(*_piece(other.get("token"), other.get("bytes")), logprob))
    return ReportedToken(piece, data, _logprob(entry.get("logprob")), _sorted(others))


def completion_entries(fields: dict[str, Any]) -> tuple[ReportedToken, ...]:
    """Returns the tokens of the `logprobs` of a completion."""
    tokens = _list("logprobs.tokens", fields.get("tokens") or [])
    logprobs = _list("logprobs.token_logprobs", fields.get("token_logprobs") or [None] * len(tokens))
    listed = _list("logprobs.top_logprobs", fields.get("top_logprobs") or [None] * len(tokens))
    if not len(tokens) == len(logprobs) == len(listed):
        raise UpstreamError("the upstream's logprobs have lists of different lengths")
    tokens_read = []
    for token, logprob, likely in zip(tokens, logprobs, listed, strict=True):
        others = []
        for other, value in list(_object("logprobs.top_logprobs", likely or {}).items())[:_MOST_ALTERNATIVES]:
            logprob_there = _logprob(value)
            if logprob_there is not None:
                others.append(ReportedAlternative(*_piece(other, None), logprob_there))
        tokens_read.append(ReportedToken(*_piece(token, None), _logprob(logprob), _sorted(others)))
    return tuple(tokens_read)


def _sorted(others: Sequence[ReportedAlternative]) -> tuple[ReportedAlternative, ...]:
    return tuple(sorted(others, key=lambda each: -each.logprob))


def _piece(token: Any, listed: Any) -> tuple[str, bytes]:
    """Returns the text of a token and its bytes, which are empty where they are not known."""
    token = _text("token", token)
    if listed is not None:
        _check("bytes", listed, _BYTES)
        return token, bytes(listed)
    if escaped := _ESCAPED.fullmatch(token):
        return token.removeprefix("bytes:"), bytes.fromhex(escaped[1].replace("\\x", ""))
    return token, b"" if PART.search(token) else token.encode()


def _logprob(value: Any) -> float | None:
    """Returns a log-probability, or None if there is none."""
    if value is None:
        return None
    _check("logprob", value, _LOGPROB)
    return float(value) if value >= _LEAST else -inf


def _counts(usage: Any) -> Counts | None:
    if usage is None:
        return None
    fields = _object("usage", usage)
    details = fields.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return Counts(
        _count(fields.get("prompt_tokens")), _count(fields.get("completion_tokens")), _count(cached)
    )


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= _MOST_COUNT else None


def read_prompt_logprobs(answer: Any, tokenized: Any) -> list[tuple[ReportedToken, int]]:
    """Returns the tokens of a prompt, each with its rank (0: not known), as vLLM tells them: for each place
    the log-probabilities of some tokens by id, and by another endpoint the ids of the prompt."""
    places = _list("prompt_logprobs", _object("an answer", answer).get("prompt_logprobs"))
    ids = _list("tokens", _object("an answer", tokenized).get("tokens"))
    if len(places) != len(ids) or not ids:
        raise UpstreamError(
            f"the upstream has {len(places)} log-probabilities for {len(ids)} tokens of a prompt"
        )
    entries = [(ReportedToken(_first_piece(tokenized), b"", None, ()), 0)]
    for place, (id, each) in enumerate(zip(ids[1:], places[1:], strict=True), 1):
        named = {
            key: _object("prompt_logprobs", value) for key, value in _object("prompt_logprobs", each).items()
        }
        chosen = named.get(str(id))
        if chosen is None:
            raise UpstreamError(f"the upstream's prompt_logprobs do not have the token {place} of the prompt")
        others = [
            ReportedAlternative(*_piece(value.get("decoded_token"), None), logprob)
            for value in list(named.values())[:_MOST_ALTERNATIVES]
            if (logprob := _logprob(value.get("logprob"))) is not None
        ]
        piece, data = _piece(chosen.get("decoded_token"), None)
        entry = ReportedToken(piece, data, _logprob(chosen.get("logprob")), _sorted(others))
        entries.append((entry, _count(chosen.get("rank")) or 0))
    return entries


def _first_piece(tokenized: dict[str, Any]) -> str:
    """Returns the text of the first token of a prompt, which has no log-probability, if it was told."""
    pieces = tokenized.get("pieces")
    first = pieces[0] if isinstance(pieces, list) and pieces else None
    return _piece(first.get("piece"), None)[0] if isinstance(first, dict) else ""


def _stop_reason(value: Any) -> str | None:
    if isinstance(value, str):
        return printable(value, 256)
    return str(value) if type(value) is int and abs(value) <= _MOST_COUNT else None


_TEXT = ValueRule(
    f"a text of at most {_MOST_TEXT} characters", lambda it: isinstance(it, str) and len(it) <= _MOST_TEXT
)
_ENTRIES = ValueRule(
    f"a list of at most {_MOST_ENTRIES} entries", lambda it: isinstance(it, list) and len(it) <= _MOST_ENTRIES
)
_BYTES = ValueRule(
    f"a list of at most {_MOST_TEXT} numbers from 0 to 255",
    lambda it: isinstance(it, list) and len(it) <= _MOST_TEXT and all(map(whole_between(0, 255).fits, it)),
)
_LOGPROB = ValueRule(  # NaN does not fit
    "a log-probability, which is a number up to 0,", lambda it: type(it) in (int, float) and it <= _ROUNDING
)


def _object(name: str, value: Any) -> dict[str, Any]:
    _check(name, value, OBJECT)
    fields: dict[str, Any] = value
    return fields


def _list(name: str, value: Any) -> list[Any]:
    _check(name, value, _ENTRIES)
    entries: list[Any] = value
    return entries


def _text(name: str, value: Any) -> str:
    """Returns a text without lone surrogates."""
    _check(name, value, _TEXT)
    return str(value).encode("utf-8", "replace").decode()


def _check(name: str, value: Any, rule: ValueRule) -> None:
    require(f"the upstream's {name}", value, rule, UpstreamError)
