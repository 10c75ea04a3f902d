"""A conversation with a model: a tree of questions and answers, in which nothing is lost.

A turn is a question and one answer to it. A fork or a rewind adds a turn beside the old one. The model sees
the current turn and those above it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from glassloop.cli.naming import forms, number_in, place_of, token_named
from glassloop.decode.sampling import Sampling
from glassloop.errors import GlassloopError, TextError
from glassloop.record.run_name import run_id
from glassloop.record.worst import most_surprising

if TYPE_CHECKING:
    from glassloop.cli.loading import AnyEngine
    from glassloop.engine.request import Request
    from glassloop.record.run import Run


@dataclass(eq=False)
class Turn:
    """A question and one answer to it."""

    question: str
    run: Run
    above: Turn | None  # the turn before it
    below: list[Turn] = field(default_factory=list)

    @property
    def path(self) -> list[Turn]:
        """The turns from the first one to this one."""
        return [*(self.above.path if self.above else []), self]


class Conversation:
    def __init__(self, llm: AnyEngine, sampling: Sampling, system: str | None = None) -> None:
        if not llm.tokenizer.can_chat:
            raise TextError(
                f"{llm.name} has no chat template, so it cannot chat; 'glassloop generate' continues a text"
            )
        if llm.tokenizer.chat_template is not None:
            llm.tokenizer.chat_template.warm()
        self.llm = llm
        self.system = system
        self.roots: list[Turn] = []
        self.at: Turn | None = None
        self.sampling = sampling
        self.check(sampling)

    @staticmethod
    def check(sampling: Sampling) -> Sampling:
        if sampling.n > 1:
            raise GlassloopError(
                f"samples is {sampling.n}; 1 is expected in a chat, where /fork makes another answer"
            )
        return sampling

    def __iter__(self) -> Iterator[Turn]:
        """Yields each turn before those below it."""
        waiting = self.roots[::-1]
        while waiting:
            turn = waiting.pop()
            yield turn
            waiting.extend(reversed(turn.below))

    # ── adding turns ───────────────────────────────────────────────────────────────────────────────────────

    def ask(self, question: str) -> Request:
        """Returns the request for an answer. When it has ended, its run is given to `add`."""
        messages = [*self.messages, {"role": "user", "content": question}]
        return self.llm.prepare(self._prompt(question), self.sampling, messages=messages)

    def fork(self, place: int, token: int | None = None, text: str | None = None) -> Request:
        return self.llm.prepare_fork(self.last.run, place, token=token, text=text, sampling=self.sampling)

    def add(self, question: str, run: Run, beside: Turn | None = None) -> Turn:
        """Adds a turn with this answer, after the current one or beside another, and moves to it."""
        above = self.at if beside is None else beside.above
        turn = Turn(question, run, above)
        (self.roots if above is None else above.below).append(turn)
        self.at = turn
        return turn

    def rewind(self, place: int) -> Turn:
        """Adds the last answer up to this token as a new turn."""
        return self.add(self.last.question, self.last.run.rewind(place), beside=self.last)

    def find(self, name: str) -> Turn:
        """Returns a turn of the tree; `name` is the beginning of its run's id."""
        turns = [turn for turn in self if turn.run.id.startswith(run_id(name))] if run_id(name) else []
        if len(turns) != 1:
            many = "the ids of several answers begin" if turns else "the id of no answer begins"
            raise GlassloopError(f"{many} with {name!r}; /tree shows the ids")
        return turns[0]

    def go(self, name: str) -> Turn:
        """Makes another turn the current one; `name` is the beginning of its run's id."""
        self.at = self.find(name)
        return self.at

    # ── looking back ───────────────────────────────────────────────────────────────────────────────────────

    @property
    def last(self) -> Turn:
        if self.at is None:
            raise GlassloopError("there is no answer yet; ask something first")
        return self.at

    def place(self, name: str | None) -> int:
        """Returns the place of a token in the last answer. `name` is its number or its text; None stands for
        the most surprising token."""
        tokens = self.last.run.tokens
        if not tokens:
            raise GlassloopError("the last answer has no tokens")
        if name is None:
            return most_surprising(tokens)[0]
        if (number := number_in(name)) is not None:
            place = number + len(tokens) if number < 0 else number
            if not 0 <= place < len(tokens):
                raise GlassloopError(f"n is {name}; a token from 0 to {len(tokens) - 1} is expected")
            return place
        named_place = place_of(name, [token.piece for token in tokens])
        if named_place is None:
            raise GlassloopError(f"no token of the last answer is {name!r}; /tokens shows them")
        return named_place

    def named_token(self, place: int, name: str) -> dict[str, Any]:
        """Returns what a fork continues with, as arguments of `fork`: a token if the text is one, else the
        text. Without quotes, the text gets a space in front if the old token has one."""
        old = self.last.run.tokens[place].piece
        token = token_named(self.llm.tokenizer, name, old)
        return {"text": forms(name, old)[0]} if token is None else {"token": token}

    @property
    def messages(self) -> list[dict[str, str]]:
        messages = [] if self.system is None else [{"role": "system", "content": self.system}]
        for turn in self.at.path if self.at else []:
            messages.append({"role": "user", "content": turn.question})
            messages.append({"role": "assistant", "content": turn.run.text})
        return messages

    def _prompt(self, question: str) -> list[int]:
        """Returns the conversation as token ids. Earlier answers keep the tokens that the model chose, even
        where the tokenizer would split the text differently, so the prefix cache has all of them."""
        encode, messages = self.llm.tokenizer.encode_chat, self.messages
        whole = encode([*messages, {"role": "user", "content": question}])
        if self.at is None or self.llm.tokenizer.chat_template is None:
            return whole
        answered = encode(messages, continue_final=True)
        if whole[: len(answered)] != answered:  # the template changes answers that are not the last
            return whole
        return [*self.at.run.prompt_ids, *self.at.run.token_ids, *whole[len(answered) :]]
