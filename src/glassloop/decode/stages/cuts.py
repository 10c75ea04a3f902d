"""Stages that act on the shape of the distribution: temperature, and the ways to cut off its tail (or, with
XTC, its head). Each leaves at least one token.
"""

from __future__ import annotations

from glassloop.decode.luck import coin
from glassloop.decode.rules import Action, Rule
from glassloop.decode.stage import Step, by_rule

_NEVER = 2.0  # a probability that no token reaches


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


@by_rule("typical_p", "mask", lambda sampling: sampling.typical_p < 1, fixed=True, whole=True)
def typical_p(step: Step) -> Rule:
    """Keeps those whose surprise is closest to the entropy and that together have probability p, with all
    that are as close as the last of these."""
    return Rule(Action.TYPICAL, step.sampling.typical_p)


@by_rule("top_n_sigma", "mask", lambda sampling: sampling.top_n_sigma, fixed=True, whole=True)
def top_n_sigma(step: Step) -> Rule:
    """Keeps those whose logit is within n standard deviations of the highest."""
    return Rule(Action.SIGMA, step.sampling.top_n_sigma)


@by_rule("xtc", "mask", lambda sampling: sampling.xtc_probability, whole=True)
def xtc(step: Step) -> Rule:
    """Excludes top choices: by chance, removes all that reach the threshold but the least likely of them."""
    acts = coin(step.seed, step.salt, step.position) < step.sampling.xtc_probability
    return Rule(Action.EXCLUDE, step.sampling.xtc_threshold if acts else _NEVER)


@by_rule("eta_cutoff", "mask", lambda sampling: sampling.eta_cutoff, fixed=True, whole=True)
def eta_cutoff(step: Step) -> Rule:
    """Keeps those with at least probability min(ε, √ε · exp(-entropy))."""
    return Rule(Action.ETA, step.sampling.eta_cutoff)
