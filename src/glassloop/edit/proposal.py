"""The primitive of editing: propose a replacement for a span, and score it and what follows it.

A proposal is drawn from the model by a request of its own, whose prompt is the text before the span, so that
constraints and penalties see the span alone. It is then scored as a branch of the tree of runs: a fork of the
text at the start of the span, continued with the proposed tokens and with the tokens that follow. The prefix
comes from the KV tree; all proposals of a step are computed together.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from math import log
from time import perf_counter
from typing import TYPE_CHECKING, Any

from glassloop.decode.compiled import Compiled
from glassloop.decode.diffusion import Diffusion
from glassloop.decode.grammar import Grammar
from glassloop.decode.sampling import Sampling
from glassloop.edit.characters import is_border
from glassloop.edit.dice import Dice
from glassloop.edit.masks import fill_place
from glassloop.engine.branching import branch
from glassloop.engine.deadline import Deadline, TimedOut, check_deadline
from glassloop.engine.follow import as_completed, raise_error
from glassloop.engine.request import Request
from glassloop.errors import GlassloopError
from glassloop.record.run import Run

if TYPE_CHECKING:
    from glassloop.engine.local import LocalModel

PLAIN = Sampling(temperature=1.0, ignore_eos=True, logprobs=5)  # the model's own distribution, for scoring
NEAR = 16  # tokens beside a span that may belong to a character which people see as one
_MOST_ENDINGS = 3  # of a draw under a constraint that are proposed


@dataclass(frozen=True)
class Place:
    """A span of a text, by tokens, and how many tokens may replace it."""

    run: Run  # the text as it is: a prompt, which cannot be edited, and tokens
    start: int  # the first token of the span in the answer of the run
    end: int  # the token after the last
    tokens: int
    step: int  # the number of the step, which the luck depends on
    after: tuple[int, ...] | None = None  # the tokens behind a hole; None: those of the run behind the span

    @property
    def following(self) -> list[int]:
        return self.run.token_ids[self.end :] if self.after is None else list(self.after)

    @property
    def prefix(self) -> list[int]:
        return [*self.run.prompt_ids, *self.run.token_ids[: self.start]]


@dataclass(eq=False)
class Proposal:
    """A replacement for a span, with what it and the text after it cost. Bits are surprise: -log2 of the
    model's own probability, so fewer are better."""

    step: int
    number: int  # among the proposals of the step
    start: int  # the span that it replaces, by tokens of the text at that step
    end: int
    ids: list[int]  # the tokens that it proposes
    text: str
    old_text: str
    drawn: Run | None  # how it was drawn: luck, stages and alternatives of each token
    run: Run | None = None  # the branch: the text with this replacement, as far as it was scored
    own_bits: float = 0.0
    following_bits: float = 0.0
    followed: int = 0  # how many tokens after the span were scored
    old_own_bits: float | None = None  # of what it replaces; None where there was nothing
    old_following_bits: float | None = None
    masked_bits: float | None = None  # to the masked model, given both sides; None if it was not asked
    old_masked_bits: float | None = None
    accepted: bool = False
    coin: float | None = None  # the draw that accepted or refused it; None if a rule did
    threshold: float | None = None  # the probability of acceptance that the draw was compared with
    refusal: str | None = None  # why it was not even scored: it cuts a character, or is incomplete
    score: float | None = None  # what a verifier gave the text with it
    why: str = ""  # the reason of the decision, in a few words
    seconds: float = 0.0  # when it was scored, since the edit began; not the same when it is made again

    @property
    def gain(self) -> float:
        """How many bits fewer the span and what follows take than before."""
        return self.own_gain + self.following_gain

    @property
    def own_gain(self) -> float:
        return 0.0 if self.old_own_bits is None else self.old_own_bits - self.own_bits

    @property
    def following_gain(self) -> float:
        return 0.0 if self.old_following_bits is None else self.old_following_bits - self.following_bits

    @property
    def bits(self) -> float:
        """The surprise of the span and of what follows, as far as it was scored."""
        return self.own_bits + self.following_bits

    @property
    def line(self) -> str:
        """The decision in one line: "+3.1 bits on what follows, -1.2 on itself, accepted"."""
        decided = "accepted" if self.accepted else "refused"
        if self.why:
            decided += f" ({self.why})"
        if self.refusal is not None:
            return f"not scored, refused ({self.refusal})"
        if self.old_own_bits is None:
            return (
                f"{self.following_bits:.1f} bits for what follows, {self.own_bits:.1f} for itself, {decided}"
            )
        if self.old_following_bits is None or not self.followed:
            return f"{self.own_gain:+.1f} bits on itself, {decided}"
        return f"{self.following_gain:+.1f} bits on what follows, {self.own_gain:+.1f} on itself, {decided}"

    def to_dict(self) -> dict[str, Any]:
        """Returns the proposal as JSON has it; the runs by their ids."""
        plain = {name: getattr(self, name) for name in _IN_JSON}
        runs = {"drawn": self.drawn and self.drawn.id, "run": self.run and self.run.id}
        return plain | runs | {"line": self.line}


