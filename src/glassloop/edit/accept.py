"""How a proposal is accepted: by Metropolis–Hastings, or by a rule that takes the best if it pays."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, inf, log

from glassloop.edit.dice import Dice
from glassloop.edit.proposal import Proposal
from glassloop.record.run import Run
from glassloop.record.token import Token


def metropolis(proposal: Proposal, log_ratio: float, coin: float) -> bool:
    """Decides a proposal: it is accepted with probability min(1, e^log_ratio), by the draw `coin`.

    `log_ratio` is log [target(new) · q(old | new)] - log [target(old) · q(new | old)].
    """
    proposal.threshold = exp(min(0.0, log_ratio))
    proposal.coin = coin
    proposal.accepted = coin < proposal.threshold
    proposal.why = f"probability {proposal.threshold:.3g}, drew {coin:.3g}"
    return proposal.accepted


def log_ratio(
    old: Sequence[Token],
    new: Sequence[Token],
    old_drawn: Sequence[Token],
    new_drawn: Sequence[Token],
    alpha: float = 1.0,
) -> float:
    """Returns the logarithm of the ratio of Metropolis–Hastings for a replacement that was drawn without
    regard to what it replaces: alpha times the gain in log-probability of the span and of what follows,
    corrected by how likely each of the two is to be drawn.

    `old` and `new` have the model's own log-probabilities, of the span and of what follows; `old_drawn` and
    `new_drawn` those of the span after the stages of the draw. What the stages can never draw is never gone
    back to, so the ratio is zero.
    """
    forward = sum(token.logprob for token in new_drawn)
    back = sum(token.logprob for token in old_drawn)
    if back == -inf:
        return -inf
    return alpha * (logprob(new) - logprob(old)) + back - forward


def logprob(tokens: Sequence[Token]) -> float:
    """Returns the log-probability of tokens under the model's own distribution."""
    return sum(token.raw_logprob for token in tokens)


def best_by_bits(proposals: Sequence[Proposal], least_gain: float | None) -> Proposal | None:
    """Accepts the proposal that needs the fewest bits, with what follows it, if it gains at least
    `least_gain` bits; with None, in any case. Returns it, or None."""
    scored = [each for each in proposals if each.run is not None]
    if not scored:
        return None
    best = min(scored, key=lambda each: each.bits)  # the first, if several are equal
    if least_gain is not None and best.gain < least_gain:
        best.why = f"best of {len(scored)}, but gains less than {least_gain:g} bits"
        return None
    best.accepted = True
    best.why = f"best of {len(scored)}"
    return best


def best_by_gain(proposals: Sequence[Proposal], least_gain: float) -> Proposal | None:
    """Accepts a proposal that saves at least `least_gain` bits and does not make what follows less likely.

    Unlike the bits, the gain can be compared between replacements of spans of different lengths. Of those
    that save at least half as many bits as the best, one that replaces the fewest tokens is taken: longer
    ones save bits by saying less. Returns it, or None.
    """
    scored = [each for each in proposals if each.run is not None and each.following_gain >= 0]
    best = max(scored, key=lambda each: each.gain, default=None)
    if best is None:
        return None
    if best.gain < least_gain:
        best.why = f"best of {len(scored)}, but gains less than {least_gain:g} bits"
        return None
    enough = max(least_gain, best.gain / 2)
    paying = [each for each in scored if each.gain >= enough]
    taken = min(paying, key=lambda each: (each.end - each.start, -each.gain))
    taken.accepted, taken.why = True, f"the shortest that pays, of {len(scored)}"
    return taken


def chain(
    proposals: Sequence[Proposal],
    old: Sequence[Token],
    old_drawn: Sequence[Token],
    dice: Dice,
    alpha: float,
    first: Proposal | None = None,
) -> Proposal | None:
    """Runs one step of Metropolis–Hastings for each proposal, in order. They were drawn together, which is
    exact since no draw depends on the text that it would replace. Returns the last accepted one, or None.

    `old` is the span as it is with what follows it; `old_drawn` the span under the stages of the draw. If
    there is none, the chain begins with the proposal `first`.
    """
    current = first
    for each in proposals:
        if each.run is None or each.drawn is None or each is first:
            continue
        if current is not None:  # the chain has moved on: this one would replace the accepted one
            assert current.run is not None and current.drawn is not None
            old, old_drawn = _scored(current), current.drawn.tokens
            each.old_text = current.text
            each.old_own_bits, each.old_following_bits = current.own_bits, current.following_bits
        ratio = log_ratio(old, _scored(each), old_drawn, each.drawn.tokens, alpha=alpha)
        if metropolis(each, ratio, dice.coin(each.step, each.number)):
            current = each
    return current


def _scored(proposal: Proposal) -> list[Token]:
    run = proposal.run
    assert run is not None
    return run.tokens[proposal.start : proposal.start + len(proposal.ids) + proposal.followed]


def suffix_ratio(old: Run, new: Run, at: int, alpha: float) -> float:
    """Returns the logarithm of the ratio of Metropolis–Hastings for a suffix that was drawn anew from the
    token `at` on, where `at` was chosen uniformly among the tokens of the old text."""
    one, other = ended(old), ended(new)
    ratio = log_ratio(one[at:], other[at:], one[at:], other[at:], alpha=alpha)
    # The place is chosen among as many tokens as the text has, which is not the same on the way back.
    return ratio + log(len(one)) - log(len(other))


def ended(run: Run) -> list[Token]:
    """Returns all tokens of a run that were drawn, the one that ended it included."""
    return run.tokens if run.end is None else [*run.tokens, run.end]
