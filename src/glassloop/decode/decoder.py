"""A decoder: chooses the tokens of one branch, from logits to a recorded token, step by step.

It holds the state that a branch needs between tokens (the history, the state of the grammar) and shares none
of it, so other requests in the batch cannot affect it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from functools import cache
from math import prod
from struct import Struct

import numpy as np

from glassloop.decode.candidates import HEAD, Candidates
from glassloop.decode.chain import MISSING, Observer, first_scale, rules_of, run_chain
from glassloop.decode.choose import pick_winner, race_of_forced
from glassloop.decode.chosen import ALTERNATIVE, RECORD, Chosen, pack_alternatives, record_with
from glassloop.decode.compiled import Compiled
from glassloop.decode.history import History
from glassloop.decode.luck import Race, branch_key
from glassloop.decode.past_choices import PastChoices
from glassloop.decode.rules import Action, RowRequest
from glassloop.decode.sampling import Sampling
from glassloop.decode.stage import Step
from glassloop.errors import ModelError, SamplingError
from glassloop.ops import rows as reference_rows
from glassloop.ops.quant import Float32
from glassloop.ops.rows import Chooser, Int32, Line, RowOps, RowSummary, RuleError, Started
from glassloop.text.tokenizer import Tokenizer

_RECORD_BYTES, _ALTERNATIVE_BYTES = RECORD.itemsize, ALTERNATIVE.itemsize


class Decoder:
    """Decodes one branch: `choose` returns the next token for given logits, `commit` moves on by a token."""

    def __init__(
        self,
        sampling: Sampling,
        vocab_size: int,
        seed: int,
        prompt: Sequence[int] = (),
        salt: int = 0,
        tokenizer: Tokenizer | None = None,
        eos_ids: Sequence[int] = (),
        ops: RowOps = reference_rows,
        compiled: Compiled | None = None,
        never: Sequence[int] = (),
    ) -> None:
        """`compiled` is what was built from the options in advance; without it, it is built here. `never` are
        ids that cannot be chosen, like those for which the tokenizer has no token."""
        self.sampling = sampling
        compiled = compiled or Compiled.of(sampling, vocab_size, tokenizer)
        missing = _missing_ids(vocab_size, tokenizer)
        if never:
            missing = np.union1d(missing, np.array(never, np.int32))
        self.chain = ((MISSING,) if len(missing) else ()) + compiled.chain
        self._rulings = rules_of(self.chain, ops)
        self._request: RowRequest | None = None  # kept if it is the same at every step
        self._prediction: RowRequest | None = None
        self.fixed = self._rulings is not None and all(stage.fixed for stage in self.chain)
        self.history = History(prompt)
        self.scale = first_scale(self.chain, sampling)
        # Enough for top-k even if penalties remove a few of these.
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
            tokenizer=tokenizer,
            past_choices=PastChoices() if any(stage.needs_record for stage in self.chain) else None,
        )

    def choose(self, logits: Float32) -> Chosen:
        """Returns the next token of this branch. The logits may be changed during the call."""
        (chosen,) = choose_rows([self], logits[np.newaxis])
        if isinstance(chosen, Exception):
            raise chosen
        return chosen

    def row_request(self) -> RowRequest | None:
        """Returns what an op set needs to choose the next token by itself, or None if a stage has no rule."""
        if self._request is not None or self._rulings is None:
            return self._request
        step, sampling = self.step, self.sampling
        rules = [rule(step) for rule in self._rulings]
        key = None if sampling.greedy else branch_key(step.seed, step.salt)
        request = RowRequest(self.head, self.scale, rules, key, min(sampling.logprobs, self.head))
        if self.fixed:
            self._request = request
        return request

    def prediction_request(self) -> RowRequest:
        """Returns a request by which an op set can predict a token that the stages will choose: that of the
        stages whose rules are the same at every step."""
        if self._prediction is None:
            rules = [
                stage.rule(self.step)
                for stage in self.chain
                if stage.fixed and not stage.whole and stage.rule is not None
            ]
            scale = prod([rule.amount for rule in rules if rule.action is Action.SCALE])
            key = None if self.sampling.greedy else branch_key(self.step.seed, self.step.salt)
            alternatives = min(self.sampling.logprobs, self.head)
            self._prediction = RowRequest(self.head, scale, rules, key, alternatives)
        return self._prediction

    def run_stages(self, logits: Float32, observer: Observer | None = None) -> tuple[RowSummary, Candidates]:
        """Returns the summary of the model's own distribution, and what the stages leave of it."""
        logits = self.step.ops.host(logits)
        summary = self.step.ops.summarize(logits, self.head)
        return summary, run_chain(self.chain, logits, summary, self.step, observer)

    def choose_by_stages(self, logits: Float32) -> Chosen:
        """Returns the next token by running the chain, then the race; says why if no token is left."""
        summary, left = self.run_stages(logits)
        return self.record_choice(logits, summary, left, pick_winner(left, self.step))

    def record_forced(self, logits: Float32, token: int) -> Chosen:
        """Returns the record of a token that the caller chose."""
        summary, left = self.run_stages(logits)
        return self.record_choice(logits, summary, left, race_of_forced(left, self.step, token))

    def record_choice(self, logits: Float32, summary: RowSummary, left: Candidates, choice: Race) -> Chosen:
        """Returns the record of a choice among the survivors."""
        token, lse = choice.id, left.log_sum_exp
        favourites = summary.ids[: self.sampling.logprobs]
        rank = left.rank_of(token) if choice.place >= len(left.ids) else choice.place
        fields = self._model_fields(self.step.ops.host(logits), summary, token)
        fields |= {
            "logprob": choice.logit - lse,
            "rank_after": 0 if rank is None else 1 + rank,
            "log_sum_exp_after": lse,
            "scale": left.scale,
            "luck": choice.luck,
            "margin": choice.margin,
            "runner_up": choice.runner_up,
            "survivors": len(left.ids) if left.complete else None,
        }
        raw = np.subtract(summary.logits[: len(favourites)], summary.log_sum_exp, dtype=np.float64)
        return Chosen.of(pack_alternatives(favourites, left.logits_of(favourites) - lse, raw), **fields)

    def record_prompt(self, logits: Float32, token: int, alternatives: int) -> Chosen:
        """Returns the record of a token of the prompt, with the model's own numbers: no stage is run."""
        logits = self.step.ops.host(logits)
        summary = self.step.ops.summarize(logits, self.head)
        raw = summary.logits[:alternatives].astype(np.float64) - summary.log_sum_exp
        return Chosen.of(
            pack_alternatives(summary.ids[:alternatives], raw, raw),
            **self._model_fields(logits, summary, token),
        )

    def _model_fields(self, logits: Float32, summary: RowSummary, token: int) -> dict[str, float | None]:
        """Returns the fields of a record as they are without any stage."""
        place = int((summary.ids == token).argmax())
        rank = place if summary.ids[place] == token else self.step.ops.rank_of(logits, token)
        raw = float(logits[token]) - summary.log_sum_exp
        return {
            "id": token,
            "logprob": raw,
            "raw_logprob": raw,
            "rank": 1 + rank,
            "rank_after": 1 + rank,
            "entropy": summary.entropy,
            "log_sum_exp": summary.log_sum_exp,
            "log_sum_exp_after": summary.log_sum_exp,
            "scale": 1.0,
            "luck": 0.0,
            "margin": 0.0,
            "runner_up": None,
            "survivors": None,
        }

    def ends_with(self, token: int) -> bool:
        """Returns whether this token, taken next, would end the text."""
        sampling = self.sampling
        if sampling.ignore_eos:
            return token in sampling.stop_token_ids
        return token in self.step.ending_ids.tolist()

    def commit(self, token: int, chosen: Chosen | None = None) -> None:
        """Moves on by a token. `chosen` is its record, without which stages that need it cannot run."""
        if self.step.past_choices is not None:
            if chosen is None:
                names = " and ".join(stage.name for stage in self.chain if stage.needs_record)
                raise SamplingError(f"{names}: the record of every token is needed; token {token} has none")
            self.step.past_choices.append(chosen)
        self.history.append(token)
        self.step.position += 1
        if self.step.bad_words is not None:
            self.step.bad_words.commit(token)
        if self.step.grammar is not None and not self.finished:
            self.step.grammar.commit(token)

    def fork(self, salt: int | None = None) -> Decoder:
        """Returns another branch from here on, with the same luck or, with a salt, its own."""
        decoder, step = copy(self), copy(self.step)
        decoder.history = step.history = self.history.copy()
        decoder.step = step
        step.grammar = step.grammar and step.grammar.fork()
        step.bad_words = step.bad_words and step.bad_words.fork()
        step.past_choices = None if step.past_choices is None else step.past_choices.copy()
        if salt is not None:
            step.salt, decoder._request, decoder._prediction = salt, None, None
        return decoder

    def rewind(self, length: int) -> None:
        """Goes back to the state in which `length` tokens had been generated."""
        back = self.history.generated_length - length
        if length < 0 or back < 0:
            raise SamplingError(
                f"cannot go back to {length} generated tokens; there are {self.history.generated_length}"
            )
        self.history.truncate(length)
        if self.step.past_choices is not None:
            self.step.past_choices.truncate(length)
        self.step.position -= back
        for follower in (self.step.grammar, self.step.bad_words):
            if follower is not None:
                follower.rewind(length)

    @property
    def finished(self) -> bool:
        """Whether the text is complete by its grammar and nothing can be added to it."""
        return self.step.grammar is not None and self.step.grammar.finished


