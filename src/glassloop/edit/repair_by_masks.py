"""Repair by masks: finds single tokens that a writer from left to right got wrong, and what should stand in
their place.

What such a writer gets wrong looked right from the left, so the surprise of a token given the text before it
says little about it. By Bayes' rule, the odds that the token x stands where c should stand are

    p(c | both sides) / p(x | both sides) · p(x is written | there is a mistake)

With p(y | both sides) ~ p(y | left) · p(what follows | left, y), and mistakes that are written as often as
they are likely from the left, p(x | left) cancels. What remains is the evidence for c: how likely it is in
this place, and how much likelier than x it makes what follows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from glassloop.decode.sampling import Sampling
from glassloop.edit.masks import STRIDE, Surprise, look
from glassloop.edit.proposal import Place, Proposal
from glassloop.edit.repair_options import BY_MASKS, RepairOptions
from glassloop.edit.spans import apart, borders
from glassloop.edit.work import EditWork
from glassloop.record.run import Run

_DOUBTED = 3.3  # bits to the masked model, from which on a token may be a mistake
_LIKELIER = 0.7  # bits that a candidate must save to the masked model
_UNLIKELY = 7.0  # bits to the masked model, from which on a token is no candidate
_FROM_LEFT = 2  # candidates that are the likeliest tokens from the left
_MASKED_SHARE = 0.6  # of the masked model in how likely a candidate is; the rest is from the left
_SECOND_LOOK = 6  # one token in so many, those with the most evidence, is looked at a second time
_NEW = 4  # likeliest tokens of the second look that become candidates
_KNOWN = 32  # likeliest tokens of the first look that are remembered for the second one
_APART = 3  # tokens between two replacements of one round, at least
_NEARLY = 4.3  # bits that the evidence may lack for a token to be measured again in the next round
_AROUND = 8  # tokens on each side of a replacement that are measured again
_AT_ONCE = 64  # branches that are scored in one batch


@dataclass(frozen=True)
class _Limits:
    """What a repair by masks may do."""

    budget: int  # computed tokens
    candidates: int  # for each token, in the first look
    window: int  # tokens after a token that count as what follows
    least: float  # bits of evidence
    spans: int | None  # replacements in one round; None: all that pay
    allowed: frozenset[int] | None  # tokens that may be proposed; None: all


def evidence(proposal: Proposal) -> float:
    """Returns the logarithm, to base 2, of how much likelier it is that the proposed token should stand in
    its place than that the text is right there, but for a constant: how rare mistakes are."""
    masked = 0.0 if proposal.masked_bits is None else proposal.masked_bits
    return proposal.following_gain - _MASKED_SHARE * masked - (1 - _MASKED_SHARE) * proposal.own_bits


def repair_by_masks(
    work: EditWork, draft: Run, sampling: Sampling, options: RepairOptions
) -> tuple[Run, list[Proposal]]:
    """Replaces single tokens in rounds, until there is not enough evidence for any or the budget is spent.

    Returns the text after and all proposals. A round measures the tokens that may be mistakes and replaces
    those with enough evidence, the surest first and no two close together: a right token beside a mistake
    looks wrong until the mistake is gone. The next round measures what is around the replacements, and what
    had nearly enough evidence. A token is replaced once at most.
    """
    budget = options.budget_for(BY_MASKS, len(draft.tokens))
    allowed = None if sampling.allowed_token_ids is None else frozenset(sampling.allowed_token_ids)
    limits = _Limits(budget, options.candidates, options.window, options.least_gain, options.spans, allowed)
    current, proposals, step = draft, list[Proposal](), 0
    places, replaced = set(range(len(draft.tokens))), set[int]()
    while work.tokens < limits.budget and places:
        measured = _measured(work, current, sorted(places), limits, step)
        step += len(current.tokens)
        proposals += [proposal for at_place in measured.values() for proposal in at_place]
        best = {
            at: max(scored, key=evidence)
            for at, at_place in measured.items()
            if (scored := [proposal for proposal in at_place if proposal.run is not None])
        }
        surest = sorted(best, key=lambda at: -evidence(best[at]))
        paying = [at for at in surest if evidence(best[at]) >= limits.least]
        free = apart([Place(current, at, at + 1, 1, step) for at in paying], _APART)
        accepted = [best[place.start] for place in free[: limits.spans]]
        for at, each in best.items():
            _decide(measured[at], each, each in accepted, limits.least)
        if not accepted:
            break
        current = _replaced(work, current, accepted)
        replaced |= {each.start for each in accepted}
        around = {at for each in accepted for at in range(each.start - _AROUND, each.end + _AROUND)}
        nearly = {at for at, each in best.items() if evidence(each) >= limits.least - _NEARLY}
        places = ((around | nearly) & set(range(len(current.tokens)))) - replaced
    return current, proposals


def _replaced(work: EditWork, run: Run, accepted: Sequence[Proposal]) -> Run:
    """Returns a fork of the text with all accepted replacements. It becomes the branch of each of them."""
    ids = run.token_ids
    for each in accepted:
        ids[each.start] = each.ids[0]
    first = min(each.start for each in accepted)
    request = work.branch(run, first, ids[first:])
    work.complete([request])
    for each in accepted:
        each.run = request.runs[0]
    return request.runs[0]


def _decide(proposals: Sequence[Proposal], best: Proposal, accepted: bool, least: float) -> None:
    """Says of the proposals for a token why each is accepted or refused."""
    for each in proposals:
        if each.run is None:
            continue
        weighed = f"evidence {evidence(each):+.1f} bits"
        if each is not best:
            each.why = f"{weighed}, less than for {best.text!r}"
        elif accepted:
            each.accepted, each.why = True, f"{weighed}, {_looks(each)}"
        elif evidence(each) < least:
            each.why = f"{weighed}, {least:g} are expected"
        else:
            each.why = f"{weighed}, but close to a surer one, which is replaced first"


def _looks(proposal: Proposal) -> str:
    return f"{proposal.masked_bits:.1f} bits to a mask there, and {proposal.old_masked_bits:.1f} for the old"


def _measured(
    work: EditWork, run: Run, places: Sequence[int], limits: _Limits, step: int
) -> dict[int, list[Proposal]]:
    """Returns scored proposals for the places whose token may be a mistake."""
    cuts = borders(work, run)
    whole = [at for at in places if cuts[at] and cuts[at + 1]]
    from_left = {
        at: [each.id for each in run.tokens[at].alternatives if each.id != run.tokens[at].id][:_FROM_LEFT]
        for at in whole
    }
    passes = max(2, -(-STRIDE * len(whole) // len(run.tokens)))  # one token in six is masked, or fewer
    surprise = look(work, run, whole, from_left, passes, _KNOWN)
    ids, wanted = run.token_ids, dict[int, list[int]]()
    for at in whole:
        present_bits = surprise[at][ids[at]]
        if present_bits >= _DOUBTED:
            most = min(present_bits - _LIKELIER, _UNLIKELY)
            better = [token for token, bits in surprise[at].items() if bits <= most]
            count = max(1, limits.candidates - len(from_left[at]))
            wanted[at] = [*dict.fromkeys((*better[:count], *from_left[at]))][: limits.candidates]
    doubted = sorted(wanted, key=lambda at: -surprise[at][ids[at]])
    proposals = {at: list[Proposal]() for at in sorted(wanted)}
    _score(work, run, doubted, wanted, proposals, limits, step)
    for at, at_place in proposals.items():
        _note(at_place, ids[at], [surprise[at]])
    return _second_look(work, run, surprise, proposals, limits, step)


def _second_look(
    work: EditWork,
    run: Run,
    surprise: dict[int, Surprise],
    proposals: dict[int, list[Proposal]],
    limits: _Limits,
    step: int,
) -> dict[int, list[Proposal]]:
    """Looks a second time at the tokens with the most evidence, with every other one of them masked: fewer
    masks, and fewer mistakes around them. It adds the tokens that are likeliest now to their proposals."""
    scored = {at: [each for each in proposals[at] if each.run is not None] for at in proposals}
    by_evidence = sorted(
        (at for at in scored if scored[at]), key=lambda at: -max(evidence(each) for each in scored[at])
    )
    suspects = sorted(by_evidence[: max(1, len(run.tokens) // _SECOND_LOOK)])
    ids = run.token_ids
    proposed_ids = {at: [each.ids[0] for each in proposals[at]] for at in suspects}
    again = look(work, run, suspects, proposed_ids, 2, _NEW)
    new = {
        at: [token for token in again[at] if token != ids[at] and token not in proposed_ids[at]]
        for at in suspects
    }
    _score(work, run, suspects, new, proposals, limits, step)
    for at in suspects:
        _note(proposals[at], ids[at], [surprise[at], again[at]])
    return proposals


def _score(
    work: EditWork,
    run: Run,
    places: Iterable[int],
    wanted: dict[int, list[int]],
    proposals: dict[int, list[Proposal]],
    limits: _Limits,
    step: int,
) -> None:
    """Adds scored proposals, in batches, until the budget is spent."""
    batch: list[tuple[Place, list[Proposal]]] = []
    never = {work.llm.mask.token, *work.llm.tokenizer.eos_ids}
    places = [at for at in places if wanted[at]]
    for count, at in enumerate(places, 1):
        place = Place(run, at, at + 1, 1, step + at)
        allowed = [
            token
            for token in wanted[at]
            if token not in never and (limits.allowed is None or token in limits.allowed)
        ]
        first = len(proposals[at])
        new = [work.proposal(place, number, None, [token]) for number, token in enumerate(allowed, first)]
        proposals[at] += new
        batch.append((place, new))
        if count == len(places) or sum(len(each) for _, each in batch) >= _AT_ONCE:
            work.score_all([each for each, _ in batch], [each for _, each in batch], limits.window)
            batch = []
            if work.tokens >= limits.budget:
                break


def _note(proposals: Sequence[Proposal], old: int, looks: Sequence[Surprise]) -> None:
    """Sets what the masked model thinks of proposals and of the old token: the mean over the looks."""
    for each in proposals:
        each.masked_bits = sum(_bits_of(each.ids[0], bits) for bits in looks) / len(looks)
        each.old_masked_bits = sum(bits[old] for bits in looks) / len(looks)


def _bits_of(token: int, bits: Surprise) -> float:
    """Returns the surprise of a token, or, if it is not among the known ones, that of the last of the
    likeliest: it has at least as much."""
    return bits[token] if token in bits else sorted(bits.values())[min(_KNOWN, len(bits)) - 1]