# The fields that are the same whenever the edit is made again, and so are compared by a replay.
DECIDED = (
    *("step", "number", "start", "end", "ids", "text", "old_text", "own_bits", "following_bits"),
    *("followed", "old_own_bits", "old_following_bits", "accepted", "coin", "threshold", "refusal", "score"),
    *("masked_bits", "old_masked_bits", "why"),
)
_IN_JSON = (*DECIDED, "seconds")


def bits(run: Run, start: int, end: int) -> float:
    """Returns the surprise of some tokens of a run under the model's own distribution."""
    return -sum(token.raw_logprob for token in run.tokens[start:end]) / log(2)


def complete_all(llm: LocalModel, requests: Sequence[Request], deadline: Deadline | None = None) -> None:
    """Computes requests together and waits for all. Raises the first error of a run, or that of the deadline,
    after which nothing of them runs any more. A run that was cut short, by its own timeout or for want of
    memory, is an error too: what is made of it could not be replayed."""
    if deadline is not None:
        deadline.check()
    with closing(as_completed(llm.engine, requests, deadline)) as runs:
        for _ in runs:
            pass
    for request in requests:
        for run in request.runs:
            raise_error(run)
            if run.finish_reason == "timeout":
                raise TimedOut.about("timeout", f"ended a draw after {run.sampling.timeout:g} s")
            if run.cut_short:
                raise GlassloopError(f"a draw was cut short: {run.finish_reason}, {run.stop_reason}")


