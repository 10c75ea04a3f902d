"""The parts of an answer: the thoughts that a model writes before it, the answer itself, and marks between.

`AnswerForm` has the marks of one model's template; `answer_marks.py` finds them. An `AnswerReader` takes the
text of an answer as it comes and says which part each piece belongs to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

Kind = Literal["thought", "answer"]


class AnswerForm(NamedTuple):
    """The marks around the thoughts and the answer. White space around marks means nothing."""

    begin: str = ""  # before a thought; empty: the template has none
    end: str = ""  # after a thought
    link: str = ""  # what the template writes between the end of a thought and the answer
    opening: str = ""  # before an answer, with or without a thought
    closing: str = ""  # after an answer
    opened: bool = False  # whether the prompt has begun a thought, with which the text begins

    def opened_by(self, prompt: str, continued: str = "") -> AnswerForm:
        """Returns the form of an answer to a prompt that ends with this text, whose last message `continued`
        is one that the answer continues."""
        begin, end = self.begin.strip(), self.end.strip()
        in_thought = continued.rfind(begin) > continued.rfind(end)
        return self._replace(opened=bool(begin) and (in_thought or prompt.rstrip().endswith(begin)))

    @property
    def starts(self) -> tuple[tuple[str, Kind], ...]:
        """The texts that a part can begin with, the longest first, with the kind of part."""
        link, opening, begin = self.link.strip(), self.opening.strip(), self.begin.strip()
        between = link.removesuffix(opening).strip() if opening else ""
        starts: dict[str, Kind] = {link: "answer", opening: "answer"}
        if begin:
            starts |= {between + begin: "thought", begin: "thought"}
        return tuple(
            sorted(((mark, kind) for mark, kind in starts.items() if mark), key=lambda it: -len(it[0]))
        )


class Part(NamedTuple):
    """A piece of a text that belongs to one part of an answer."""

    kind: Kind
    text: str
    at: int  # the place of its first character in the whole text
    begins: bool = False  # whether a thought begins with it


class AnswerReader:
    """Splits the text of one answer into its parts. Marks, and white space beside them, are in none."""

    def __init__(self, form: AnswerForm | None) -> None:
        self._form = form or AnswerForm()
        self._starts = self._form.starts
        self._held, self._at = "", 0  # text that is not decided yet, and its place
        self._state: Literal["start", "thought", "after", "answer", "closed"] = (
            "thought" if self._form.opened else "start" if self._starts else "answer"
        )
        self._fresh = True  # whether the thought has no text yet

    @property
    def thinking(self) -> bool:
        return self._state == "thought"

    def feed(self, text: str) -> list[Part]:
        """Returns the pieces that have become certain with this text."""
        if self._state == "answer" and not self._form.closing:
            part = Part("answer", text, self._at)
            self._at += len(text)
            return [part] if text else []
        self._held += text
        return [*self._parts()]

    def flush(self) -> list[Part]:
        """Returns the pieces that were held back, at the end of the text."""
        parts = list[Part]()
        if self._held:
            if self._state == "thought":
                parts = [*self._take("thought", len(self._held.rstrip()))]
            elif self._state != "after" or self._held.strip():
                parts = [*self._take("answer", len(self._held))]
        self._held = ""
        return parts

    def _parts(self) -> Iterator[Part]:
        before = None
        while self._held and before != (self._state, len(self._held)):
            before = self._state, len(self._held)
            if self._state == "thought":
                yield from self._thought()
            elif self._state == "answer":
                yield from self._answer()
            elif self._state == "closed":
                yield from self._take("answer", len(self._held))
            else:
                self._start()

    def _start(self) -> None:
        """Decides what the next part is; holds the text while that is open."""
        blank = len(self._held) - len(self._held.lstrip())
        text = self._held[blank:]
        for mark, kind in self._starts:
            if text.startswith(mark):
                self._drop(blank + len(mark))
                self._fresh = True
                self._state = "thought" if kind == "thought" else "answer"
                return
            if mark.startswith(text):
                return
        if self._state == "after":
            self._drop(blank)
        self._state = "answer"

    def _thought(self) -> Iterator[Part]:
        if self._fresh:
            self._drop(len(self._held) - len(self._held.lstrip()))
            if not self._held:
                return
        end = self._form.end.strip()
        place = self._held.find(end)
        if place < 0:
            ready = self._held[: len(self._held) - begun(self._held, end)].rstrip()
            yield from self._take("thought", len(ready))
            return
        yield from self._take("thought", len(self._held[:place].rstrip()))
        self._drop(self._held.find(end) + len(end))
        self._state = "after"

    def _answer(self) -> Iterator[Part]:
        closing = self._form.closing
        place = self._held.find(closing) if closing else -1
        if place >= 0:
            yield from self._take("answer", place)
            self._drop(len(closing))
            self._state = "closed"
        else:
            yield from self._take("answer", len(self._held) - begun(self._held, closing))

    def _take(self, kind: Kind, size: int) -> Iterator[Part]:
        if size:
            yield Part(kind, self._held[:size], self._at, kind == "thought" and self._fresh)
            self._fresh = False
            self._drop(size)

    def _drop(self, size: int) -> None:
        self._held, self._at = self._held[size:], self._at + size


class AnswerSpan(NamedTuple):
    """A part of an answer as a whole: its text, and the tokens [first, last) that it has text of."""

    kind: Kind
    text: str
    first: int
    last: int


def spans_of(form: AnswerForm | None, texts: Iterable[str], tail: str = "") -> list[AnswerSpan]:
    """Returns the parts of an answer whose tokens have these texts; `tail` follows the last one."""
    reader = AnswerReader(form)
    parts, ends, at = list[Part](), list[int](), 0
    for text in texts:
        at += len(text)
        ends.append(at)
        parts += reader.feed(text)
    parts += [*reader.feed(tail), *reader.flush()]
    spans = list[AnswerSpan]()
    first = 0
    for kind, text, begin, begins in parts:
        joins = spans and spans[-1].kind == kind and not begins
        while first < len(ends) and ends[first] <= begin:
            first += 1
        last = first
        while last < len(ends) and (ends[last - 1] if last else 0) < begin + len(text):
            last += 1
        if joins:
            spans[-1] = spans[-1]._replace(text=spans[-1].text + text, last=max(last, spans[-1].last))
        else:
            spans.append(AnswerSpan(kind, text, first, last))
    return spans


def begun(text: str, mark: str) -> int:
    """Returns how many characters at the end of a text may be the beginning of a mark."""
    return next(
        (size for size in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:size])), 0
    )
