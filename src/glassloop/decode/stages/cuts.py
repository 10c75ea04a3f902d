"""Stages that act on the shape of the distribution: temperature, and the ways to cut off its tail (or, with
XTC, its head). Each leaves at least one token.
"""

from __future__ import annotations

from math import sqrt

import numpy as np

from glassloop.decode.candidates import SLACK, Candidates
from glassloop.decode.luck import coin
from glassloop.decode.rules import Action, Rule
from glassloop.decode.stage import Step, built_in, by_rule
from glassloop.ops.exact import exp, exp_of, log_of
from glassloop.ops.rows import Float64


@by_rule("temperature", "scale", lambda sampling: sampling.temperature not in (0, 1), fixed=True)
def temperature(step: Step) -> Rule:
    """Scales the logits: below 1 sharpens, above 1 flattens. 0 is greedy: no scaling, no luck."""
    return Rule(Action.SCALE, 1 / step.sampling.temperature)


@by_rule("top_k", "mask", lambda sampling: sampling.top_k, fixed=True)
def top_k(step: Step) -> Rule:
    """Keeps the k most likely; ties by lower id."""
    return Rule(Action.FIRST, step.sampling.top_k)


@by_rule("top_p", "mask", lambda sampling: sampling.top_p < 1, fixed=True)
def top_p(step: Step) -> Rule:
    """Keeps the nucleus: the fewest of the most likely that together have probability p."""
    return Rule(Action.MASS, step.sampling.top_p)


@by_rule("min_p", "mask", lambda sampling: sampling.min_p, fixed=True)
def min_p(step: Step) -> Rule:
    """Keeps those at least min_p times as likely as the likeliest."""
    return Rule(Action.SHARE, step.sampling.min_p)


@by_rule("epsilon_cutoff", "mask", lambda sampling: sampling.epsilon_cutoff, fixed=True)
def epsilon_cutoff(step: Step) -> Rule:
    """Keeps those with at least this probability."""
    return Rule(Action.PROBABILITY, step.sampling.epsilon_cutoff)


@built_in("typical_p", "mask", lambda sampling: sampling.typical_p < 1)
def typical_p(candidates: Candidates, step: Step) -> Candidates:
    """Keeps those whose surprise is closest to the entropy and that together have probability p, with all
    that are as close as the last of these."""
    ids, logits = candidates.everyone()
    surprise = _surprise(logits)
    masses = exp(-surprise)
    distance = np.abs(surprise - float((masses * surprise).sum()))
    order = np.argsort(distance, kind="stable")
    last = int(np.searchsorted(np.cumsum(masses[order]), step.sampling.typical_p - SLACK))
    border = distance[order[min(last, len(order) - 1)]]
    kept = np.zeros(candidates.vocab_size, np.bool_)
    kept[ids[distance <= border]] = True
    return candidates.only(kept)


@built_in("top_n_sigma", "mask", lambda sampling: sampling.top_n_sigma)
def top_n_sigma(candidates: Candidates, step: Step) -> Candidates:
    """Keeps those whose logit is within n standard deviations of the highest."""
    _, logits = candidates.everyone()
    return candidates.at_least(float(candidates.values[0]) - step.sampling.top_n_sigma * float(logits.std()))


@built_in("xtc", "mask", lambda sampling: sampling.xtc_probability)
def xtc(candidates: Candidates, step: Step) -> Candidates:
    """Excludes top choices: by chance, removes all that reach the threshold but the least likely of them."""
    if coin(step.seed, step.salt, step.position) >= step.sampling.xtc_probability:
        return candidates
    border = candidates.logit_of(step.sampling.xtc_threshold)
    if candidates.values[0] < border:
        return candidates
    return candidates.without(candidates.at_least(border).ids[:-1])


@built_in("eta_cutoff", "mask", lambda sampling: sampling.eta_cutoff)
def eta_cutoff(candidates: Candidates, step: Step) -> Candidates:
    """Keeps those with at least probability min(ε, √ε · exp(-entropy))."""
    epsilon = step.sampling.eta_cutoff
    border = min(epsilon, sqrt(epsilon) * exp_of(-entropy(candidates)))
    return candidates.at_least(candidates.logit_of(border))


def entropy(candidates: Candidates) -> float:
    """Returns the entropy of the survivors, in nats."""
    _, logits = candidates.everyone()
    surprise = _surprise(logits)
    return float((exp(-surprise) * surprise).sum())


def _surprise(logits: Float64) -> Float64:
    """Returns minus the log-probabilities of all survivors, with full precision: near the uniform
    distribution the differences that typical-p depends on are far smaller than the values."""
    below: Float64 = logits.max() - logits
    return below + log_of(float(exp(-below).sum()))
