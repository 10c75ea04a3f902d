"""Spans of a text: its tokens, where it may be cut, and the text with some of its spans replaced."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from glassloop.edit.characters import is_border
from glassloop.edit.proposal import Place, Proposal
from glassloop.edit.work import NEAR, EditWork
from glassloop.errors import GlassloopError, TextError
from glassloop.record.run import Run

if TYPE_CHECKING:
    from glassloop.engine.local import LocalModel

Characters = tuple[int, int]  # the first character of a span, and the one after its last


def prompt_and_text(llm: LocalModel, before: str, text: str) -> tuple[list[int], list[int]]:
    """Returns the token ids of the text that is fixed and of the text that continues it. At least one token
    must be fixed, since nothing is known of the first token of all: BOS if the model has it, or else the
    first token of the text."""
    tokenizer = llm.tokenizer
    fixed = tokenizer.encode(before, add_special=False) if before else []
    if tokenizer.add_bos and tokenizer.bos_id is not None:
        fixed = [tokenizer.bos_id, *fixed]
    ids = tokenizer.encode_inside(text)
    if not fixed:
        fixed, ids = ids[:1], ids[1:]
    if not fixed:
        raise TextError.about("text", "is empty; at least one token is expected")
    return fixed, ids


def fixed_prompt(llm: LocalModel, before: str) -> list[int]:
    """Returns the token ids of the text before a span; for an empty one, BOS."""
    if before:
        return prompt_and_text(llm, before, "")[0]
    if llm.tokenizer.bos_id is None:
        raise TextError.about("before", f"is empty, and {llm.name} has no token that begins a text")
    return [llm.tokenizer.bos_id]


def borders(work: EditWork, run: Run) -> list[bool]:
    """Returns for each token of a run, and for its end, whether the text may be cut before it without taking
    apart a character that people see."""
    pieces = [work.llm.tokenizer.token_bytes(token) for token in run.token_ids]
    before = [work.llm.tokenizer.token_bytes(token) for token in run.prompt_ids[-NEAR:]]
    head = b"".join(before)
    data = head + b"".join(pieces)
    text = data.decode("utf-8", "replace")
    # The character that each byte begins; a byte inside a character begins none.
    begins = dict[int, int]()
    at = 0
    for place, character in enumerate(text):
        begins[at] = place
        at += len(character.encode()) if character != "\ufffd" else _length_of_bad(data, at)
    begins[at] = len(text)
    ends = accumulate(map(len, pieces), initial=len(head))
    return [end in begins and is_border(text, begins[end]) for end in ends]


def _length_of_bad(data: bytes, at: int) -> int:
    """Returns how many bytes one U+FFFD stands for: itself if it was in the text, or bytes that are none."""
    if data[at : at + 3] == b"\xef\xbf\xbd":
        return 3
    for length in (3, 2, 1):
        try:
            data[at : at + length].decode()
        except UnicodeDecodeError as error:
            if error.start == 0 and error.end >= length:
                return length
    return 1


def whole_characters(cuts: Sequence[bool], start: int, end: int) -> tuple[int, int]:
    """Returns the span of tokens, widened to where the text may be cut (`borders`)."""
    while start > 0 and not cuts[start]:
        start -= 1
    while end < len(cuts) - 1 and not cuts[end]:
        end += 1
    return start, end


def check_span(text: str, span: object, name: str = "span") -> Characters:
    """Returns a span of characters, checked."""
    good = isinstance(span, Sequence) and len(span) == 2 and all(type(each) is int for each in span)
    if not good or not 0 <= span[0] <= span[1] <= len(text):  # type: ignore[index]
        problem = f"is {span!r:.60}; two numbers of characters from 0 to {len(text)} are expected"
        raise GlassloopError.about(name, problem)
    return span[0], span[1]  # type: ignore[index]


def apart(places: Sequence[Place], window: int) -> list[Place]:
    """Returns those places, in order of preference, that have at least `window` tokens between them."""
    kept: list[Place] = []
    for place in places:
        if all(place.start >= each.end + window or each.start >= place.end + window for each in kept):
            kept.append(place)
    return kept


def apply(work: EditWork, ids: Sequence[int], accepted: Sequence[Proposal]) -> Run:
    """Returns the text with accepted proposals, as a branch of it; `ids` are its tokens before. There is at
    least one, and they are as far apart as they were scored: the branch of the first one is continued with
    the others and with the rest of the text."""
    first, *others = sorted(accepted, key=lambda each: each.start)
    assert first.run is not None
    rest, at = list[int](), first.end + first.followed
    for each in others:
        rest += [*ids[at : each.start], *each.ids]
        at = each.end
    rest += ids[at:]
    if rest:
        work.complete([work.extend(first.run, rest)])
    return first.run
