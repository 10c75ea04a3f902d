"""Repair by surprise: the tokens that are most surprising given both sides are drawn again.

From the left, a token's surprise is -log2 p(token | what comes before). From both sides it is how much less
likely the token is than the best of its rivals once what follows is counted too: a token that is unexpected
but right makes its continuation likely, and a wrong one does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import log

import numpy as np

from glassloop.decode.sampling import Sampling
from glassloop.edit.acceptance import best_by_gain
from glassloop.edit.proposal import Place, Proposal, bits
from glassloop.edit.repair_options import BY_SURPRISE, RepairOptions
from glassloop.edit.span_draws import propose
from glassloop.edit.spans import apart, apply, borders, whole_characters
from glassloop.edit.work import EditWork
from glassloop.record.run import Run

RIVALS = 4  # tokens that each token is compared with: those that the model finds likeliest there
_AT_ONCE = 64  # branches that are scored in one batch
_SCREENED = 48  # tokens whose surprise is measured from both sides in a round, at most
_UNEXPECTED = 4.0  # bits from the left, from which on a token is measured from both sides
_SUSPICIOUS = 6.0  # bits from both sides, from which on a token is drawn again
_NARROW = 2  # tokens of the narrower of the two spans that are drawn again


def repair_by_surprise(
    work: EditWork, draft: Run, sampling: Sampling, options: RepairOptions
) -> tuple[Run, list[Proposal]]:
    """Replaces surprising spans in rounds, until none pays or the budget is spent. Returns the text after and
    all proposals."""
    budget = options.budget_for(BY_SURPRISE, len(draft.tokens))
    current, proposals, step = draft, list[Proposal](), 0
    settled: set[int] = set()  # places where no replacement is an improvement
    while work.tokens < budget:
        cuts = borders(work, current)
        suspects = _screened(current, left_bits(current), settled, cuts)
        if not suspects:
            break
        measured = sorted(measure(work, current, suspects, options.window, step), key=lambda it: -it.both)
        step += len(suspects)
        settled |= {each.place.start for each in measured if each.both < _SUSPICIOUS}
        worst = [each for each in measured if each.both >= _SUSPICIOUS]
        wide = [_widened(each, options.tokens, cuts) for each in worst]
        together = apart(wide, options.window)[: options.spans]
        if not together:
            continue
        drawn = propose(work, together, sampling, options.candidates, ranked=True)
        narrow = [
            _narrow(work, place, proposed, cuts) for place, proposed in zip(together, drawn, strict=True)
        ]
        spans = [*together, *(place for place, _ in narrow)]
        work.score_all(spans, [*drawn, *(proposed for _, proposed in narrow)], options.window)
        accepted = []
        for place, proposed, (_, shorter) in zip(together, drawn, narrow, strict=True):
            single = next(each for each in worst if each.place.step == place.step)
            all_of_them = [*single.proposals, *shorter, *proposed]
            for number, each in enumerate(all_of_them):
                each.number = number
            best = best_by_gain(all_of_them, options.least_gain)
            proposals += all_of_them
            if best is None:
                settled.add(single.place.start)
            else:
                accepted.append(best)
        if accepted:
            current = apply(work, current.token_ids, accepted)
            settled = _moved(settled, accepted)
    return current, proposals


def _screened(run: Run, surprise: Sequence[float], settled: set[int], cuts: Sequence[bool]) -> list[int]:
    """Returns the tokens with the highest surprise that are not settled, as far as they may be replaced by
    themselves and are not what the model would have said."""
    open_places = [
        at
        for at, token in enumerate(run.tokens)
        if at not in settled and token.rank > 1 and cuts[at] and cuts[at + 1]
    ]
    worst = sorted(open_places, key=lambda at: -surprise[at])[:_SCREENED]
    return [at for at in worst if surprise[at] >= _UNEXPECTED]


def _widened(measured: SurprisingToken, tokens: int, cuts: Sequence[bool]) -> Place:
    place = measured.place
    start, end = whole_characters(cuts, place.start, min(place.start + tokens, len(cuts) - 1))
    return replace(place, start=start, end=end, tokens=end - start)


def _narrow(
    work: EditWork, place: Place, drawn: Sequence[Proposal], cuts: Sequence[bool]
) -> tuple[Place, list[Proposal]]:
    """Returns the beginnings of the draws for a span as proposals for the beginning of the span."""
    start, end = whole_characters(cuts, place.start, min(place.start + _NARROW, place.end))
    short = replace(place, end=end, tokens=end - start)
    shortened: dict[tuple[int, ...], Proposal] = {}
    for each in drawn:
        ids = each.ids[: short.tokens]
        if short.tokens < place.tokens and (*ids,) not in shortened:
            shortened[(*ids,)] = work.proposal(short, len(shortened), each.drawn, ids)
    return short, list(shortened.values())


def _moved(settled: set[int], accepted: Sequence[Proposal]) -> set[int]:
    """Returns the settled places of the text after replacements, without those that were replaced."""
    kept = {at for at in settled if not any(each.start <= at < each.end for each in accepted)}

    def shift(at: int) -> int:
        return sum(len(each.ids) - (each.end - each.start) for each in accepted if each.end <= at)

    return {at + shift(at) for at in kept}


# ── surprise ───────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(eq=False)
class SurprisingToken:
    """The surprise of one token, and its rivals as proposals, scored."""

    place: Place
    left: float  # bits
    both: float  # bits
    proposals: list[Proposal]


def left_bits(run: Run) -> list[float]:
    """Returns the surprise of each token of a run given those before it."""
    return [bits(run, at, at + 1) for at in range(len(run.tokens))]


def measure(
    work: EditWork, run: Run, positions: Sequence[int], window: int, step: int, rivals: int = RIVALS
) -> Iterator[SurprisingToken]:
    """Yields the surprise from both sides of tokens of a run: -log2 of the probability of the token among
    its rivals, each with `window` tokens after it. The steps of the proposals count from `step`."""
    group = max(1, _AT_ONCE // rivals)
    for first in range(0, len(positions), group):
        places = [
            Place(run, at, at + 1, 1, step + first + number)
            for number, at in enumerate(positions[first : first + group])
        ]
        proposals = [work.alternatives(place, rivals) for place in places]
        work.score_all(places, proposals, window)
        for place, scored in zip(places, proposals, strict=True):
            left = bits(run, place.start, place.start + 1)
            here = left + bits(run, place.end, place.end + window)
            others = [proposal.bits for proposal in scored if proposal.run is not None]
            total = np.logaddexp.reduce([-each * log(2) for each in (here, *others)]) / log(2)
            yield SurprisingToken(place, left, here + float(total), scored)
