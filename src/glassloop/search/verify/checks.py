"""The plain verifiers, by name: numbers, choices, texts, regular expressions and JSON schemas."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from glassloop.decode.plugins import plugin_register
from glassloop.engine.deadline import Deadline
from glassloop.errors import GlassloopError
from glassloop.search import extract
from glassloop.search.verdict import TimedVerifier, Verdict, Verifier
from glassloop.search.verify.json_schema import check_schema, mismatch
from glassloop.search.verify.patterns import check_pattern, is_found
from glassloop.util.shown import cut, shown

OWN_VERIFIERS: dict[str, Verifier] = plugin_register("verifier")  # of plugins, by name


def number_equals(expected: str | float) -> Verifier:
    """Returns a verifier: the final number of the text is the expected one."""
    wanted = extract.number(str(expected))
    if wanted is None:
        raise GlassloopError.about("verify", f"is number:{shown(expected)}; a number is expected")
    return _equals(extract.number, wanted)


def choice_is(expected: str) -> Verifier:
    """Returns a verifier: the text chooses the expected letter."""
    wanted = expected.strip("() ").upper()
    if len(wanted) != 1 or not wanted.isalpha():
        raise GlassloopError.about("verify", f"is choice:{shown(expected)}; one letter is expected")
    return _equals(extract.choice, wanted)


def contains(expected: str) -> Verifier:
    """Returns a verifier: the text contains another, in any case."""
    wanted = expected.casefold()

    def verify(text: str, until: Deadline | None) -> Verdict:
        return _verdict(wanted in text.casefold(), f"{cut(expected)!r} is not in it")

    return TimedVerifier(verify)


def matches(pattern: str) -> Verifier:
    """Returns a verifier: a regular expression matches somewhere in the text."""
    check_pattern(pattern)

    def verify(text: str, until: Deadline | None) -> Verdict:
        return _verdict(is_found(pattern, text, until), f"{cut(pattern)!r} does not match")

    return TimedVerifier(verify)


def json_matches(schema: dict[str, Any] | bool | None = None) -> Verifier:
    """Returns a verifier: the last JSON object or array in the text follows the schema."""
    wanted = True if schema is None else schema
    check_schema(wanted)

    def verify(text: str, until: Deadline | None) -> Verdict:
        value = extract.last_json(text[-extract.LONGEST :])
        if value is None:
            return Verdict(False, 0.0, "there is no JSON object or array in it")
        wrong = mismatch(value, wanted, until)
        return _verdict(wrong is None, wrong or "")

    return TimedVerifier(verify)


def _equals(extractor: Callable[[str], str | None], wanted: str) -> Verifier:
    def verify(text: str, until: Deadline | None) -> Verdict:
        value = extractor(text)
        reason = "there is no answer in it" if value is None else f"the answer is {cut(value)}, not {wanted}"
        return _verdict(value == wanted, reason)

    return TimedVerifier(verify)


def _verdict(passed: bool, reason: str) -> Verdict:
    return Verdict(passed, float(passed), "" if passed else reason)


_BY_NAME: dict[str, Callable[[str], Verifier]] = {
    "number": number_equals,
    "choice": choice_is,
    "contains": contains,
    "regex": matches,
}
VERIFIERS = ("number:N", "choice:A", "contains:TEXT", "regex:PATTERN", "json", "json:SCHEMA")


def find_verifier(named: str | Verifier, field: str = "verify") -> Verifier:
    """Returns a verifier for a name: one of a plugin, or a built-in one with its argument (`number:72`,
    `choice:B`, `contains:Paris`, `regex:^yes`, `json`, `json:{"type": "object"}`). A function is returned as
    it is. An error is about `field`."""
    if callable(named):
        return named
    if isinstance(named, str):
        if named in OWN_VERIFIERS:
            return OWN_VERIFIERS[named]
        if named == "json":
            return json_matches()
        name, colon, argument = named.partition(":")
        if colon and name == "json":
            try:
                return json_matches(json.loads(argument))
            except (ValueError, RecursionError) as error:
                problem = f"is json:{shown(argument)}; a JSON schema is expected ({error})"
                raise GlassloopError.about(field, problem) from None
        if colon and argument and name in _BY_NAME:
            return _BY_NAME[name](argument)
    names = ", ".join((*VERIFIERS, *OWN_VERIFIERS))
    your_own = "or one of your own: @verifier in a file of --plugin (in Python: a function)"
    raise GlassloopError.about(field, f"is {shown(named)}; one of {names} is expected, {your_own}")
