"""Extractors: from the text of a path to its answer in canonical form, so that equal answers can be counted.

An extractor returns None for a text that has no answer. `find_extractor` turns what a user gives (a name such
as `number`, or a function) into one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from glassloop.engine.deadline import Deadline
from glassloop.errors import GlassloopError
from glassloop.search.verdict import Extractor, TimedExtractor
from glassloop.search.verify.patterns import check_pattern, find_first, find_last, find_option
from glassloop.util.shown import shown

LONGEST = 200_000  # characters of a text that are looked at, its end; an answer stands there
MOST_DIGITS = 200  # of a number

# A number: a sign that is not a minus between two terms, thousands with commas, decimals.
_NUMBER = re.compile(
    r"(?:(?<![\w)\]}.])(?P<sign>[-+]))?\$?(?:(?<=\$)(?P<inner>-))?"
    r"(?P<whole>\d{1,3}(?:,\d{3})+(?!\d)|\d+)?(?P<decimals>\.\d+)?"
)
_FRACTION = re.compile(r"\\[dt]?frac\s*\{\s*(-?\d+)\s*\}\s*\{\s*(\d+)\s*\}")
_HASHES = re.compile(r"####\s*(.+)")
_STATED = re.compile(
    r"\b(?:final\s+)?answer(?:\s+(?:to|for)\s[^.\n]{1,80}?)?\s*(?:is|are|:|=)+[\s:*$]*(.+)", re.IGNORECASE
)
_LETTER = re.compile(r"\(([A-Z])\)|(?<![\w'])([A-Z])(?=[).:*]|\s*$)", re.MULTILINE)
_STATED_LETTER = re.compile(
    r"\b(?:answer|option|choice)(?:\s+(?:is|are|would be))?[\s:*(\[\"']{0,8}([A-Z])\b(?!')", re.IGNORECASE
)


def number(text: str) -> str | None:
    r"""Returns the final number of a text, without `$`, `%`, commas and trailing zeros: "72", "-3.5".

    The last `\boxed{…}`, the last `#### …` and the last "answer is …" are looked at in this order; if none of
    them has a number, the last number of the text is the answer.
    """
    text = text[-LONGEST:]
    for marked in _marked(text):
        if (value := _first_number(marked)) is not None:
            return value
    return _last_number(text)


def choice(text: str, options: Sequence[str] = (), until: Deadline | None = None) -> str | None:
    """Returns the letter of the chosen option, as "B"; or, with `options`, the option that the text names.

    With options, an option that is a whole word counts, in any case; the last one named is the answer, a
    stated one ("the answer is yes") before others. They are looked for until a deadline.
    """
    text = text[-LONGEST:]
    if options:
        return _chosen_option(text, options, until)
    for boxed in _boxed(text):
        if match := re.search(r"(?<![A-Za-z\\])\(?([A-Z])\)?(?![A-Za-z])", boxed):
            return match[1]
    if stated := list(_STATED_LETTER.finditer(text)):
        last = stated[-1][1]
        if last.isupper():
            return last
    letters = list(_LETTER.finditer(text))
    bracketed = [match for match in letters if match[1]]
    if bracketed:
        return bracketed[-1][1]
    if letters:
        return letters[-1][2]
    return None


def json_value(text: str, field: str | None = None) -> str | None:
    """Returns the last JSON object or array of a text, or one field of it, as JSON with sorted keys."""
    value = last_json(text[-LONGEST:])
    if field is not None:
        value = value.get(field) if isinstance(value, dict) else None
    return None if value is None else json.dumps(value, sort_keys=True, ensure_ascii=False)


def last_line(text: str) -> str | None:
    """Returns the last line that is not empty, without surrounding white space."""
    lines = text[-LONGEST:].split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), None)


def matched(text: str, pattern: str, first: bool = False, until: Deadline | None = None) -> str | None:
    """Returns the last match of a regular expression, or the first one: its first group, if it has one."""
    if first:
        return find_first(pattern, text[:LONGEST], until)
    return find_last(pattern, text[-LONGEST:], until)


def whole(text: str) -> str | None:
    """Returns the whole text without surrounding white space."""
    return text.strip() or None


def auto(text: str) -> str | None:
    """Returns what looks most like the answer: a marked one (boxed, after ####, "the answer is"), reduced to
    its number or letter if it has one; else the last number; else the letter of an option; else the last
    line."""
    short = text[-LONGEST:]
    for marked in _marked(short):
        plain = _plain(marked)
        if (value := _first_number(plain)) is not None:
            return value
        if match := re.fullmatch(r"\(?([A-Z])\)?(?:[.):].*)?", plain):
            return match[1]
        if plain:
            return plain.casefold()
    return _last_number(short) or choice(short) or last_line(short)


def last_json(text: str) -> Any:
    """Returns the last object or array of a text that is valid JSON and not inside another; None without."""
    decoder, value, start = json.JSONDecoder(), None, 0
    tries = 0
    while (match := _OPENING.search(text, start)) is not None:
        tries += 1
        if tries > 2000:  # each failed try may read to the end of the text
            break
        try:
            value, start = decoder.raw_decode(text, match.start())
        except (ValueError, RecursionError):
            start = match.start() + 1
    return value


_OPENING = re.compile(r"[{\[]")


_PLAIN: dict[str, Extractor] = {
    "number": number,
    "choice": choice,
    "json": json_value,
    "last_line": last_line,
    "text": whole,
    "auto": auto,
}
_WITH_ARGUMENT: dict[str, Callable[[str], Extractor]] = {
    "regex": lambda pattern: TimedExtractor(lambda text, until: matched(text, pattern, until=until)),
    "first": lambda pattern: TimedExtractor(lambda text, until: matched(text, pattern, True, until)),
    "choice": lambda options: TimedExtractor(
        lambda text, until: choice(text, tuple(options.split("|")), until)
    ),
    "json": lambda field: partial(json_value, field=field),
}
EXTRACTORS = (*_PLAIN, "regex:PATTERN", "first:PATTERN", "choice:A|B", "json:FIELD")


def find_extractor(extract: str | Extractor | None) -> Extractor:
    """Returns an extractor for a name (`number`, `choice`, `json`, `last_line`, `text`, `auto`,
    `regex:PATTERN`, `first:PATTERN`, `choice:yes|no`, `json:FIELD`) or a function. None is `auto`."""
    if extract is None:
        return auto
    if callable(extract):
        return extract
    if isinstance(extract, str):
        if extractor := _PLAIN.get(extract):
            return extractor
        name, colon, argument = extract.partition(":")
        if colon and argument and name in _WITH_ARGUMENT:
            if name in ("regex", "first"):
                check_pattern(argument)  # an invalid pattern is an error now, not at the first answer
            return _WITH_ARGUMENT[name](argument)
    raise GlassloopError.about(
        "extract", f"is {shown(extract)}; a function or one of {', '.join(EXTRACTORS)} is expected"
    )


def _marked(text: str) -> Iterator[str]:
    """Yields the marked answers of a text, the surest mark first and the last of each kind."""
    yield from _boxed(text)
    for pattern in (_HASHES, _STATED):
        if matches := pattern.findall(text):
            yield matches[-1]


def _boxed(text: str) -> Iterator[str]:
    r"""Yields the content of the last `\boxed{…}`, with nested braces."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return
    depth, first = 0, start + len("\\boxed{")
    for place in range(first - 1, min(len(text), first + 1000)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            yield text[first:place]
            return
    yield text[first : first + 1000].split("\n")[0]  # it was cut off


def _plain(text: str) -> str:
    r"""Returns a marked answer without Markdown and LaTeX around it, and without a full stop."""
    inner = re.sub(r"\\text\s*\{([^{}]*)\}", r"\1", text)
    return inner.strip().strip("*$`\"' ").rstrip(".").strip()


def _numbers(text: str) -> list[str]:
    text = text.replace("{,}", ",").replace("\\$", "$").replace("\\%", "%").replace("−", "-")
    text = re.sub(r"(?<=\d)\\[,!]\s?(?=\d{3})", "", text)
    values = []
    for match in _NUMBER.finditer(text):
        whole_part, decimals = match["whole"], match["decimals"]
        if whole_part is None and decimals is None:
            continue
        digits = (whole_part or "0").replace(",", "").lstrip("0") or "0"
        fraction = (decimals or "").rstrip("0").rstrip(".")
        if len(digits) + len(fraction) > MOST_DIGITS:
            continue
        negative = match["sign"] == "-" or match["inner"] == "-"
        value = digits + fraction
        values.append("-" + value if negative and value != "0" else value)
    return values


def _first_number(text: str) -> str | None:
    if match := _FRACTION.search(text):
        top, bottom = match.groups()
        if len(top) + len(bottom) < 30 and int(bottom):
            return _decimal(int(top) / int(bottom))
    # "18 dollars" begins with its number; in "3 + 4 = 7" it is the last that is meant.
    numbers = _numbers(text.rpartition("=")[2]) or _numbers(text)
    return numbers[0] if numbers else None


def _last_number(text: str) -> str | None:
    numbers = _numbers(text)
    return numbers[-1] if numbers else None


def _decimal(value: float) -> str:
    return f"{value:.10f}".rstrip("0").rstrip(".")


def _chosen_option(text: str, options: Sequence[str], until: Deadline | None) -> str | None:
    """Returns the option that a text names. Many options are slow to look for, so that it is done where a
    pattern of a user is."""
    by_name = {option.casefold(): option for option in options}
    names = "|".join(re.escape(name) for name in sorted(by_name, key=len, reverse=True))
    pattern = rf"(?<!\w)(?:{names})(?!\w)"
    for marked in _marked(text):
        if matched := find_option(pattern, marked.casefold(), "first", until):
            return by_name[matched]
    last = find_option(pattern, text.casefold(), "last", until)
    return by_name[last] if last else None
