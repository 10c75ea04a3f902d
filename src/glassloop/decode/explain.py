"""Why a token was chosen: the same stages and the same choice on the same logits, with an observer.

Its numbers are those of the record, and where they are not, it says so first; with other options they are
those that would have been.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import zip_longest
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glassloop.decode.candidates import Candidates
from glassloop.decode.choose import pick_winner, race_of_forced, race_of_found
from glassloop.decode.chosen import ALTERNATIVE, Chosen
from glassloop.decode.decoder import Decoder
from glassloop.decode.difference import RecordDifference, difference_of
from glassloop.decode.luck import Race, luck_key, luck_of
from glassloop.decode.sampling import Sampling
from glassloop.decode.sentence import BeamRank, ChoiceOutcome, sentence
from glassloop.decode.stage import Stage, Step
from glassloop.decode.temperatures import winning_temperatures
from glassloop.ops import rows as reference_rows
from glassloop.ops.quant import Float32
from glassloop.ops.rows import Float64, RowOps
from glassloop.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Change:
    """A token that a stage removed or moved. Log-probabilities are among the tokens left at that point."""

    id: int
    text: str
    before: float
    after: float | None  # None: removed


@dataclass(frozen=True)
class StageReport:
    """What one stage did."""

    name: str
    kind: str  # bias, scale, mask
    survivors_before: int
    survivors: int
    mass_kept: float  # how much of the probability the survivors had before the stage
    removed: tuple[Change, ...]  # the likeliest of them
    moved: tuple[Change, ...]  # the likeliest of those whose logit the stage changed
    removed_count: int
    moved_count: int


@dataclass(frozen=True)
class Racer:
    """A token in the race, or one that would have been without the stages."""

    id: int
    text: str
    rank: int  # in the model's own order, from 1
    raw_logprob: float
    logprob: float | None  # after the stages; None: removed
    rank_after: int | None  # among the tokens that the stages left, from 1; None: removed
    logit: float | None  # after the stages; None: removed
    luck: float
    score: float | None  # that logit + luck
    removed_by: str | None
    raw_logit: float | None = None  # the model's own; None: not known, or minus infinity


@dataclass(frozen=True)
class Explanation:
    """Why a token came: what each stage did, the race, and one sentence."""

    position: int
    seed: int
    salt: int
    sampling: Sampling
    stages: tuple[StageReport, ...]
    candidates: tuple[Racer, ...]  # by score; then the removed ones, in the model's own order
    winner: Racer
    runner_up: Racer | None
    margin: float
    taken: (
        Racer  # the token that came: the winner, unless it was forced, found by a search, given or recorded
    )
    source: str  # sampled, draft (guessed, and confirmed), forced, beam, prompt
    beam: BeamRank | None  # how the beam did that the token is on, where the record has its search
    sentence: str
    notes: tuple[str, ...] = ()  # what has changed since the run was made: a plugin
    # The other engine that chose the token. Only the log-probabilities that it gave are known then; luck,
    # margin and the log-probabilities after the stages are NaN, and ranks are 0.
    upstream: str | None = None
    # How the record differs from what is computed now, which all other fields but `taken` and `source` tell.
    # None if it does not differ, if there is no record, and in a what-if.
    difference: RecordDifference | None = None

    def to_dict(self) -> dict[str, Any]:
        """Returns it as JSON has it."""
        plain = {each.name: getattr(self, each.name) for each in fields(self)}
        plain["sampling"] = self.sampling.to_dict()
        plain["stages"] = [asdict(report) for report in self.stages]
        plain["candidates"] = [asdict(racer) for racer in self.candidates]
        plain["winner"] = asdict(self.winner)
        plain["runner_up"] = self.runner_up and asdict(self.runner_up)
        plain["taken"] = asdict(self.taken)
        plain["beam"] = self.beam and self.beam._asdict()
        plain["margin"] = None if self.margin == inf else self.margin
        plain["notes"] = list(self.notes)
        plain["difference"] = self.difference and self.difference.to_dict()
        if self.upstream is not None:
            known: dict[str, Any] = _without_unknown(plain)
            return known
        return plain

    def _repr_html_(self) -> str:
        """Returns it as a notebook shows it."""
        from glassloop.decode.explain_html import explanation_view

        return explanation_view(self)

    def __str__(self) -> str:
        """Returns it as plain text: the tables of the stages and of the race, and the sentence."""
        from glassloop.decode.explain_text import explanation_text

        return explanation_text(self)


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
    """Returns why the token after `tokens` is what it is. The first `prompt_length` of these are the prompt,
    all of them if it is not given; `choices` are the records of the others, which some stages need. Any field
    of `Sampling` among the overrides makes it a what-if.

    `taken` is the token that came, where the race did not decide that: by its `source` it was forced, is on
    a beam or belongs to the prompt. Beams and prompts have no luck, and no stage applies to a prompt.
    `refused` is the wrong guess of a drafter, `never` are ids that cannot be chosen. The sentence begins with
    the `introduction`.

    `recorded` are the numbers of the record by name, those of `numbers_of` or some of them. If the choice
    gives others now, the explanation has the `difference`, for which `reasons` may be known.
    """
    if overrides:
        sampling = sampling.changed(overrides)
    prompt_length = len(tokens) if prompt_length is None else prompt_length
    if source == "prompt":
        decoder = Decoder(Sampling(), len(logits), seed, tokens, salt, ops=ops)
    else:
        known = (sampling, len(logits), seed, tokens[:prompt_length], salt, tokenizer, eos_ids, ops)
        decoder = Decoder(*known, never=never)
        for token, chosen in zip_longest(tokens[prompt_length:], choices):
            decoder.commit(token, chosen)
    step = decoder.step
    step.position = len(tokens) if position is None else position

    watcher = _Watcher(tokenizer, shown)
    summary, left = decoder.run_stages(logits, watcher.see)
    lucky = not sampling.greedy and source not in ("beam", "prompt")
    choice = pick_winner(left, step, lucky)

    # Shown are the favourites before and after the stages, and every token that the sentence may name.
    named = {int(i) for i in [*summary.ids[:shown], *left.ids[:shown], choice.id] if logits[i] > -inf}
    came = taken if recorded is None else int(recorded["id"])
    named |= {other for other in (taken, came, choice.runner_up, refused) if other is not None}
    ids = np.array(sorted(named))
    luck = luck_of(luck_key(seed, salt, step.position), ids) if lucky else np.zeros(len(ids))
    after = left.logits_of(ids)
    racers = [
        Racer(
            token,
            watcher.text(token),
            1 + ops.rank_of(logits, token),
            float(logits[token]) - summary.log_sum_exp,
            _or_none(float(after[place]) - left.log_sum_exp),
            None if (before := left.rank_of(token)) is None else 1 + before,
            _or_none(float(after[place])),
            float(luck[place]),
            _or_none(float(after[place]) + float(luck[place])),
            watcher.removed_by.get(token) if after[place] == -inf else None,
            _or_none(float(logits[token])),
        )
        for place, token in enumerate(ids.tolist())
    ]
    racers.sort(key=lambda racer: (-inf if racer.score is None else racer.score, -racer.rank), reverse=True)
    by_id = {racer.id: racer for racer in racers}
    winner = by_id[choice.id]
    runner_up = None if choice.runner_up is None else by_id[choice.runner_up]
    outcome = ChoiceOutcome(
        winner,
        runner_up,
        by_id[int(summary.ids[0])],
        choice.margin,
        None if taken is None else by_id[taken],
        lucky,
        winning_temperatures(left, step, decoder.chain, choice.id) if lucky and runner_up else None,
    )
    difference = None
    if recorded is not None:
        if source == "prompt":
            count = len(recorded["packed_alternatives"]) // ALTERNATIVE.itemsize
            made = decoder.record_prompt(logits, came if came is not None else choice.id, count)
        else:
            made = decoder.record_choice(logits, summary, left, _race_of(source, taken, choice, left, step))
        difference = difference_of(recorded, made, watcher.text, reasons)
    arrived = winner if came is None else by_id[came]
    said = introduction + sentence(
        source, outcome, beam, None if refused is None else by_id[refused], arrived
    )
    return Explanation(
        step.position,
        seed,
        salt,
        sampling,
        tuple(watcher.reports),
        tuple(racers),
        winner,
        runner_up,
        choice.margin,
        arrived,
        source,
        beam,
        said if difference is None else f"{difference.sentence} Computed now: {said}",
        difference=difference,
    )


def _race_of(source: str, taken: int | None, choice: Race, left: Candidates, step: Step) -> Race:
    """Returns the race as the record of a token of this source has it."""
    if taken is not None and source == "forced":
        return race_of_forced(left, step, taken)
    if taken is not None and source == "beam":
        return race_of_found(left, taken)
    return choice


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


def _without_unknown(value: Any) -> Any:
    """Returns JSON with None in place of NaN, and of ranks that are 0."""
    if isinstance(value, dict):
        plain = {name: _without_unknown(each) for name, each in value.items()}
        return plain | ({"rank": plain["rank"] or None} if "rank" in plain else {})
    if isinstance(value, list | tuple):
        return [_without_unknown(each) for each in value]
    return None if isinstance(value, float) and value != value else value


def _or_none(value: float) -> float | None:
    return None if value == -inf else value