class EditWork:
    """What an edit computes with: the model, its luck, and a count of the tokens that it has paid for."""

    def __init__(self, llm: LocalModel, seed: int, deadline: Deadline | None = None) -> None:
        check_deadline(deadline)
        self.llm = llm
        self.dice = Dice(seed)
        self.deadline = deadline
        self._began = perf_counter()
        self.sampled = 0  # tokens that were drawn
        self.scored = 0  # tokens that were given and scored

    @property
    def seconds(self) -> float:
        """The time since the edit began."""
        return perf_counter() - self._began

    @property
    def tokens(self) -> int:
        """The tokens that were computed so far; budgets are in these."""
        return self.sampled + self.scored

    def complete(self, requests: Sequence[Request]) -> None:
        """Computes requests together, waits for all, and counts their tokens. A token that ended a run was
        computed too, so every draw counts at least one: a budget ends whatever is drawn."""
        before = {id(run): len(run.tokens) for request in requests for run in request.runs}
        complete_all(self.llm, requests, self.deadline)
        for request in requests:
            for run in request.runs:
                made = len(run.tokens) + (run.end is not None)
                self.scored += len(request.forced)
                self.sampled += made - before[id(run)] - len(request.forced)

    # ── texts and branches ─────────────────────────────────────────────────────────────────────────────────

    def text(self, prompt_ids: list[int], ids: Sequence[int], of: Run | None = None) -> Run:
        """Returns given tokens as a run, each with its record, after a prompt of at least one token. If they
        are those `of` a run, it is a fork of that run: the text is the same, the options are not."""
        if of is not None:
            request = self.branch(of, 0, ids)
            run = request.runs[0]
        else:
            self.llm.requests.check_length(len(prompt_ids))
            options = self._scoring(len(prompt_ids), len(ids))
            run = self.llm.requests.new_run(
                list(prompt_ids), options, self.dice.seed, salt=0, prompt=None, sample=0
            )
            run.samples = [run]
            request = self._score(run, ids, self.llm.compile(options))
        if ids:
            self.complete([request])
        else:
            run.finish_reason, run.stop_reason = "cancelled", "there is nothing to score"
            if self.llm.keep is not None:
                self.llm.keep(run)
        return run

    def branch(self, run: Run, at: int, ids: Sequence[int]) -> Request:
        """Returns a request for a fork of a run that keeps `at` tokens and continues with given ones."""
        llm, options = self.llm, self._scoring(len(run.prompt_ids), at + len(ids))
        built = llm.compile(options)
        made = branch(llm, run, at, options, built, seed=self.dice.seed, salt=0, reason="edited")
        return self._score(made, ids, built)

    def extend(self, run: Run, ids: Sequence[int]) -> Request:
        """Returns a request that continues a scored branch with more given tokens."""
        run.finish_reason, run.stop_reason, run.tail = None, None, ""
        run.sampling = self._scoring(len(run.prompt_ids), len(run.tokens) + len(ids))
        return self._score(run, ids, self.llm.compile(run.sampling))

    def _scoring(self, prompt: int, tokens: int) -> Sampling:
        """Returns the options with which a text of so many tokens is scored after a prompt of so many.
        Raises if there is no room for them."""
        self.llm.requests.check_length(prompt + tokens, "text", ", the prompt included")
        return replace(PLAIN, max_tokens=max(1, tokens), seed=self.dice.seed)

    def _score(self, run: Run, ids: Sequence[int], built: Compiled) -> Request:
        forced, keep = list(ids), self.llm.keep
        return Request(
            run.prompt_ids, run.sampling, [run], forced=forced, drafts=False, keep=keep, built=built
        )

    # ── proposals ──────────────────────────────────────────────────────────────────────────────────────────

    def propose(
        self,
        places: Sequence[Place],
        sampling: Sampling,
        candidates: int,
        *,
        ranked: bool = False,
        diffusion: Diffusion | None = None,
    ) -> list[list[Proposal]]:
        """Draws replacements for one or more spans, in one batch; with `diffusion`, by filling masks that see
        both sides of a span, one span after the other.

        If the best one is to be taken (`ranked`), the first of each place is the likeliest token at each step
        instead of a draw, no text is proposed twice, and a draw under a constraint is proposed as far as each
        place where the constraint allows an end: in the middle of a text a model rarely ends by itself.
        """
        if diffusion is None:
            draws = [self._draws(place, sampling, candidates, ranked) for place in places]
            self.complete([request for requests in draws for request in requests])
            drawn = [[run for request in requests for run in request.runs] for requests in draws]
        else:
            drawn = [fill_place(self, place, sampling, candidates, ranked, diffusion) for place in places]
        grammar = None if sampling.constraint is None else self.llm.compile(sampling).grammar
        made: list[list[Proposal]] = []
        for place, runs in zip(places, drawn, strict=True):
            proposals: list[Proposal] = []
            known: set[tuple[int, ...]] = set()
            for run in runs:
                lengths = _complete_lengths(grammar, run, ranked)
                for length in lengths or [len(run.tokens)]:
                    ids = run.token_ids[:length]
                    if not ranked or (*ids,) not in known:
                        known.add((*ids,))
                        each = self.proposal(place, len(proposals), run, ids, bool(lengths))
                        proposals.append(each)
            made.append(proposals)
        return made

    def alternatives(self, place: Place, count: int) -> list[Proposal]:
        """Returns the tokens that the model finds likeliest in the place of one token as proposals."""
        token = place.run.tokens[place.start]
        others = [each.id for each in token.alternatives if each.id != token.id][:count]
        return [self.proposal(place, number, None, [other]) for number, other in enumerate(others)]

    def _draws(self, place: Place, sampling: Sampling, candidates: int, ranked: bool) -> list[Request]:
        options = self.span_sampling(sampling, place.tokens)
        prefix, requests = place.prefix, list[Request]()
        first = 0
        if ranked and not options.greedy:
            requests.append(self.llm.prepare(prefix, replace(options, temperature=0.0)))
            first = 1
        if candidates > first:
            requests.append(self.llm.prepare(prefix, replace(options, n=candidates - first)))
        number = 0
        for request in requests:
            for run in request.runs:
                run.salt = self.dice.salt(place.step, number)
                number += 1
        return requests

    def span_sampling(self, sampling: Sampling, tokens: int) -> Sampling:
        """Returns the options with which a span of some length is drawn. Without a constraint, which decides
        itself where the text ends, the span has exactly this many tokens."""
        least = 0 if sampling.constraint is not None else tokens
        return replace(sampling, seed=self.dice.seed, max_tokens=tokens, min_tokens=least)

    def proposal(
        self, place: Place, number: int, drawn: Run | None, ids: list[int], complete: bool = True
    ) -> Proposal:
        """Returns a replacement for a span, not scored yet. It is refused if it is not `complete` by its
        constraint or would cut a character."""
        old = self.decode(place.run.token_ids[place.start : place.end])
        made = Proposal(place.step, number, place.start, place.end, ids, self.decode(ids), old, drawn=drawn)
        if drawn is not None and not complete:
            made.refusal = f"the {drawn.sampling.constraint} is not complete after {place.tokens} tokens"
        elif not ids:
            made.refusal = "it is empty"
        else:
            made.refusal = self._cuts_a_character(place, ids)
        return made

    def _cuts_a_character(self, place: Place, ids: Sequence[int]) -> str | None:
        """Returns why a replacement would cut a character in what people see, or None if it does not."""
        tokens = place.run.token_ids
        before = [*place.run.prompt_ids[-NEAR:], *tokens[max(0, place.start - NEAR) : place.start]]
        left = self._bytes(before[-NEAR:])
        own = self._bytes(ids)
        right = self._bytes(place.following[:NEAR])
        try:
            text = own.decode()
        except UnicodeDecodeError:
            return "it cuts a character"
        shown = left.decode("utf-8", "ignore"), right.decode("utf-8", "ignore")
        whole = shown[0] + text + shown[1]
        for place_of_border in (len(shown[0]), len(shown[0]) + len(text)):
            if not is_border(whole, place_of_border):
                return "it would join a character beside it"
        return None

    def score_all(
        self, places: Sequence[Place], proposals: Sequence[Sequence[Proposal]], window: int | None
    ) -> None:
        """Scores the proposals of several places in one batch."""
        pairs = list(zip(places, proposals, strict=True))
        self.complete([request for place, made in pairs for request in self.score(place, made, window)])
        for place, made in pairs:
            self.note(place, made)

    def score(self, place: Place, proposals: Sequence[Proposal], window: int | None = None) -> list[Request]:
        """Returns the requests that score proposals, for `complete`: the replacement and at most `window`
        tokens after it. `note` then reads the results."""
        following = place.following[:window]
        requests = []
        for each in proposals:
            if each.refusal is None:
                request = self.branch(place.run, place.start, [*each.ids, *following])
                each.run, each.followed = request.runs[0], len(following)
                requests.append(request)
        return requests

    def note(self, place: Place, proposals: Sequence[Proposal]) -> None:
        """Sets the bits of proposals that were scored."""
        for each in proposals:
            each.seconds = self.seconds
            if each.run is None:
                continue
            end = place.start + len(each.ids)
            each.own_bits = bits(each.run, place.start, end)
            each.following_bits = bits(each.run, end, end + each.followed)
            if place.after is None:  # a hole has nothing to compare with
                each.old_own_bits = bits(place.run, place.start, place.end)
                each.old_following_bits = bits(place.run, place.end, place.end + each.followed)

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of tokens, whose beginning and end may be in the middle of a character."""
        return self._bytes(ids).decode("utf-8", "replace")

    def _bytes(self, ids: Sequence[int]) -> bytes:
        return b"".join(map(self.llm.tokenizer.token_bytes, ids))


def _complete_lengths(grammar: Grammar | None, drawn: Run, ranked: bool) -> list[int]:
    """Returns after how many tokens of a draw its text is complete. Without a constraint, or if the draw is
    to be taken as it is, that can only be after the last one."""
    whole = len(drawn.tokens)
    if grammar is None:
        return [whole]
    if not ranked:
        return [whole] if drawn.finish_reason == "stop" else []
    grammar, found = grammar.fork(), list[int]()
    for length, token in enumerate(drawn.token_ids, 1):
        grammar.commit(token)
        if grammar.accepting:
            found.append(length)
    return found[:_MOST_ENDINGS]
