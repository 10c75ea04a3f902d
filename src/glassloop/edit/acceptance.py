"""How a proposal is accepted: by Metropolis–Hastings, or by a rule that takes the best if it pays.

All draws of an edit are hashes of its seed and the number of the step (docs/luck.md), so an edit that is made
again draws the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf, log
from typing import NamedTuple

from glassloop.decode.luck import coin, fork_salt
from glassloop.edit.proposal import Proposal
from glassloop.record.run import Run
from glassloop.record.token import Token

_EDIT_MARK = 0x65646974  # "edit": keeps these draws apart from those of other runs with the same seed


@dataclass(frozen=True)
class EditLuck:
    """The draws of an edit: the luck of its proposals, the choice of places, and the acceptance."""

    seed: int

    def salt(self, step: int, number: int) -> int:
        """Returns the salt for the luck of proposal `number` of a step."""
        return fork_salt(_EDIT_MARK, step, 1 + number)

    def coin(self, step: int, number: int = 0) -> float:
        """Returns draw `number` of a step: a number between 0 and 1."""
        return coin(self.seed, fork_salt(_EDIT_MARK, step, 0), number)

    def below(self, bound: int, step: int, number: int = 0) -> int:
        """Returns a whole number from 0 to `bound` - 1."""
        return min(int(self.coin(step, number) * bound), bound - 1)


# ── Metropolis–Hastings ────────────────────────────────────────────────────────────────────────────────────


class Acceptance(NamedTuple):
    """One decision of Metropolis–Hastings: accepted if the coin is below the probability."""

    probability: float
    coin: float

    @property
    def accepted(self) -> bool:
        return self.coin < self.probability


def metropolis(log_ratio: float, coin: float) -> Acceptance:
    """Returns the decision that accepts with probability min(1, e^log_ratio), by the draw `coin`.

    `log_ratio` is log [target(new) · q(old | new)] - log [target(old) · q(new | old)].
    """
    return Acceptance(exp(min(0.0, log_ratio)), coin)


def note_acceptance(proposal: Proposal, acceptance: Acceptance) -> None:
    """Sets the decision of a proposal."""
    proposal.threshold, proposal.coin = acceptance
    proposal.accepted = acceptance.accepted
    proposal.why = f"probability {proposal.threshold:.3g}, drew {proposal.coin:.3g}"


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
    `new_drawn` those of the span after the stages of the draw. A span that the stages can never draw is never
    returned to, so the ratio is zero.
    """
    forward = sum(token.logprob for token in new_drawn)
    back = sum(token.logprob for token in old_drawn)
    if back == -inf:
        return -inf
    return alpha * (logprob(new) - logprob(old)) + back - forward


def logprob(tokens: Sequence[Token]) -> float:
    """Returns the log-probability of tokens under the model's own distribution."""
    return sum(token.raw_logprob for token in tokens)


def span_chain(
    proposals: Sequence[Proposal],
    old: Sequence[Token],
    old_drawn: Sequence[Token],
    luck: EditLuck,
    first: Proposal | None = None,
) -> Proposal | None:
    """Runs one step of Metropolis–Hastings for each proposal, in order. They were drawn together, which is
    exact since no draw depends on the text that it would replace. Returns the last accepted one, or None.

    `old` is the present span with what follows it; `old_drawn` the span under the stages of the draw. If
    there is none, the chain begins with the proposal `first`.
    """
    current = first
    for proposal in proposals:
        if proposal.run is None or proposal.drawn is None or proposal is first:
            continue
        if current is not None:  # the chain has moved on: this one would replace the accepted one
            assert current.run is not None and current.drawn is not None
            old, old_drawn = _scored(current), current.drawn.tokens
            proposal.old_text = current.text
            proposal.old_own_bits, proposal.old_following_bits = current.own_bits, current.following_bits
        ratio = log_ratio(old, _scored(proposal), old_drawn, proposal.drawn.tokens)
        note_acceptance(proposal, metropolis(ratio, luck.coin(proposal.step, proposal.number)))
        if proposal.accepted:
            current = proposal
    return current


def _scored(proposal: Proposal) -> list[Token]:
    run = proposal.run
    assert run is not None
    return run.tokens[proposal.start : proposal.start + len(proposal.ids) + proposal.followed]


class SuffixChain:
    """Power sampling: a chain of Metropolis–Hastings over whole texts, whose limit is p^alpha.

    Each step chooses a token of the current text; the caller draws the text again from there, and the chain
    accepts or refuses the new text.
    """

    def __init__(self, luck: EditLuck, alpha: float, current: Run, step: int = 0) -> None:
        self.luck = luck
        self.alpha = alpha
        self.current = current
        self.step = step  # the number of the next step, on which the draws depend

    def place(self) -> int:
        """Returns the token from which the text is to be drawn again in this step."""
        return self.luck.below(len(ended(self.current)), self.step, 1)

    def decide(self, new: Run, at: int) -> Acceptance:
        """Decides about a text that was drawn again from the token `at` on. An accepted one becomes the
        current text."""
        ratio = suffix_ratio(self.current, new, at, self.alpha)
        decision = metropolis(ratio, self.luck.coin(self.step))
        if decision.accepted:
            self.current = new
        return decision


def suffix_ratio(old: Run, new: Run, at: int, alpha: float) -> float:
    """Returns the logarithm of the ratio of Metropolis–Hastings for a suffix that was drawn again from the
    token `at` on, where `at` was chosen uniformly among the tokens of the old text."""
    old_tokens, new_tokens = ended(old), ended(new)
    old_suffix, new_suffix = old_tokens[at:], new_tokens[at:]
    ratio = log_ratio(old_suffix, new_suffix, old_suffix, new_suffix, alpha=alpha)
    # The place is chosen among as many tokens as the text has, which is not the same on the way back.
    return ratio + log(len(old_tokens)) - log(len(new_tokens))


def ended(run: Run) -> list[Token]:
    """Returns all tokens of a run that were drawn, the one that ended it included."""
    return run.tokens if run.end is None else [*run.tokens, run.end]


# ── the best, if it pays ───────────────────────────────────────────────────────────────────────────────────


def best_by_bits(proposals: Sequence[Proposal]) -> Proposal | None:
    """Accepts the proposal that needs the fewest bits, with what follows it. Returns it, or None if none was
    scored."""
    scored = [proposal for proposal in proposals if proposal.run is not None]
    if not scored:
        return None
    best = min(scored, key=lambda proposal: proposal.bits)  # the first, if several are equal
    best.accepted, best.why = True, f"best of {len(scored)}"
    return best


def best_by_gain(proposals: Sequence[Proposal], least_gain: float) -> Proposal | None:
    """Accepts a proposal that saves at least `least_gain` bits and does not make what follows less likely.

    Unlike the bits, the gain can be compared between replacements of spans of different lengths. Of those
    that save at least half as many bits as the best, one that replaces the fewest tokens is taken: longer
    ones save bits by saying less. Returns it, or None.
    """
    scored = [proposal for proposal in proposals if proposal.run is not None and proposal.following_gain >= 0]
    best = max(scored, key=lambda proposal: proposal.gain, default=None)
    if best is None:
        return None
    if best.gain < least_gain:
        best.why = f"best of {len(scored)}, but gains less than {least_gain:g} bits"
        return None
    enough = max(least_gain, best.gain / 2)
    paying = [proposal for proposal in scored if proposal.gain >= enough]
    taken = min(paying, key=lambda proposal: (proposal.end - proposal.start, -proposal.gain))
    taken.accepted, taken.why = True, f"the shortest that pays, of {len(scored)}"
    return taken