def choose_rows(
    decoders: Sequence[Decoder], logits: Float32, places: Sequence[int] | None = None
) -> list[Chosen | Exception]:
    """Chooses the next token of many branches of one model, each from its own row of `logits` ([rows,
    vocabulary]): `places` has the row of each; by default they are in order.

    Each gets what its `choose` would have returned. An error of a branch is returned in its place.
    """
    _check_width(decoders, logits)
    places = range(len(decoders)) if places is None else places
    choices, lines, numbers = _lines_of(decoders, places, [decoder.step.position for decoder in decoders])
    if lines:
        chooser = decoders[0].step.ops.chooser
        assert chooser is not None
        for number, chosen in zip(numbers, _choose_lines(chooser, logits, lines), strict=True):
            choices[number] = chosen
    return [
        _by_stages(decoders[number], logits[places[number]]) if chosen is None else chosen
        for number, chosen in enumerate(choices)
    ]


class StartedChoices:
    """Choices of the next tokens of many branches that an op set has begun to make."""

    def __init__(
        self, decoders: Sequence[Decoder], logits: Float32, places: Sequence[int], positions: Sequence[int]
    ) -> None:
        """`positions` has the position of the token that each decoder chooses. A decoder has all tokens
        before it, or gets them before `finish` if its rules are the same at every step (`fixed`)."""
        _check_width(decoders, logits)
        self._decoders, self._logits, self._places = decoders, logits, places
        self._errors: dict[int, Exception] = {}
        self._by_stages: set[int] = set()  # for these the op set only predicts
        requests = [self._request(number, decoder) for number, decoder in enumerate(decoders)]
        self._lines: list[Line] = [*zip(requests, places, positions, strict=True)]
        self.started: Started | None = None
        if decoders:
            start = decoders[0].step.ops.start
            assert start is not None
            with suppress(RuleError):  # the stages will say why
                self.started = start(logits, self._lines)

    def _request(self, number: int, decoder: Decoder) -> RowRequest:
        try:
            request = decoder.row_request()
        except Exception as error:
            self._errors[number] = error
            return decoder.prediction_request()
        if request is None:
            self._by_stages.add(number)
            return decoder.prediction_request()
        return request

    def finish(self, wanted: Sequence[bool]) -> tuple[list[Chosen | Exception | None], Sequence[int]]:
        """Waits for the choices. Returns those that are wanted, or the errors in their places, and the tokens
        that the op set had predicted, by line."""
        predicted: Sequence[int] = ()
        choices: list[Chosen | Exception | None] = [None] * len(self._lines)
        if self.started is not None:
            record = record_with(max([request.alternatives for request, _, _ in self._lines]))
            with suppress(RuleError):
                records, predicted = self.started.finish(record)
                choices = [*_read(records, self._lines, record)]
        for number in self._by_stages:
            choices[number] = None
        for number, error in self._errors.items():
            choices[number] = error
        return [
            None
            if not wanted[number]
            else _by_stages(self._decoders[number], self._logits[self._places[number]])
            if chosen is None
            else chosen
            for number, chosen in enumerate(choices)
        ], predicted


