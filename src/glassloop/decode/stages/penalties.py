"""Stages against repetition: they make tokens less likely that would repeat earlier ones."""

from __future__ import annotations

import numpy as np

from glassloop.decode.rules import Action, Rule
from glassloop.decode.stage import Step, by_rule
from glassloop.ops.rows import Float64, Int32

LONGEST_MATCH = 64  # DRY compares no more tokens than this; the penalty then exceeds all logits


@by_rule("repetition_penalty", "bias", lambda sampling: sampling.repetition_penalty != 1)
def repetition_penalty(step: Step) -> Rule:
    """Penalizes tokens of prompt and answer: divides positive logits, multiplies negative ones."""
    return Rule(Action.DIVIDE, step.sampling.repetition_penalty, step.history.seen)


@by_rule("presence_penalty", "bias", lambda sampling: sampling.presence_penalty)
def presence_penalty(step: Step) -> Rule:
    """Subtracts the same amount from each token of the answer."""
    ids, _ = step.history.generated
    return Rule(Action.LESS, step.sampling.presence_penalty, ids)


@by_rule("frequency_penalty", "bias", lambda sampling: sampling.frequency_penalty)
def frequency_penalty(step: Step) -> Rule:
    """Subtracts an amount from each token of the answer for each time that it occurs."""
    return Rule(Action.LESS, step.sampling.frequency_penalty, *step.history.generated)


@by_rule("no_repeat_ngram", "mask", lambda sampling: sampling.no_repeat_ngram_size)
def no_repeat_ngram(step: Step) -> Rule:
    """Removes tokens that would repeat a sequence of n tokens, of the prompt or the answer."""
    tokens, size = step.history.tokens, step.sampling.no_repeat_ngram_size
    starts = np.arange(len(tokens) - size + 1)
    for offset in range(size - 1):
        if not len(starts):
            break
        starts = starts[tokens[starts + offset] == tokens[len(tokens) - size + 1 + offset]]
    return Rule(Action.REMOVE, which=tokens[starts + size - 1])


@by_rule("dry", "bias", lambda sampling: sampling.dry_multiplier)
def dry(step: Step) -> Rule:
    """Don't repeat yourself: if the last L tokens have occurred before, the token that followed them then
    loses multiplier · base^(L - allowed length), where L is at least the allowed length; the longest L
    counts."""
    ids, lengths = _continuations(step.history.tokens, step.sampling.dry_allowed_length)
    beyond = (lengths - step.sampling.dry_allowed_length).astype(np.int64)
    # One product after another: NumPy's power has other last bits on other processors.
    powers = np.cumprod([1.0, *[step.sampling.dry_base] * int(beyond.max(initial=0))], dtype=np.float64)
    amounts = step.sampling.dry_multiplier * powers[beyond]
    return Rule(Action.LESS, 1.0, ids, amounts)


def _continuations(tokens: Int32, shortest: int) -> tuple[Int32, Float64]:
    """Returns the tokens that would continue a repeat of `shortest` tokens or more, with its length."""
    ends = np.arange(1, len(tokens))  # possible ends of an earlier occurrence: before tokens[end]
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
