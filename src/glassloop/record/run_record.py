"""The record of a run: one generation as plain data, and what follows from that data alone.

The engine fills it while tokens are generated; files, stores and views read it. `Run`, in `run.py`, is a
record with the methods that a user calls.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import takewhile
from typing import Any, Protocol, Self

from glassloop.decode.luck import fork_salt
from glassloop.decode.sampling import Sampling
from glassloop.decode.stage import Plugin
from glassloop.decode.task_kinds import WHAT_IF
from glassloop.errors import SamplingError, TraceError
from glassloop.record.messages import (
    NO_TEXT,
    Message,
    TokenDecoder,
    title_of_ids,
    title_of_messages,
    title_of_text,
)
from glassloop.record.origin import ByMasks, LeftToRight, Origin, OtherEngine
from glassloop.record.passes import PassRecord
from glassloop.record.run_parts import Beam, Drafts, Move, Past, Timings, Usage
from glassloop.record.token import Token
from glassloop.text.answer_form import AnswerForm, AnswerSpan, spans_of
from glassloop.text.stream import TextStream
from glassloop.util.check import check_count
from glassloop.util.shown import cut

BETWEEN_THOUGHTS = "\n\n"
NO_MEMORY = "kv memory"  # the stop reason of a run for whose keys and values there was no room


class NoSuchToken(TraceError):
    """The run has no token at the place that was asked about."""


class AttachedModel(TokenDecoder, Protocol):
    """What a record needs of the model that it is attached to."""

    @property
    def model_hash(self) -> str: ...


@dataclass(eq=False)
class RunRecord:
    """One generation as data. `finish_reason` is None until it has ended.

    A `.glass` file keeps every field except `error` and those of the last group.
    """

    # What the request asked for.
    model: str
    prompt_ids: list[int]
    seed: int
    context: int
    sampling: Sampling = field(default_factory=Sampling)
    salt: int = 0  # which branch of the seed's luck this is
    ops: str = ""  # the op set; for native also its instruction set
    prompt: str | None = None  # None if it was given as tokens
    messages: list[Message] | None = field(default=None, repr=False)  # the conversation that the prompt is
    id: str = field(default_factory=lambda: os.urandom(8).hex())
    sample: int = 0  # its number among the request's samples
    samples: list[Self] = field(default_factory=list, repr=False)  # all of them, this one included
    origin: Origin = field(default_factory=LeftToRight)  # what computed it, and how
    created: float = field(default_factory=time.time)  # seconds since 1970
    model_hash: str = ""  # empty until `identity` is first read
    # The files that define its stages, by the name of the stage; built-in stages have none.
    plugins: dict[str, Plugin] = field(default_factory=dict, repr=False)
    # The SHA-256 of the adapters that its tokens were drawn with, those of its past included, by name.
    adapters: dict[str, str] = field(default_factory=dict, repr=False)
    # The marks around the thoughts of the answer to a conversation; None if the model's template has none.
    form: AnswerForm | None = field(default=None, repr=False)

    # The run that it begins with, if there is one.
    parent: str | None = None  # the id of the run that this one was forked from
    fork_at: int | None = None  # how many of its parent's tokens were kept
    # Why: sampled (other luck or options), forced (a token), edited, rewound, revised (it was taken back).
    reason: str | None = None
    revised: int = 0  # how many times it was taken back so far
    past: tuple[Past, ...] = field(default=(), repr=False)

    # What the engine fills in.
    prompt_tokens: list[Token] = field(default_factory=list, repr=False)  # from the second, if asked for
    tokens: list[Token] = field(default_factory=list, repr=False)
    tail: str = ""  # text that was held back until the end: an unfinished character, a possible stop string
    finish_reason: str | None = None  # stop, length, timeout, repetition, cancelled, error
    stop_reason: str | None = None  # the token or string, the limit, the loop or the error
    error: BaseException | None = field(default=None, repr=False)
    end: Token | None = field(default=None, repr=False)  # the token that ended it, if not part of the text
    # The tokens of an edit that were not scored yet when it was interrupted: it continues with them.
    pending: list[int] = field(default_factory=list, repr=False)
    cached_tokens: int = 0
    timings: Timings = field(default_factory=Timings)
    drafts: Drafts = field(default_factory=Drafts)
    beams: list[Beam] = field(default_factory=list, repr=False)
    moves: list[Move] = field(default_factory=list, repr=False)  # to other replicas of a cluster

    # What is done with it later.
    forks: dict[int, int] = field(default_factory=dict, repr=False)  # the number of forks, by position
    # The record of a search, kept with its first path; docs/thinking.md describes it.
    search: dict[str, Any] | None = field(default=None, repr=False)

    # Objects of this process, which no file has.
    llm: AttachedModel | None = field(default=None, repr=False)
    above: Self | None = field(default=None, repr=False)  # the run that it was forked from
    children: list[Self] = field(default_factory=list, repr=False)  # those that were forked from it

    @property
    def text(self) -> str:
        return "".join([token.text for token in self.tokens]) + self.tail

    @property
    def spans(self) -> list[AnswerSpan]:
        """The parts of the text, with the places of their tokens: thoughts and the answer. The marks around
        them are in none."""
        return spans_of(self.form, [token.text for token in self.tokens], self.tail)

    @property
    def thoughts(self) -> str:
        """The text of all thoughts; empty if there are none."""
        return BETWEEN_THOUGHTS.join([span.text for span in self.spans if span.kind == "thought"])

    @property
    def answer(self) -> str:
        """The text without thoughts and the marks around them."""
        return "".join([span.text for span in self.spans if span.kind == "answer"])

    @property
    def token_ids(self) -> list[int]:
        return [token.id for token in self.tokens]

    @property
    def title(self) -> str:
        """One line for lists: the last message of the user if the prompt is a conversation, else the
        beginning of the prompt."""
        return self.known_title or f"({len(self.prompt_ids)} tokens)"

    @property
    def known_title(self) -> str | None:
        """The title, or None if the prompt has no text and the model that could decode it is not attached."""
        if self.messages is not None:
            return title_of_messages(self.messages) or NO_TEXT
        if self.prompt is not None:
            return title_of_text(self.prompt) or NO_TEXT
        return None if self.llm is None else title_of_ids(self.llm, self.prompt_ids)

    @property
    def logprob(self) -> float:
        """The log-probability of the whole answer under the model's own distribution."""
        return sum(token.raw_logprob for token in self.tokens)

    @property
    def cut_short(self) -> bool:
        """Whether the run ended, or stands, at a place that its request does not decide: its record is the
        beginning of what the same request writes elsewhere."""
        if self.finish_reason == "length":
            return self.stop_reason == NO_MEMORY
        return self.finish_reason in (None, "cancelled", "timeout", "error")

    def distinct(self, size: int) -> float | None:
        """Returns the share of distinct ones among all sequences of `size` tokens of the answer."""
        check_count("size", size, 1, 1 << 31)
        ids = self.token_ids
        grams = [tuple(ids[at : at + size]) for at in range(len(ids) - size + 1)]
        return len(set(grams)) / len(grams) if grams else None

    @property
    def usage(self) -> Usage:
        return self.origin.usage(len(self.prompt_ids), len(self.tokens), self.cached_tokens, self.context)

    @property
    def upstream(self) -> OtherEngine | None:
        """The other engine that computed the run, or None."""
        return self.origin if isinstance(self.origin, OtherEngine) else None

    @property
    def diffusion(self) -> dict[str, Any] | None:
        """The diffusion options of a run that was written by filling masks, else None."""
        return self.origin.options if isinstance(self.origin, ByMasks) else None

    @property
    def passes(self) -> list[PassRecord]:
        """The passes that filled the masks of the run; empty if it was written from left to right."""
        return self.origin.passes if isinstance(self.origin, ByMasks) else []

    def add_pass(self, record: PassRecord) -> None:
        """Adds a pass to a run that is being written by filling masks."""
        assert isinstance(self.origin, ByMasks)
        self.origin.passes.append(record)

    @property
    def identity(self) -> str:
        """The hash of the model's files; empty if it is not known."""
        if not self.model_hash and self.llm is not None:
            self.model_hash = self.llm.model_hash
        return self.model_hash

    def check_computable(self) -> None:
        """Raises if another engine computed the run: nothing here can compute it again."""
        if not self.origin.is_local:
            raise TraceError.about(
                "run",
                f"{self.id} was computed by {self.origin.described}, with the model {self.model}; it cannot"
                " be computed again here, only shown (with --upstream it can be continued there)",
            )

    def drawn_with(self, at: int) -> Past:
        """Returns the options, the seed and the salt that the token at this place was drawn with."""
        place = bisect_right(self.past, at, key=lambda past: past.until)  # they ascend
        if place < len(self.past):
            return self.past[place]
        return Past(len(self.tokens) + 1, self.id, self.sampling, self.seed, self.salt, self.plugins)

    def options_at(self, at: int) -> Past:
        """Returns the options, the seed and the salt of a branch that leaves this run at a place.

        What decides a choice (temperature, penalties, a grammar, luck, …) is as it was when the token at this
        place was drawn, perhaps by an ancestor. When the text ends and what is recorded is as in this run.
        """
        drawn = self.drawn_with(at)
        limits = {name: getattr(self.sampling, name) for name in _NOT_OF_A_CHOICE}
        try:
            sampling = replace(drawn.sampling, **limits, seed=drawn.seed)
        except SamplingError:  # a limit of this run does not fit the options of its ancestor
            sampling = replace(drawn.sampling, seed=drawn.seed)
        return replace(drawn, sampling=sampling)

    # ── runs that begin with this one ──────────────────────────────────────────────────────────────────────

    def beginning(self, at: int, reason: str, **changes: Any) -> Self:
        """Returns a new run that begins with the first `at` tokens of this one. It inherits the fields in
        `INHERITED`; `changes` replace some of them, and all other fields are those of a new run."""
        kept = {"tokens": self.tokens[:at], "prompt_tokens": list(self.prompt_tokens)}
        run = type(self)(**{name: getattr(self, name) for name in INHERITED} | kept | changes)
        run.descend(self, at, reason)
        used = {run.sampling.adapter, *[past.sampling.adapter for past in run.past]}
        hashes = self.adapters | run.adapters
        run.adapters = {name: hash for name, hash in hashes.items() if name in used}
        return run

    def descend(self, parent: Self, at: int, reason: str) -> None:
        """Makes this run a fork of another, whose first `at` tokens it begins with."""
        kept = tuple(past for past in parent.past if past.until < at)
        last = parent.drawn_with(at - 1) if at else None
        self.past = kept if last is None else (*kept, replace(last, until=at))
        self.parent, self.fork_at, self.reason, self.above = parent.id, at, reason, parent
        parent.children.append(self)

    def rewind(self, at: int) -> Self:
        """Returns the first `at` tokens as a new run. Nothing is computed, and this run stays as it is. The
        new run can be continued as if it had been interrupted there: with the rest of a text that was forced,
        and with the same luck."""
        at = check_place(at, len(self.tokens))
        drawn = self.options_at(at)
        after = self.tokens[at:] if self.end is None else [*self.tokens[at:], self.end]
        forced = list(takewhile(lambda token: token.source == "forced", after))
        rest = self.pending if len(forced) == len(after) else []
        run = self.beginning(
            at,
            "rewound",
            sampling=drawn.sampling,
            seed=drawn.seed,
            salt=drawn.salt,
            plugins=dict(drawn.plugins),
            prompt_tokens=list(self.prompt_tokens) if drawn.sampling.adapter == self.sampling.adapter else [],
            finish_reason="cancelled",
            stop_reason="rewound",
            pending=[*[token.id for token in forced], *rest],
        )
        run.tail = text_held_back(run.tokens)
        run.samples = [run]
        return run

    def revise(self, at: int, salt: int) -> Self:
        """Returns a fork with the first `at` tokens that continues in the place of this run, which was taken
        back, with other luck."""
        return self.beginning(
            at,
            "revised",
            salt=salt,
            samples=self.samples,
            revised=self.revised + 1,
            moves=list(self.moves),
            cached_tokens=self.cached_tokens,
            timings=replace(self.timings),
        )

    @property
    def drafts_taken_back(self) -> list[Self]:
        """The runs that were taken back until this one was left, the last one first."""
        runs, run = list[Self](), self
        while run.reason == "revised" and run.above is not None:
            run = run.above
            runs.append(run)
        return runs

    def count_fork(self, at: int, salt: int) -> None:
        """Counts a fork at a place that the record does not know of, if it has luck of its own."""
        position, drawn = len(self.prompt_ids) + at, self.drawn_with(at).salt
        counted = self.forks.get(position, 0)
        for number in range(counted + 1, counted + _FORKS_AHEAD):
            if fork_salt(drawn, position, number) == salt:
                self.forks[position] = number

    # ── other forms ────────────────────────────────────────────────────────────────────────────────────────

    def to_dict(self) -> dict[str, Any]:
        """Returns the run in its JSON form; docs/trace-format.md describes it."""
        speed = self.timings.tokens_per_second(len(self.tokens))
        return {name: getattr(self, name) for name in _IN_JSON} | {
            "model_hash": self.model_hash or None,
            "usage": self.usage.to_dict(),
            "timings": asdict(self.timings) | {"tokens_per_second": speed},
            "drafts": asdict(self.drafts),
            "sampling": self.sampling.to_dict(),
            "moves": [asdict(move) for move in self.moves],
            **self.origin.to_dict(),
            "plugins": {stage: plugin._asdict() for stage, plugin in self.plugins.items()},
            **({} if self.form is None else {"spans": [span._asdict() for span in self.spans]}),
            "prompt_tokens": [token.to_dict() for token in self.prompt_tokens],
            "tokens": [token.to_dict() for token in self.tokens],
            "end": None if self.end is None else self.end.to_dict(),
        }

    def to_records(self) -> list[dict[str, Any]]:
        """Returns one plain dict per generated token, as `pandas.DataFrame` takes them."""
        first = len(self.prompt_ids)
        return [
            {"run": self.id, "sample": self.sample, "step": step, "position": first + step} | token.to_row()
            for step, token in enumerate(self.tokens)
        ]

    def same_record(self, other: RunRecord) -> bool:
        """Returns whether another run is a copy of this one, perhaps under another id: it has the same
        prompt, options and tokens."""
        return all(getattr(self, name) == getattr(other, name) for name in _SAME_IN_COPIES)

    def __repr__(self) -> str:
        ended = self.finish_reason or "running"
        return f"Run({self.id}, {len(self.tokens)} tokens, {ended}: {cut(self.text, 60)!r})"