def _check_width(decoders: Sequence[Decoder], logits: Float32) -> None:
    width = logits.shape[1]
    if decoders and width != decoders[0].step.vocab_size:
        raise ModelError(f"a row has {width} logits; {decoders[0].step.vocab_size} are expected")


def _lines_of(
    decoders: Sequence[Decoder], places: Sequence[int], positions: Sequence[int]
) -> tuple[list[Chosen | Exception | None], list[Line], list[int]]:
    """Returns an entry for each decoder (None, or why it cannot choose), the lines of those from which an op
    set can choose, and the number of the decoder of each line."""
    choices: list[Chosen | Exception | None] = []  # None: to be chosen by the stages
    lines: list[Line] = []
    numbers: list[int] = []
    for number, decoder in enumerate(decoders):
        try:
            request, error = decoder.row_request(), None
        except Exception as raised:
            request, error = None, raised
        choices.append(error)
        if request is not None:
            lines.append((request, places[number], positions[number]))
            numbers.append(number)
    return choices, lines, numbers


def _choose_lines(chooser: Chooser, logits: Float32, lines: list[Line]) -> list[Chosen | None]:
    """Lets an op set choose. None where no token is left, and everywhere if a rule of any line does not fit:
    the stages will say why."""
    record = record_with(max([request.alternatives for request, _, _ in lines]))
    try:
        records = chooser.choose(logits, lines, record)
    except RuleError:
        return [None] * len(lines)
    return _read(records, lines, record)


def _read(
    records: bytes | bytearray, lines: Sequence[Line], record: np.dtype[np.void]
) -> list[Chosen | None]:
    """Returns the choices of lines, None where no token is left."""
    choices: list[Chosen | None] = []
    for (request, _, _), (data,) in zip(lines, _pieces(record.itemsize).iter_unpack(records), strict=True):
        chosen = Chosen(data[: _RECORD_BYTES + _ALTERNATIVE_BYTES * request.alternatives])
        choices.append(None if chosen.id < 0 else chosen)
    return choices


@cache
def _pieces(size: int) -> Struct:
    """Returns a `Struct` that divides memory into pieces of this size."""
    return Struct(f"{size}s")


def _by_stages(decoder: Decoder, logits: Float32) -> Chosen | Exception:
    try:
        return decoder.choose_by_stages(logits)
    except Exception as error:
        return error


def _missing_ids(vocab_size: int, tokenizer: Tokenizer | None) -> Int32:
    """Returns the ids of logits for which the tokenizer has no token."""
    if tokenizer is None:
        return np.empty(0, np.int32)
    return np.array([*tokenizer.missing_ids, *range(tokenizer.vocab_size, vocab_size)], np.int32)
