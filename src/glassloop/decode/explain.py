"""Why a token was chosen: the same stages and the same choice on the same logits, with an observer.

Its numbers are those of the record, and where they are not, it says so first; with other options they are
those that would have been. `explain` is for callers with logits of their own; the engine calls
`explain_choice` with the same facts as two objects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glassloop.decode.candidates import Candidates
from glassloop.decode.choose import pick_winner, race_of_forced, race_of_found
from glassloop.decode.chosen import ALTERNATIVE, Chosen
from glassloop.decode.decoder import Decoder
from glassloop.decode.difference import difference_of
from glassloop.decode.explanation import BeamRank, Change, Racer, StageReport
from glassloop.decode.explanation import Explanation as Explanation
from glassloop.decode.luck import Race, luck_key, luck_of
from glassloop.decode.sampling import Sampling
from glassloop.decode.sentence import ChoiceOutcome, sentence
from glassloop.decode.stage import Stage
from glassloop.decode.winning_temperatures import winning_temperatures
from glassloop.ops import rows as reference_rows
from glassloop.ops.quant import Float32
from glassloop.ops.rows import Float64, RowOps, RowSummary
from glassloop.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class ModelParts:
    """What decoding needs of a model beside its logits."""

    tokenizer: Tokenizer | None = None
    eos_ids: Sequence[int] = ()
    ops: RowOps = reference_rows


@dataclass(frozen=True)
class ChoiceContext:
    """What a choice depends on: the logits of the model, the tokens before it, the options and the luck."""

    logits: Float32  # [vocab_size]
    tokens: Sequence[int]
    sampling: Sampling
    seed: int
    salt: int = 0
    position: int | None = None  # of the luck; by default that after the tokens
    prompt_length: int | None = None  # how many of the tokens are the prompt; by default all
    choices: Sequence[Chosen] = ()  # the records of the tokens after the prompt, which some stages need
    never: Sequence[int] = ()  # ids that cannot be chosen
    model: ModelParts = ModelParts()

    def decoder(self) -> Decoder:
        """Returns the decoder as it was before the choice."""
        prompt_length = len(self.tokens) if self.prompt_length is None else self.prompt_length
        decoder = Decoder(
            self.sampling,
            len(self.logits),
            self.seed,
            self.tokens[:prompt_length],
            self.salt,
            self.model.tokenizer,
            self.model.eos_ids,
            self.model.ops,
            never=self.never,
        )
        for token, chosen in zip_longest(self.tokens[prompt_length:], self.choices):
            decoder.commit(token, chosen)
        return self._placed(decoder)

    def prompt_decoder(self) -> Decoder:
        """Returns a decoder for a token of the prompt, to which no stage applies."""
        decoder = Decoder(Sampling(), len(self.logits), self.seed, self.tokens, self.salt, ops=self.model.ops)
        return self._placed(decoder)

    def _placed(self, decoder: Decoder) -> Decoder:
        decoder.step.position = len(self.tokens) if self.position is None else self.position
        return decoder


@dataclass(frozen=True)
class RecordedToken:
    """What is known about the token that came at a place, beyond what the race gives."""

    source: str = "sampled"  # or draft, forced, beam, prompt
    taken: int | None = None  # the token, if something else than the race decided: forced, beam, prompt
    beam: BeamRank | None = None
    refused: int | None = None  # the wrong guess of a drafter
    # The numbers of the record by name: those of `numbers_of`, or some of them.
    numbers: Mapping[str, Any] | None = None
    reasons: Sequence[str] = ()  # what is known to have changed since the record was made

    @property
    def id(self) -> int | None:
        """The token of the record; None if that is the winner of the race."""
        return self.taken if self.numbers is None else int(self.numbers["id"])

    @property
    def has_luck(self) -> bool:
        return self.source not in ("beam", "prompt")


_CHOSEN_NOW = RecordedToken()


def explain(
    logits: Float32,
    tokens: Sequence[int],
    sampling: Sampling,
    seed: int,
    position: int | None = None,
    *,
    prompt_length: int | None = None,
    choices: Sequence[Chosen] = (),
    salt: int = 0,
    tokenizer: Tokenizer | None = None,
    eos_ids: Sequence[int] = (),
    ops: RowOps = reference_rows,
    shown: int = 10,
    taken: int | None = None,
    source: str = "sampled",
    beam: BeamRank | None = None,
    refused: int | None = None,
    never: Sequence[int] = (),
    introduction: str = "",
    recorded: Mapping[str, Any] | None = None,
    reasons: Sequence[str] = (),
    **overrides: Any,
) -> Explanation:
    """Returns why the token after `tokens` is what it is. Any field of `Sampling` among the overrides makes
    it a what-if. `ChoiceContext` and `RecordedToken` describe the other arguments; `recorded` are the numbers
    of the record. `shown` and `introduction` are those of `explain_choice`."""
    sampling = sampling.changed(overrides) if overrides else sampling
    context = ChoiceContext(
        *(logits, tokens, sampling, seed, salt, position, prompt_length, choices, never),
        ModelParts(tokenizer, eos_ids, ops),
    )
    token = RecordedToken(source, taken, beam, refused, recorded, reasons)
    return explain_choice(context, token, shown, introduction)


def explain_choice(
    context: ChoiceContext, token: RecordedToken = _CHOSEN_NOW, shown: int = 10, introduction: str = ""
) -> Explanation:
    """Returns why a token came. `shown` is how many candidates are listed, beside those that the sentence
    names; `introduction` is how the sentence begins.

    If the choice gives other numbers now than the record has, the explanation has the `difference`.
    """
    decoder = context.prompt_decoder() if token.source == "prompt" else context.decoder()
    watcher = _Watcher(context.model.tokenizer, shown)
    summary, left = decoder.run_stages(context.logits, watcher.see)
    lucky = token.has_luck and not context.sampling.greedy
    choice = pick_winner(left, decoder.step, lucky)

    # Shown are the favourites before and after the stages, and every token that the sentence may name.
    favourites = [*summary.ids[:shown], *left.ids[:shown], choice.id]
    ids = {int(id) for id in favourites if context.logits[id] > -inf}
    ids |= {id for id in (token.taken, token.id, choice.runner_up, token.refused) if id is not None}
    key = luck_key(context.seed, context.salt, decoder.step.position) if lucky else None
    racers = _racers(context, watcher, summary, left, ids, key)
    by_id = {racer.id: racer for racer in racers}
    winner = by_id[choice.id]
    runner_up = None if choice.runner_up is None else by_id[choice.runner_up]
    outcome = ChoiceOutcome(
        winner,
        runner_up,
        by_id[int(summary.ids[0])],
        choice.margin,
        None if token.taken is None else by_id[token.taken],
        lucky,
        winning_temperatures(left, decoder.step, decoder.chain, choice.id) if lucky and runner_up else None,
    )
    difference = None
    if token.numbers is not None:
        again = _record_now(context, token, decoder, summary, left, choice)
        difference = difference_of(token.numbers, again, watcher.text, token.reasons)
    arrived = winner if token.id is None else by_id[token.id]
    refused = None if token.refused is None else by_id[token.refused]
    said = introduction + sentence(token.source, outcome, token.beam, refused, arrived)
    return Explanation(
        decoder.step.position,
        context.seed,
        context.salt,
        context.sampling,
        tuple(watcher.reports),
        tuple(racers),
        winner,
        runner_up,
        choice.margin,
        arrived,
        token.source,
        token.beam,
        said if difference is None else f"{difference.sentence} Computed now: {said}",
        difference=difference,
    )


def _racers(
    context: ChoiceContext,
    watcher: _Watcher,
    summary: RowSummary,
    left: Candidates,
    named: set[int],
    key: int | None,
) -> list[Racer]:
    """Returns the tokens with these ids by descending score. `key` is that of the luck, if there is any."""
    ids, logits = np.array(sorted(named)), context.logits
    luck = np.zeros(len(ids)) if key is None else luck_of(key, ids)
    after = left.logits_of(ids)
    racers = [
        Racer(
            id,
            watcher.text(id),
            1 + context.model.ops.rank_of(logits, id),
            float(logits[id]) - summary.log_sum_exp,
            _or_none(float(after[place]) - left.log_sum_exp),
            None if (before := left.rank_of(id)) is None else 1 + before,
            _or_none(float(after[place])),
            float(luck[place]),
            _or_none(float(after[place]) + float(luck[place])),
            watcher.removed_by.get(id) if after[place] == -inf else None,
            _or_none(float(logits[id])),
        )
        for place, id in enumerate(ids.tolist())
    ]
    racers.sort(key=lambda racer: (-inf if racer.score is None else racer.score, -racer.rank), reverse=True)
    return racers


def _record_now(
    context: ChoiceContext,
    token: RecordedToken,
    decoder: Decoder,
    summary: RowSummary,
    left: Candidates,
    choice: Race,
) -> Chosen:
    """Returns what the record of the token would be if it was made now."""
    if token.source == "prompt":
        assert token.numbers is not None
        count = len(token.numbers["packed_alternatives"]) // ALTERNATIVE.itemsize
        return decoder.record_prompt(context.logits, choice.id if token.id is None else token.id, count)
    race = choice
    if token.taken is not None and token.source == "forced":
        race = race_of_forced(left, decoder.step, token.taken)
    elif token.taken is not None and token.source == "beam":
        race = race_of_found(left, token.taken)
    return decoder.record_choice(context.logits, summary, left, race)


class _Watcher:
    """An observer of the chain that reports what each stage did."""

    def __init__(self, tokenizer: Tokenizer | None, shown: int) -> None:
        self.reports: list[StageReport] = []
        self.removed_by: dict[int, str] = {}
        self._tokenizer = tokenizer
        self._shown = shown

    def see(self, stage: Stage, before: Candidates, after: Candidates) -> None:
        everyone = np.arange(before.vocab_size)
        old, new = before.logits_of(everyone), after.logits_of(everyone)
        with np.errstate(invalid="ignore"):  # a stage may leave no token at all
            old_logprobs, new_logprobs = old - before.log_sum_exp, new - after.log_sum_exp
        alive = old > -inf
        removed = np.flatnonzero(alive & (new == -inf))
        moved = np.flatnonzero(alive & (new > -inf) & (old != new))
        self.removed_by.update(dict.fromkeys(removed.tolist(), stage.name))
        kept = 1.0 if not len(removed) else float(np.exp(old_logprobs[new > -inf]).sum())
        self.reports.append(
            StageReport(
                stage.name,
                stage.kind,
                int(alive.sum()),
                int((new > -inf).sum()),
                min(kept, 1.0),
                self._likeliest(removed, old_logprobs, new_logprobs),
                self._likeliest(moved, old_logprobs, new_logprobs),
                len(removed),
                len(moved),
            )
        )

    def _likeliest(self, ids: NDArray[np.integer], before: Float64, after: Float64) -> tuple[Change, ...]:
        order = ids[np.lexsort((ids, -before[ids]))][: self._shown]
        return tuple(
            Change(token, self.text(token), float(before[token]), _or_none(float(after[token])))
            for token in order.tolist()
        )

    def text(self, token: int) -> str:
        if self._tokenizer is None or token >= self._tokenizer.vocab_size:
            return f"<{token}>"
        return self._tokenizer.piece(token)


def _or_none(value: float) -> float | None:
    return None if value == -inf else value
