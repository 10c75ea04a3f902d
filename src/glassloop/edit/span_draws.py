"""Draws proposals for spans of a text: from the left, or by filling masks that see both sides.

A proposal from the left is drawn by a request of its own, whose prompt is the text before the span, so that
constraints and penalties see the span alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from glassloop.decode.diffusion import Diffusion
from glassloop.decode.grammar import Grammar
from glassloop.decode.sampling import Sampling
from glassloop.edit.masks import fill_place
from glassloop.edit.proposal import Place, Proposal
from glassloop.edit.work import EditWork
from glassloop.engine.request import Request
from glassloop.record.run import Run

_MOST_ENDINGS = 3  # of a draw under a constraint that are proposed


def propose(
    work: EditWork,
    places: Sequence[Place],
    sampling: Sampling,
    candidates: int,
    *,
    ranked: bool = False,
    diffusion: Diffusion | None = None,
) -> list[list[Proposal]]:
    """Draws replacements for one or more spans, in one batch; with `diffusion`, by filling masks that see
    both sides of a span, one span after the other.

    If the best one is to be taken (`ranked`), the first of each place is the likeliest token at each step
    instead of a draw, no text is proposed twice, and a draw under a constraint is proposed as far as each
    place where the constraint allows an end: in the middle of a text a model rarely ends by itself.
    """
    if diffusion is None:
        draws = [_draws(work, place, sampling, candidates, ranked) for place in places]
        work.complete([request for requests in draws for request in requests])
        drawn = [[run for request in requests for run in request.runs] for requests in draws]
    else:
        drawn = [fill_place(work, place, sampling, candidates, ranked, diffusion) for place in places]
    grammar = None if sampling.constraint is None else work.llm.compile(sampling).grammar
    return [_proposals(work, place, runs, grammar, ranked) for place, runs in zip(places, drawn, strict=True)]


def _proposals(
    work: EditWork, place: Place, runs: Sequence[Run], grammar: Grammar | None, ranked: bool
) -> list[Proposal]:
    """Returns the draws for one span as proposals."""
    proposals: list[Proposal] = []
    proposed_ids: set[tuple[int, ...]] = set()
    for run in runs:
        lengths = _complete_lengths(grammar, run, ranked)
        for length in lengths or [len(run.tokens)]:
            ids = run.token_ids[:length]
            if not ranked or (*ids,) not in proposed_ids:
                proposed_ids.add((*ids,))
                proposals.append(work.proposal(place, len(proposals), run, ids, bool(lengths)))
    return proposals


def _draws(work: EditWork, place: Place, sampling: Sampling, candidates: int, ranked: bool) -> list[Request]:
    """Returns the requests that draw candidates for a span; the first one greedily if `ranked`."""
    options = work.span_sampling(sampling, place.tokens)
    prefix, requests = place.prefix, list[Request]()
    first = 0
    if ranked and not options.greedy:
        requests.append(work.llm.prepare(prefix, replace(options, temperature=0.0)))
        first = 1
    if candidates > first:
        requests.append(work.llm.prepare(prefix, replace(options, n=candidates - first)))
    runs = [run for request in requests for run in request.runs]
    for number, run in enumerate(runs):
        run.salt = work.luck.salt(place.step, number)
    return requests


def _complete_lengths(grammar: Grammar | None, drawn: Run, ranked: bool) -> list[int]:
    """Returns the numbers of tokens after which the text of a draw is complete. Without a constraint, or if
    draws are not ranked, that can only be after the last token."""
    whole = len(drawn.tokens)
    if grammar is None:
        return [whole]
    if not ranked:
        return [whole] if drawn.finish_reason == "stop" else []
    grammar, lengths = grammar.fork(), list[int]()
    for length, token in enumerate(drawn.token_ids, 1):
        grammar.commit(token)
        if grammar.accepting:
            lengths.append(length)
    return lengths[:_MOST_ENDINGS]
