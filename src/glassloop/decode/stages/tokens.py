"""Stages about named tokens: bias, which are allowed, which never come, and what the grammar has room for."""

from __future__ import annotations

import numpy as np

from glassloop.decode.candidates import Candidates
from glassloop.decode.stage import Step, built_in


@built_in("logit_bias", "bias", lambda sampling: sampling.logit_bias)
def logit_bias(candidates: Candidates, step: Step) -> Candidates:
    """A number is added to the logits of some tokens."""
    bias = step.sampling.logit_bias
    amounts = np.fromiter(bias.values(), np.float64, len(bias))
    return candidates.moved(np.fromiter(bias, np.int32, len(bias)), lambda logits: logits + amounts)


@built_in("allowed_tokens", "mask", lambda sampling: sampling.allowed_token_ids is not None)
def allowed_tokens(candidates: Candidates, step: Step) -> Candidates:
    """No token but these."""
    allowed = np.zeros(candidates.vocab_size, np.bool_)
    allowed[list(step.sampling.allowed_token_ids or ())] = True
    return candidates.only(allowed)


@built_in("bad_words", "mask", lambda sampling: sampling.bad_words)
def bad_words(candidates: Candidates, step: Step) -> Candidates:
    """No token that would complete one of these texts or sequences."""
    assert step.bad_words is not None
    return candidates.without(step.bad_words.banned(step.history.tokens))


@built_in("min_tokens", "mask", lambda sampling: sampling.min_tokens)
def min_tokens(candidates: Candidates, step: Step) -> Candidates:
    """No token that would end the text before it has so many."""
    if step.history.generated_length >= step.sampling.min_tokens:
        return candidates
    return candidates.without(step.ending_ids)


@built_in("grammar", "mask", lambda sampling: sampling.constraint is not None)
def grammar(candidates: Candidates, step: Step) -> Candidates:
    """No token that the schema, expression or grammar has no room for."""
    assert step.grammar is not None
    return candidates.only(step.grammar.mask())
