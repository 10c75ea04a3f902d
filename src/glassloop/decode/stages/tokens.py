"""Stages that act on particular tokens: bias, allowed tokens, bad words, end tokens, the grammar's tokens."""

from __future__ import annotations

import numpy as np

from glassloop.decode.rules import Action, Rule
from glassloop.decode.stage import Step, by_rule

_NONE = np.empty(0, np.int32)


@by_rule("logit_bias", "bias", lambda sampling: sampling.logit_bias, fixed=True)
def logit_bias(step: Step) -> Rule:
    """Adds a number to the logits of some tokens."""
    bias = step.sampling.logit_bias
    amounts = np.fromiter(bias.values(), np.float64, len(bias))
    return Rule(Action.LESS, -1.0, np.fromiter(bias, np.int32, len(bias)), amounts)


@by_rule("allowed_tokens", "mask", lambda sampling: sampling.allowed_token_ids is not None, fixed=True)
def allowed_tokens(step: Step) -> Rule:
    """Removes all tokens but these."""
    allowed = np.zeros(step.vocab_size, np.bool_)
    allowed[list(step.sampling.allowed_token_ids or ())] = True
    return Rule(Action.KEEP, which=allowed)


@by_rule("bad_words", "mask", lambda sampling: sampling.bad_words)
def bad_words(step: Step) -> Rule:
    """Removes tokens that would complete one of these texts or sequences."""
    assert step.bad_words is not None
    return Rule(Action.REMOVE, which=step.bad_words.banned())


@by_rule("min_tokens", "mask", lambda sampling: sampling.min_tokens)
def min_tokens(step: Step) -> Rule:
    """Removes tokens that would end the text before it has `min_tokens` tokens."""
    enough = step.history.generated_length >= step.sampling.min_tokens
    return Rule(Action.REMOVE, which=_NONE if enough else step.ending_ids)


@by_rule("grammar", "mask", lambda sampling: sampling.constraint is not None)
def grammar(step: Step) -> Rule:
    """Removes tokens that the schema, expression or grammar does not allow."""
    assert step.grammar is not None
    return Rule(Action.KEEP, which=step.grammar.mask())
