"""What an edit computes with: it scores texts and proposals, and counts the tokens that this costs.

A proposal is scored as a branch of the tree of runs: a fork of the text at the start of the span, continued
with the proposed tokens and with the tokens that follow. The prefix comes from the KV tree; all proposals of
a step are computed together. `span_draws.py` draws the proposals.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING

from glassloop.decode.compiled import Compiled
from glassloop.decode.sampling import Sampling
from glassloop.edit.acceptance import EditLuck
from glassloop.edit.characters import is_border
from glassloop.edit.proposal import Place, Proposal, bits
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
        self.luck = EditLuck(seed)
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
                count = len(run.tokens) + (run.end is not None)
                self.scored += len(request.forced)
                self.sampled += count - before[id(run)] - len(request.forced)

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
                list(prompt_ids), options, self.luck.seed, salt=0, prompt=None, sample=0
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
        fork = branch(llm, run, at, options, built, seed=self.luck.seed, salt=0, reason="edited")
        return self._score(fork, ids, built)

    def extend(self, run: Run, ids: Sequence[int]) -> Request:
        """Returns a request that continues a scored branch with more given tokens."""
        run.finish_reason, run.stop_reason, run.tail = None, None, ""
        run.sampling = self._scoring(len(run.prompt_ids), len(run.tokens) + len(ids))
        return self._score(run, ids, self.llm.compile(run.sampling))

    def _scoring(self, prompt: int, tokens: int) -> Sampling:
        """Returns the options for scoring a text of so many tokens after a prompt of so many. Raises if the
        context has no room for them."""
        self.llm.requests.check_length(prompt + tokens, "text", ", the prompt included")
        return replace(PLAIN, max_tokens=max(1, tokens), seed=self.luck.seed)

    def _score(self, run: Run, ids: Sequence[int], built: Compiled) -> Request:
        forced, keep = list(ids), self.llm.keep
        return Request(
            run.prompt_ids, run.sampling, [run], forced=forced, drafts=False, keep=keep, built=built
        )

    # ── proposals ──────────────────────────────────────────────────────────────────────────────────────────

    def alternatives(self, place: Place, count: int) -> list[Proposal]:
        """Returns the tokens that the model finds likeliest in the place of one token as proposals."""
        token = place.run.tokens[place.start]
        others = [each.id for each in token.alternatives if each.id != token.id][:count]
        return [self.proposal(place, number, None, [other]) for number, other in enumerate(others)]

    def span_sampling(self, sampling: Sampling, tokens: int) -> Sampling:
        """Returns the options for drawing a span of some length. Without a constraint, which decides
        itself where the text ends, the span has exactly this many tokens."""
        least = 0 if sampling.constraint is not None else tokens
        return replace(sampling, seed=self.luck.seed, max_tokens=tokens, min_tokens=least)

    def proposal(
        self, place: Place, number: int, drawn: Run | None, ids: list[int], complete: bool = True
    ) -> Proposal:
        """Returns a replacement for a span, not scored yet. It is refused if it is not `complete` by its
        constraint or would cut a character."""
        old = self.decode(place.run.token_ids[place.start : place.end])
        proposal = Proposal(
            place.step, number, place.start, place.end, ids, self.decode(ids), old, drawn=drawn
        )
        if drawn is not None and not complete:
            proposal.refusal = f"the {drawn.sampling.constraint} is not complete after {place.tokens} tokens"
        elif not ids:
            proposal.refusal = "it is empty"
        else:
            proposal.refusal = self._cuts_a_character(place, ids)
        return proposal

    def _cuts_a_character(self, place: Place, ids: Sequence[int]) -> str | None:
        """Returns why a replacement would cut a character in what people see, or None if it does not."""
        tokens = place.run.token_ids
        before = [*place.run.prompt_ids[-NEAR:], *tokens[max(0, place.start - NEAR) : place.start]]
        left = self._bytes(before[-NEAR:])
        data = self._bytes(ids)
        right = self._bytes(place.following[:NEAR])
        try:
            text = data.decode()
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
        self.complete(
            [request for place, proposed in pairs for request in self.score(place, proposed, window)]
        )
        for place, proposed in pairs:
            self.note(place, proposed)

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
