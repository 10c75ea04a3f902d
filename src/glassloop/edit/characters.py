"""Characters as people see them: where a text may be cut without taking one apart.

A letter with its accents, an emoji made of several code points, a flag or a Hangul syllable is one character.
This is the core of Unicode's grapheme clusters (UAX #29), written with the properties that Python has.
"""

from __future__ import annotations

import unicodedata

_JOINER = "\u200d"
_NON_JOINER = "\u200c"
_MODIFIERS = range(0x1F3FB, 0x1F400)  # skin tones
_TAGS = range(0xE0020, 0xE0080)  # of regional flags
_FLAGS = range(0x1F1E6, 0x1F200)  # two of these are one flag
_LEADING = range(0x1100, 0x1160)  # Hangul jamo: consonant, vowel, final consonant
_VOWELS = range(0x1160, 0x11A8)
_FINALS = range(0x11A8, 0x1200)
_SYLLABLES = range(0xAC00, 0xD7A4)


def is_border(text: str, at: int) -> bool:
    """Returns whether a text may be cut before the character `at` without taking apart what people see."""
    if at <= 0 or at >= len(text):
        return True
    before, after = text[at - 1], text[at]
    if before == "\r" and after == "\n":
        return False
    if before in "\r\n" or after in "\r\n":
        return True
    if _extends(after):
        return False
    if before == _JOINER and _is_picture(after):
        return False
    if ord(before) in _FLAGS and ord(after) in _FLAGS:
        return _flags_before(text, at) % 2 == 0
    return not _is_syllable(before, after)


def widen(text: str, start: int, end: int) -> tuple[int, int]:
    """Returns the smallest range of characters around this one that cuts none apart."""
    while not is_border(text, start):
        start -= 1
    while not is_border(text, end):
        end += 1
    return start, end


def _extends(character: str) -> bool:
    """Returns whether a code point belongs to the one before it: accents, joiners, modifiers."""
    if character < "\u0300":  # the usual case, quickly
        return False
    code = ord(character)
    return (
        character in (_JOINER, _NON_JOINER)
        or code in _MODIFIERS
        or code in _TAGS
        or unicodedata.category(character) in ("Mn", "Me", "Mc")
    )


def _is_picture(character: str) -> bool:
    return unicodedata.category(character) in ("So", "Sk") or ord(character) > 0x1F000


def _flags_before(text: str, at: int) -> int:
    count = 0
    while count < at and ord(text[at - 1 - count]) in _FLAGS:
        count += 1
    return count


def _is_syllable(before: str, after: str) -> bool:
    """Returns whether two code points are parts of one Hangul syllable."""
    one, two = ord(before), ord(after)
    open_syllable = one in _SYLLABLES and (one - _SYLLABLES.start) % 28 == 0
    if one in _LEADING:
        return two in _LEADING or two in _VOWELS or two in _SYLLABLES
    if one in _VOWELS or open_syllable:
        return two in _VOWELS or two in _FINALS
    return (one in _FINALS or one in _SYLLABLES) and two in _FINALS
