"""A decoder: the choosing half of one branch, from logits to a recorded token, again and again.

It holds what a request needs between tokens (the history, the state of the grammar) and nothing of anybody
else's, so what other rows ask for cannot matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import numpy as np

from glassloop.decode.candidates import HEAD, Candidates
from glassloop.decode.chain import MISSING, Observer, first_scale, rules_of, run_chain
from glassloop.decode.choose import choose, forced
from glassloop.decode.compiled import Compiled
from glassloop.decode.history import History
from glassloop.decode.luck import branch_key
from glassloop.decode.sampling import Sampling
from glassloop.decode.stage import Step
from glassloop.errors import ModelError, SamplingError
from glassloop.ops.chosen import Chosen, tell
from glassloop.ops.quant import Float32
from glassloop.ops.rules import Asked, Line, RuleError
from glassloop.ops.vocabulary import Int32, Race, RowOps, Summary, row_ops
from glassloop.text.tokenizer import Tokenizer


class Decoder:
    """One branch: `choose` looks at logits, `commit` moves on by a token."""

    def __init__(
        self,
        sampling: Sampling,
        vocab_size: int,
        seed: int,
        prompt: Sequence[int] = (),
        salt: int = 0,
        tokenizer: Tokenizer | None = None,
        eos_ids: Sequence[int] = (),
        ops: RowOps = row_ops("reference"),
        compiled: Compiled | None = None,
    ) -> None:
        """`compiled` is what was built from the options beforehand; without it, it is built here."""
        self.sampling = sampling
        compiled = compiled or Compiled.of(sampling, vocab_size, tokenizer)
        missing = _missing_ids(vocab_size, tokenizer)
        self.chain = ((MISSING,) if len(missing) else ()) + compiled.chain
        self._rulings = rules_of(self.chain, ops)
        self._asked: Asked | None = None  # if it stays the same
        self.history = History(prompt)
        self.scale = first_scale(self.chain, sampling)
        # Room for top-k, and for a few that penalties may push out of it.
        self.head = min(max(HEAD, min(sampling.top_k + HEAD // 2, 1024)), vocab_size)
        self.step = Step(
            sampling,
            self.history,
            seed,
            len(self.history),
            vocab_size,
            ops,
            salt,
            np.array(sorted({*eos_ids, *sampling.stop_token_ids}), np.int32),
            missing,
            grammar=None if compiled.grammar is None else compiled.grammar.fork(),
            bad_words=None if compiled.bad_words is None else compiled.bad_words.watch(prompt),
        )

    def look(self, logits: Float32, observer: Observer | None = None) -> tuple[Summary, Candidates]:
        """What the model says, and what the stages leave of it."""
        summary = self.step.ops.summarize(logits, self.head)
        return summary, run_chain(self.chain, logits, summary, self.step, observer)

    def choose(self, logits: Float32) -> Chosen:
        """The token that this branch takes next. Asking changes nothing; while it lasts, the row is ours."""
        (made,) = choose_rows([self], logits[np.newaxis])
        if isinstance(made, Exception):
            raise made
        return made

    def asked(self) -> Asked | None:
        """What an op set needs to know to choose by itself; None where stages have to look at the row."""
        if self._asked is not None or self._rulings is None:
            return self._asked
        step, sampling = self.step, self.sampling
        rules = [rule(step) for rule in self._rulings]
        branch = None if sampling.greedy else branch_key(step.seed, step.salt)
        asked = Asked(self.head, self.scale, rules, branch, min(sampling.logprobs, self.head))
        if all(stage.fixed for stage in self.chain):
            self._asked = asked
        return asked

    def walk(self, logits: Float32) -> Chosen:
        """Choose by the stages, one after the other."""
        summary, left = self.look(logits)
        return self.record(logits, summary, left, choose(left, self.step))

    def judge(self, logits: Float32, token: int) -> Chosen:
        """The record of a token that somebody else chose."""
        summary, left = self.look(logits)
        return self.record(logits, summary, left, forced(left, self.step, token))

    def score(self, logits: Float32, token: int, wanted: int) -> Chosen:
        """What the model itself says of a token of the prompt; no stage has a part in it."""
        summary = self.step.ops.summarize(logits, self.head)
        raw = float(logits[token]) - summary.log_sum_exp
        rank = _rank(self.step.ops, summary.ids, logits, token)
        theirs = summary.logits[:wanted].astype(np.float64) - summary.log_sum_exp
        return Chosen.of(
            id=token,
            logprob=raw,
            raw_logprob=raw,
            rank=rank,
            rank_after=rank,
            entropy=summary.entropy,
            log_sum_exp=summary.log_sum_exp,
            log_sum_exp_after=summary.log_sum_exp,
            scale=1.0,
            luck=0.0,
            margin=0.0,
            runner_up=None,
            survivors=None,
            told=tell(summary.ids[:wanted], theirs, theirs),
        )

    def ends_with(self, token: int) -> bool:
        """Whether this token, taken next, would be the last."""
        return token in self.step.ending_ids.tolist()

    def record(self, logits: Float32, summary: Summary, left: Candidates, choice: Race) -> Chosen:
        token, lse = choice.id, left.log_sum_exp
        wanted = self.sampling.logprobs
        favourites = summary.ids[:wanted]
        rank_after = 1 + choice.place if choice.place < len(left.ids) else _rank_among(left, token)
        theirs = np.subtract(summary.logits[:wanted], summary.log_sum_exp, dtype=np.float64)
        return Chosen.of(
            id=token,
            logprob=choice.logit - lse,
            raw_logprob=float(logits[token]) - summary.log_sum_exp,
            rank=_rank(self.step.ops, summary.ids, logits, token),
            rank_after=rank_after,
            entropy=summary.entropy,
            log_sum_exp=summary.log_sum_exp,
            log_sum_exp_after=lse,
            scale=left.scale,
            luck=choice.luck,
            margin=choice.margin,
            runner_up=choice.runner_up,
            survivors=len(left.ids) if left.complete else None,
            told=tell(favourites, left.logits_of(favourites) - lse, theirs),
        )

    def commit(self, token: int) -> None:
        self.history.append(token)
        self.step.position += 1
        if self.step.bad_words is not None:
            self.step.bad_words.commit(token)
        if self.step.grammar is not None and not self.finished:
            self.step.grammar.commit(token)

    def fork(self, salt: int | None = None) -> Decoder:
        """Another branch from this point on, with the same luck or, by its salt, with its own."""
        made, step = copy(self), copy(self.step)
        made.history = step.history = self.history.copy()
        made.step = step
        if step.grammar is not None:
            step.grammar = step.grammar.fork()
        if step.bad_words is not None:
            step.bad_words = step.bad_words.fork()
        if salt is not None:
            step.salt, made._asked = salt, None
        return made

    def rewind(self, length: int) -> None:
        """Back to where so many tokens had been generated, as if the rest had never come."""
        back = self.history.generated_length - length
        if length < 0 or back < 0:
            raise SamplingError(
                f"cannot go back to {length} generated tokens; there are {self.history.generated_length}"
            )
        self.history.truncate(length)
        self.step.position -= back
        if self.step.grammar is not None:
            self.step.grammar.rewind(length)
        if self.step.bad_words is not None:
            self.step.bad_words.rewind(length)

    @property
    def finished(self) -> bool:
        """Whether the text is complete by its grammar and nothing can be added to it."""
        return self.step.grammar is not None and self.step.grammar.finished


def choose_rows(
    decoders: Sequence[Decoder], logits: Float32, places: Sequence[int] | None = None
) -> list[Chosen | Exception]:
    """The next token of many branches of one model, each from its own row of logits ([rows, vocabulary]): the
    first from the first, unless they are told which are theirs.

    Each gets what `choose` would have given it alone. An error is the branch's own, and in its place.
    """
    width = logits.shape[1]
    if decoders and width != decoders[0].step.vocab_size:
        raise ModelError(f"a row has {width} logits; {decoders[0].step.vocab_size} are expected")
    places = range(len(decoders)) if places is None else places
    made: list[Chosen | Exception | None] = []  # None: nobody has said
    lines: list[Line] = []
    numbers: list[int] = []  # of those whose lines these are
    for number, decoder in enumerate(decoders):
        try:
            asked, error = decoder.asked(), None
        except Exception as raised:
            asked, error = None, raised
        made.append(error)
        if asked is not None:
            lines.append((asked, places[number], decoder.step.position))
            numbers.append(number)
    if lines:
        chooser = decoders[0].step.ops.chooser
        assert chooser is not None
        try:
            found = chooser.choose(logits, lines)
        except RuleError:  # of one of them; each by its stages, which will say whose
            found = [None] * len(lines)
        for number, chosen in zip(numbers, found, strict=True):
            made[number] = chosen
    return [
        _walked(decoders[number], logits[places[number]]) if told is None else told
        for number, told in enumerate(made)
    ]


def _walked(decoder: Decoder, logits: Float32) -> Chosen | Exception:
    """By its stages, which also say why nobody is left."""
    try:
        return decoder.walk(logits)
    except Exception as error:
        return error


def _missing_ids(vocab_size: int, tokenizer: Tokenizer | None) -> Int32:
    """The logits that no token of the tokenizer goes with."""
    if tokenizer is None:
        return np.empty(0, np.int32)
    return np.array([*tokenizer.missing_ids, *range(tokenizer.vocab_size, vocab_size)], np.int32)


def _rank(ops: RowOps, head: Int32, logits: Float32, token: int) -> int:
    place = int((head == token).argmax())
    return 1 + (place if head[place] == token else ops.rank_of(logits, token))


def _rank_among(left: Candidates, token: int) -> int:
    place = left.rank_of(token)
    return 0 if place is None else 1 + place
