"""Counts the sentences and words of a text, by rules of our own that need no library; docs/evaluation.md has
them."""

from __future__ import annotations

import re

# Words whose full stop does not end a sentence.
_ABBREVIATIONS = frozenset(
    re.findall(
        r"\S+",
        """
        mr mrs ms dr prof sr jr st vs etc inc ltd co corp gen col sgt capt lt rev hon no fig al approx dept
        est jan feb mar apr jun jul aug sep sept oct nov dec mon tue wed thu fri sat sun e.g i.e a.m p.m u.s
        u.k
        """,
    )
)
_END = re.compile(r"[.!?…]+[\"'”’)\]*_]*(?=\s|$)|[。！？؟।]+")
_LIST_NUMBER = re.compile(r"(?:^|\s)(?:\d{1,3}|[A-Za-z])$")
_CONTRACTION = re.compile(r"(?<=\w)(n't|'(?:s|m|d|ll|re|ve))$", re.IGNORECASE)


def split_sentences(text: str) -> list[str]:
    """Returns the sentences of a text.

    A sentence ends after `.`, `!`, `?` or `…` that white space follows, unless the next word begins with a
    small letter, or the stop belongs to an abbreviation, an initial or the number of a list; and at an empty
    line.
    """
    sentences = []
    for block in re.split(r"\n\s*\n", text):
        start = 0
        for match in _END.finditer(block):
            if not _goes_on(block[start : match.start()], match[0], block[match.end() :]):
                sentences.append(block[start : match.end()])
                start = match.end()
        sentences.append(block[start:])
    return [sentence.strip() for sentence in sentences if re.search(r"\w", sentence)]


def _goes_on(before: str, end: str, after: str) -> bool:
    """Returns whether a sentence goes on after what looks like its end."""
    following = after.lstrip()[:1]
    if following.islower():
        return True
    if end != ".":
        return False
    word = before.rsplit(None, 1)[-1].lstrip("(\"'*").lower() if before.split() else ""
    if word in _ABBREVIATIONS:
        return True
    return bool(_LIST_NUMBER.search(before[-8:])) and (len(before.strip()) <= 3 or before[-1:].isupper())


def count_words(text: str) -> int:
    """Returns the number of runs of letters, digits and underscores."""
    return len(re.findall(r"\w+", text))


def words(text: str) -> list[str]:
    """Returns the words of a text without punctuation around them, contractions in two ("DO", "N'T")."""
    words = []
    for part in text.split():
        word = part.strip(".,;:!?…\"'“”‘’()[]{}<>*_`#~|")
        if contraction := _CONTRACTION.search(word):
            words += [word[: contraction.start()], contraction[0]]
        else:
            words += [each for each in re.split(r"--+|[—/]", word) if each]
    return words
