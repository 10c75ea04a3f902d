"""Stages against repetition: they look at the tokens so far and make those that would repeat less likely."""

from __future__ import annotations

import numpy as np

from glassloop.decode.candidates import Candidates
from glassloop.decode.stage import Step, built_in
from glassloop.ops.vocabulary import Float64, Int32

LONGEST_MATCH = 64  # DRY looks no farther back than this: by then the penalty is past all logits


@built_in("repetition_penalty", "bias", lambda sampling: sampling.repetition_penalty != 1)
def repetition_penalty(candidates: Candidates, step: Step) -> Candidates:
    """Tokens of prompt and answer: a positive logit is divided, a negative one multiplied."""
    penalty = step.sampling.repetition_penalty

    def change(logits: Float64) -> Float64:
        return np.divide(logits, penalty, out=logits * penalty, where=logits >= 0)

    return candidates.moved(step.history.seen, change)


@built_in("presence_penalty", "bias", lambda sampling: sampling.presence_penalty)
def presence_penalty(candidates: Candidates, step: Step) -> Candidates:
    """Tokens of the answer: the same amount off each."""
    ids, _ = step.history.generated
    return candidates.moved(ids, lambda logits: logits - step.sampling.presence_penalty)


@built_in("frequency_penalty", "bias", lambda sampling: sampling.frequency_penalty)
def frequency_penalty(candidates: Candidates, step: Step) -> Candidates:
    """Tokens of the answer: an amount off for each time it came."""
    ids, counts = step.history.generated
    return candidates.moved(ids, lambda logits: logits - step.sampling.frequency_penalty * counts)


@built_in("no_repeat_ngram", "mask", lambda sampling: sampling.no_repeat_ngram_size)
def no_repeat_ngram(candidates: Candidates, step: Step) -> Candidates:
    """No token that would write n tokens in a row a second time, prompt included."""
    tokens, size = step.history.tokens, step.sampling.no_repeat_ngram_size
    starts = np.arange(len(tokens) - size + 1)
    for offset in range(size - 1):
        if not len(starts):
            return candidates
        starts = starts[tokens[starts + offset] == tokens[len(tokens) - size + 1 + offset]]
    return candidates.without(tokens[starts + size - 1]) if len(starts) else candidates


@built_in("dry", "bias", lambda sampling: sampling.dry_multiplier)
def dry(candidates: Candidates, step: Step) -> Candidates:
    """Don't repeat yourself: if the last L tokens have come before, the token that followed them then loses
    multiplier · base^(L - allowed length), where L is at least the allowed length; the longest L counts."""
    ids, lengths = _continuations(step.history.tokens, step.sampling.dry_allowed_length)
    if not len(ids):
        return candidates
    beyond = lengths - step.sampling.dry_allowed_length
    amounts = step.sampling.dry_multiplier * np.power(step.sampling.dry_base, beyond)
    return candidates.moved(ids, lambda logits: logits - amounts)


def _continuations(tokens: Int32, shortest: int) -> tuple[Int32, Float64]:
    """Tokens that would continue a repeat of at least `shortest` tokens, with the longest such repeat."""
    ends = np.arange(1, len(tokens))  # where an earlier passage may have ended: before tokens[end]
    longest: dict[int, int] = {}
    for length in range(1, max(LONGEST_MATCH, shortest) + 1):
        ends = ends[ends >= length]
        ends = ends[tokens[ends - length] == tokens[len(tokens) - length]] if len(ends) else ends
        if not len(ends):
            break
        if length >= shortest:
            longest.update(dict.fromkeys(tokens[ends].tolist(), length))
    ids = np.fromiter(longest, np.int32, len(longest))
    return ids, np.fromiter(longest.values(), np.float64, len(longest))
