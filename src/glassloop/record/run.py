"""A run: one generation with everything that is known about it, and what can be asked of it.

Explaining, forking and replaying need the model: they call the `LLM` that made the run. A run that was read
from a file has none until it is attached to one.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import takewhile
from os import PathLike
from typing import TYPE_CHECKING, Any, Protocol

from glassloop.decode.luck import fork_salt
from glassloop.decode.sampling import Sampling
from glassloop.decode.task_kinds import WHAT_IF
from glassloop.errors import SamplingError, TraceError
from glassloop.record.messages import NO_TEXT, Message, title_of_ids, title_of_messages, title_of_text
from glassloop.record.passes import PassRecord
from glassloop.record.token import Token
from glassloop.text.stream import TextStream
from glassloop.util.check import check_count, check_path
from glassloop.util.shown import cut, shown

if TYPE_CHECKING:
    from anywidget import AnyWidget

    from glassloop.decode.explain import Explanation
    from glassloop.decode.stage import Plugin
    from glassloop.record.run_tree import RunTree
    from glassloop.record.verdict import ReplayVerdict
    from glassloop.record.views.page import Shown


NO_MEMORY = "kv memory"  # the stop reason of a run for whose keys and values there was no room


class NoSuchToken(TraceError):
    """The run has no token at the place that was asked about."""


class Maker(Protocol):
    """What a run needs of an `LLM`: the one that made it, or another with the same model."""

    @property
    def model_hash(self) -> str: ...

    def decode(self, token_ids: Sequence[int]) -> str: ...

    def explain(self, run: Run, at: int, **overrides: Any) -> Explanation: ...

    def fork(self, run: Run, at: int, **options: Any) -> Run: ...

    def replay(self, run: Run, *, first: int = 0, strict: bool = True) -> ReplayVerdict: ...


@dataclass(frozen=True)
class Usage:
    """How many tokens a run took."""

    prompt_tokens: int | None  # this and all others are None if another engine did not tell it
    completion_tokens: int | None
    cached_tokens: int | None  # of the prompt: their keys and values were in the cache already
    context_left: int | None

    @property
    def total_tokens(self) -> int | None:
        if self.prompt_tokens is None or self.completion_tokens is None:
            return None
        return self.prompt_tokens + self.completion_tokens

    def to_dict(self) -> dict[str, int | None]:
        return asdict(self) | {"total_tokens": self.total_tokens}


@dataclass
class Timings:
    """How long a run took, in seconds. Each token has its own time too."""

    queue: float = 0.0  # until the first token of the prompt was computed
    prefill: float = 0.0  # from there until the first token was chosen
    decode: float = 0.0  # from there until the last one
    preempted: int = 0  # how often the run was preempted and resumed

    def tokens_per_second(self, completion_tokens: int) -> float | None:
        """Returns the speed of decoding alone; the first token belongs to the prefill."""
        return (completion_tokens - 1) / self.decode if completion_tokens > 1 and self.decode > 0 else None


@dataclass
class Drafts:
    """What speculative decoding brought: drafts proposed and accepted."""

    proposed: int = 0
    accepted: int = 0
    seconds: float = 0.0  # spent on proposing

    @property
    def rejected(self) -> int:
        return self.proposed - self.accepted

    @property
    def acceptance(self) -> float | None:
        """The share of the proposals that was accepted."""
        return self.accepted / self.proposed if self.proposed else None


@dataclass
class Beam:
    """A node of the tree that a beam search built."""

    number: int
    parent: int | None  # the number of the node before it
    id: int  # the token
    logprob: float  # of all tokens up to here, after the stages
    fate: str  # live (others continue it), pruned, finished, chosen


@dataclass(frozen=True)
class Move:
    """A change of the machine that computes a run. It changes no token."""

    at: int  # how many tokens the run had
    source: str  # the replica that had computed it
    target: str
    reason: str  # died, stalled or drained


@dataclass(frozen=True)
class Upstream:
    """The other engine that computed a run, and what it told. Its tokens have the numbers that it gave; all
    others are unknown: NaN, or 0 for a rank. Their ids are names that this program made from their bytes."""

    url: str  # of its API, without a key
    server: str  # the kind of server, as far as it is known: vllm, llamacpp, …
    endpoint: str  # chat or completions
    logprobs: bool = True  # whether it gives tokens; without, an entry is a part of the text as it came
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    fingerprint: str | None = None  # its own name for what computed the run

    @property
    def described(self) -> str:
        """The server in a few words."""
        return f"another engine, {f'{self.server} ' if self.server else ''}at {self.url}"


@dataclass(frozen=True)
class Past:
    """How the tokens that a fork took over from its parent were drawn."""

    until: int  # the position after the last of these tokens
    run: str  # the id of the run that drew them
    sampling: Sampling
    seed: int
    salt: int
    plugins: Mapping[str, Plugin] = field(default_factory=dict)  # as those of a run


@dataclass(eq=False)
class Run:
    """One generation. It is filled while tokens are generated; `finish_reason` is None until it has ended."""

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
    samples: list[Run] = field(default_factory=list, repr=False)  # all of them, this one included
    parent: str | None = None  # the id of the run that this one was forked from
    fork_at: int | None = None  # how many of its parent's tokens were kept
    # Why: sampled (other luck or options), forced (a token), edited, rewound, revised (it was taken back).
    reason: str | None = None
    revised: int = 0  # how many times it was taken back so far
    past: tuple[Past, ...] = field(default=(), repr=False)
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
    forks: dict[int, int] = field(
        default_factory=dict, repr=False
    )  # position: how many forks were made there
    # The record of a search, kept with its first path; docs/thinking.md describes it.
    search: dict[str, Any] | None = field(default=None, repr=False)
    moves: list[Move] = field(default_factory=list, repr=False)  # to other replicas of a cluster
    upstream: Upstream | None = None  # the other engine that computed it
    diffusion: dict[str, Any] | None = field(default=None, repr=False)  # the options, if masks were filled
    passes: list[PassRecord] = field(default_factory=list, repr=False)  # in which they were
    created: float = field(default_factory=time.time)  # seconds since 1970
    model_hash: str = ""  # empty until `identity` is first read
    # The files that define its stages, by the name of the stage; built-in stages have none.
    plugins: dict[str, Plugin] = field(default_factory=dict, repr=False)
    # The SHA-256 of the adapters that its tokens were drawn with, those of its past included, by name.
    adapters: dict[str, str] = field(default_factory=dict, repr=False)
    # Objects in this process; not part of the record.
    llm: Maker | None = field(default=None, repr=False)
    above: Run | None = field(default=None, repr=False)  # the run that it was forked from
    children: list[Run] = field(default_factory=list, repr=False)  # those that were forked from it

    @property
    def text(self) -> str:
        return "".join([token.text for token in self.tokens]) + self.tail

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
        prompt, made = len(self.prompt_ids), len(self.tokens)
        if (told := self.upstream) is not None:
            known = made if told.logprobs and told.completion_tokens is None else told.completion_tokens
            left = None
            if self.context and told.prompt_tokens is not None and known is not None:
                left = max(0, self.context - told.prompt_tokens - known)
            return Usage(told.prompt_tokens, known, told.cached_tokens, left)
        return Usage(prompt, made, self.cached_tokens, self.context - prompt - made)

    @property
    def identity(self) -> str:
        """The hash of the model's files; empty if it is not known."""
        if not self.model_hash and self.llm is not None:
            self.model_hash = self.llm.model_hash
        return self.model_hash

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
        own = {name: getattr(self.sampling, name) for name in _NOT_OF_A_CHOICE}
        try:
            sampling = replace(drawn.sampling, **own, seed=drawn.seed)
        except SamplingError:  # a limit of this run does not fit the options of its ancestor
            sampling = replace(drawn.sampling, seed=drawn.seed)
        return replace(drawn, sampling=sampling)

    # ── questions ──────────────────────────────────────────────────────────────────────────────────────────

    def explain(self, at: int, *, llm: Maker | None = None, **overrides: Any) -> Explanation:
        """Explains why the token at this place was chosen. Any option of `Sampling` makes it a what-if, with
        the same luck. The place after the last token is that of the token that ended the run."""
        if self.upstream is not None:
            from glassloop.record.told import explain_told

            return explain_told(self, at, **overrides)
        return self._maker(llm).explain(self, at, **overrides)

    def fork(self, at: int, *, llm: Maker | None = None, **options: Any) -> Run:
        """Returns a new run with the first `at` tokens of this one. It continues with `token=` or `text=`,
        with other options (`temperature=0.3`), or, if nothing is given, with new luck."""
        return self._maker(llm).fork(self, at, **options)

    def rewind(self, at: int) -> Run:
        """Returns the first `at` tokens as a new run. Nothing is computed, and this run stays as it is. The
        new run can be continued as if it had been interrupted there: with the rest of a text that was forced,
        and with the same luck."""
        at = check_place(at, len(self.tokens))
        drawn = self.options_at(at)
        after = self.tokens[at:] if self.end is None else [*self.tokens[at:], self.end]
        forced = list(takewhile(lambda token: token.source == "forced", after))
        rest = self.pending if len(forced) == len(after) else []
        made = self.beginning(
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
        made.tail = text_held_back(made.tokens)
        made.samples = [made]
        return made

    def revise(self, at: int, salt: int) -> Run:
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

    def beginning(self, at: int, reason: str, **changes: Any) -> Run:
        """Returns a new run that begins with the first `at` tokens of this one. What a run inherits is listed
        in `_INHERITED`; `changes` replace some of it, and all other fields are those of a new run."""
        kept = {"tokens": self.tokens[:at], "prompt_tokens": list(self.prompt_tokens)}
        made = Run(**{name: getattr(self, name) for name in _INHERITED} | kept | changes)
        made.descend(self, at, reason)
        drawn = {made.sampling.adapter, *[past.sampling.adapter for past in made.past]}
        known = self.adapters | made.adapters
        made.adapters = {name: hash for name, hash in known.items() if name in drawn}
        return made

    def count_fork(self, at: int, salt: int) -> None:
        """Counts a fork at a place that the record does not know of, if it has luck of its own."""
        position, drawn = len(self.prompt_ids) + at, self.drawn_with(at).salt
        counted = self.forks.get(position, 0)
        for number in range(counted + 1, counted + _FORKS_AHEAD):
            if fork_salt(drawn, position, number) == salt:
                self.forks[position] = number

    @property
    def drafts_taken_back(self) -> list[Run]:
        """The runs that were taken back until this one was left, the last one first."""
        made, run = list[Run](), self
        while run.reason == "revised" and run.above is not None:
            run = run.above
            made.append(run)
        return made

    def replay(self, llm: Maker | None = None, *, first: int = 0, strict: bool = True) -> ReplayVerdict:
        """Computes the run again, from the token `first` on, and compares every number. If another model made
        the run, this raises, or, unless `strict`, the verdict says so."""
        self.check_computable()
        return self._maker(llm).replay(self, first=first, strict=strict)

    def check_computable(self) -> None:
        """Raises if another engine computed the run: nothing here can compute it again."""
        if self.upstream is not None:
            raise TraceError.about(
                "run",
                f"{self.id} was computed by {self.upstream.described}, with the model {self.model}; it cannot"
                " be computed again here, only shown (with --upstream it can be continued there)",
            )

    def tree(self) -> RunTree:
        """Returns all runs that descend from the same request, by forks and samples, as far as loaded."""
        from glassloop.record.run_tree import RunTree

        return RunTree.of(self)

    def descend(self, parent: Run, at: int, reason: str) -> None:
        """Makes this run a fork of another, with whose first `at` tokens it begins."""
        kept = tuple(past for past in parent.past if past.until < at)
        last = parent.drawn_with(at - 1) if at else None
        self.past = kept if last is None else (*kept, replace(last, until=at))
        self.parent, self.fork_at, self.reason, self.above = parent.id, at, reason, parent
        parent.children.append(self)

    def _maker(self, llm: Maker | None) -> Maker:
        found = self.llm if llm is None else llm
        if found is None:
            expected = f"llm= is expected, an LLM with the model {self.model}"
            raise TraceError(f"run {self.id} was read from a file; {expected}", field="llm")
        _check_is_maker(found)
        return found

    # ── files ──────────────────────────────────────────────────────────────────────────────────────────────

    def save(self, path: str | PathLike[str], *, tree: bool = False) -> None:
        """Writes the run and the other samples of its request as a `.glass` file, or nothing if that fails.
        With `tree`, writes all runs of its tree."""
        from glassloop.record.format.glass_file import write

        others = [other for other in self.samples if other is not self]
        write(check_path("path", path), self.tree().from_run(self) if tree else [self, *others])

    def save_html(
        self,
        path: str | PathLike[str],
        *,
        explanations: Mapping[int, Explanation] | None = None,
        extras: Sequence[Shown] = (),
        tree: bool = True,
    ) -> None:
        """Writes a page that shows the run anywhere, without a network: its text, its tree, and the record of
        each token. `explanations` (by place, from `explain`) and `extras` (lenses, comparisons) are added to
        it. Without `tree`, only this run is in it."""
        from glassloop.record.views.page import page
        from glassloop.util.files import write_text

        write_text(check_path("path", path), page(self, explanations, extras, tree))

    @staticmethod
    def load(path: str | PathLike[str], *, llm: Maker | None = None) -> Run:
        """Returns the first run of a `.glass` file; the others are in its `samples` and its `tree()`. With
        `llm` it can be explained and forked; raises if that is another model."""
        from glassloop.record.format.glass_file import read

        runs = read(check_path("path", path))
        for run in runs:
            run.attach(llm)
        return runs[0]

    def attach(self, llm: Maker | None) -> None:
        """Makes this the model that explains, forks and replays the run."""
        if llm is not None:
            _check_is_maker(llm)
        if llm is not None and self.model_hash and self.model_hash != llm.model_hash:
            raise TraceError(
                f"run {self.id} was made by another model: {self.model} ({self.model_hash[:12]}…),"
                f" not the one given ({llm.model_hash[:12]}…)",
                field="llm",
            )
        self.llm = llm

    def to_dict(self) -> dict[str, Any]:
        """Returns the run as JSON has it; docs/trace-format.md describes it."""
        speed = self.timings.tokens_per_second(len(self.tokens))
        return {name: getattr(self, name) for name in _IN_JSON} | {
            "model_hash": self.model_hash or None,
            "usage": self.usage.to_dict(),
            "timings": asdict(self.timings) | {"tokens_per_second": speed},
            "drafts": asdict(self.drafts),
            "sampling": self.sampling.to_dict(),
            "moves": [asdict(move) for move in self.moves],
            "upstream": None if self.upstream is None else asdict(self.upstream),
            **self._diffusion_dict(),
            "plugins": {stage: plugin._asdict() for stage, plugin in self.plugins.items()},
            "prompt_tokens": [token.to_dict() for token in self.prompt_tokens],
            "tokens": [token.to_dict() for token in self.tokens],
            "end": None if self.end is None else self.end.to_dict(),
        }

    def _diffusion_dict(self) -> dict[str, Any]:
        """Returns the fields that only a run has whose masks were filled."""
        if self.diffusion is None:
            return {}
        return {"diffusion": self.diffusion, "passes": [each.to_dict() for each in self.passes]}

    def same_record(self, other: Run) -> bool:
        """Returns whether another run is a copy of this one, perhaps under another id: it has the same
        prompt, options and tokens."""
        return all(getattr(self, name) == getattr(other, name) for name in _SAME_IN_COPIES)

    def to_records(self) -> list[dict[str, Any]]:
        """Returns one plain dict per generated token, as `pandas.DataFrame` takes them."""
        first = len(self.prompt_ids)
        return [
            {"run": self.id, "sample": self.sample, "step": step, "position": first + step} | token.to_row()
            for step, token in enumerate(self.tokens)
        ]

    def live(self, on_fork: Callable[[Run], None] | None = None) -> AnyWidget:
        """Returns a widget for a notebook: a click on an alternative forks the run, and the widget's `run` is
        then the fork. Needs the extra `notebook`."""
        from glassloop.record.views.live import widget

        return widget(self, on_fork)

    def _repr_html_(self) -> str:
        """Returns the run as a notebook shows it: HTML without a script."""
        from glassloop.record.views.notebook import run_view

        return run_view(self)

    def __repr__(self) -> str:
        ended = self.finish_reason or "running"
        return f"Run({self.id}, {len(self.tokens)} tokens, {ended}: {cut(self.text, 60)!r})"


def check_place(at: object, tokens: int) -> int:
    """Returns a place of a run at which it can be forked or rewound: a number of its tokens."""
    return check_count("at", at, 0, tokens, "a number of tokens", TraceError)


def check_is_run(run: object) -> None:
    """Raises unless a value that a caller gives as a run is one."""
    if not isinstance(run, Run):
        raise TraceError.about("run", f"is {shown(run)}; a Run is expected")


def _check_is_maker(llm: object) -> None:
    """Raises unless a value that a caller gives as an `LLM` can be used as one."""
    if not all(hasattr(type(llm), name) for name in ("explain", "fork", "replay")):
        raise TraceError.about("llm", f"is {shown(llm)}; an LLM is expected")


_FORKS_AHEAD = 256  # how many numbers of forks are tried for one that is found in a store


def text_held_back(tokens: Sequence[Token]) -> str:
    """Returns the text of tokens that they do not show: a part of a character, a possible stop string, or one
    that ended the text. It belongs to a text that does not end by it."""
    characters = TextStream()
    whole = characters.feed(b"".join([token.bytes for token in tokens])) + characters.flush()
    return whole[sum([len(token.text) for token in tokens]) :]


# What a run has of the one that it begins with.
_INHERITED = (
    *("model", "prompt_ids", "seed", "context", "sampling", "salt", "ops", "prompt", "messages", "sample"),
    *("upstream", "diffusion", "passes", "model_hash", "plugins", "adapters", "llm"),
)
# The options that decide when a text ends, how many there are or what is recorded, and never a single choice.
_SEARCHES = ("beam_width", "length_penalty", "early_stopping", "diffusion")  # make another kind of task
_NOT_OF_A_CHOICE = tuple(name for name in WHAT_IF.refused if name not in _SEARCHES)
# The fields and properties that `Run.to_dict` copies.
_IN_JSON = (
    *("id", "created", "model", "ops", "prompt", "prompt_ids", "messages", "text", "token_ids"),
    "finish_reason",
    *("stop_reason", "seed", "salt", "parent", "fork_at", "reason", "adapters"),
)
# The fields by which a copy of a run is known. Names, times and links may be others.
_SAME_IN_COPIES = (
    *("prompt_ids", "messages", "sampling", "seed", "salt", "tokens", "tail", "finish_reason"),
)