def check_place(at: object, tokens: int) -> int:
    """Returns a place of a run at which it can be forked or rewound: a number of its tokens."""
    return check_count("at", at, 0, tokens, "a number of tokens", TraceError)


def text_held_back(tokens: Sequence[Token]) -> str:
    """Returns the text of tokens that they do not show: a part of a character, a possible stop string, or one
    that ended the text. It belongs to a text that does not end by it."""
    characters = TextStream()
    whole = characters.feed(b"".join([token.bytes for token in tokens])) + characters.flush()
    return whole[sum([len(token.text) for token in tokens]) :]


# The fields that a run has from the one that it begins with. `beginning` sets those of the fork itself
# (`parent`, `past`, …) and the tokens; tests/record/test_beginnings.py knows every other field by name.
INHERITED = (
    *("model", "prompt_ids", "seed", "context", "sampling", "salt", "ops", "prompt", "messages", "sample"),
    *("origin", "model_hash", "plugins", "adapters", "form", "llm"),
)
_FORKS_AHEAD = 256  # how many numbers of forks are tried for one that is found in a store
# The options that decide when a text ends, how many there are or what is recorded, and never a single choice.
_SEARCHES = ("beam_width", "length_penalty", "early_stopping", "diffusion")  # make another kind of task
_NOT_OF_A_CHOICE = tuple(name for name in WHAT_IF.refused if name not in _SEARCHES)
# The fields and properties that `to_dict` copies.
_IN_JSON = (
    *("id", "created", "model", "ops", "prompt", "prompt_ids", "messages", "text", "token_ids"),
    "finish_reason",
    *("stop_reason", "seed", "salt", "parent", "fork_at", "reason", "adapters"),
)
# The fields by which a copy of a run is known. Names, times and links may be others.
_SAME_IN_COPIES = (
    *("prompt_ids", "messages", "sampling", "seed", "salt", "tokens", "tail", "finish_reason"),
)
