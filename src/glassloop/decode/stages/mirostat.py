"""Mirostat (version 2): a cut that holds the surprise of a text near a target, by what was chosen so far."""

from __future__ import annotations

from math import inf

from glassloop.decode.chosen import Chosen
from glassloop.decode.rules import Action, Rule
from glassloop.decode.stage import Step, by_rule
from glassloop.ops.exact import exp_of

LN2 = 0.6931471805599453
_MOST_BITS = 1000.0  # with a higher bound the cut removes nothing


@by_rule("mirostat", "mask", lambda sampling: sampling.mirostat_tau, needs_record=True)
def mirostat(step: Step) -> Rule:
    """Keeps those whose surprise, in bits, is at most mu. That is twice tau at first, and each generated
    token moves it by eta times the difference of tau and the token's surprise."""
    tau, eta = step.sampling.mirostat_tau, step.sampling.mirostat_eta
    mu = step.record.fold(next_bound, 2 * tau, tau, eta)
    return Rule(Action.PROBABILITY, exp_of(-LN2 * min(max(mu, 0.0), _MOST_BITS)))


def next_bound(mu: float, chosen: Chosen, tau: float, eta: float) -> float:
    """Returns mu after a token. Its surprise is that of the recorded log-probability after all stages, so of
    what this cut and the others left. A forced token that had been removed has none, and changes nothing."""
    surprise = -chosen.logprob / LN2
    return mu - eta * (surprise - tau) if surprise < inf else mu
