"""Repair with a verifier: the end of a text is drawn again from random places until the text passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from glassloop.decode.sampling import Sampling
from glassloop.decode.task_kinds import REPAIR_CHECK
from glassloop.edit.infill import DRAWN
from glassloop.edit.power import redraw, suffix_proposal
from glassloop.edit.proposal import Proposal
from glassloop.edit.repair_options import BY_CHECK, RepairOptions
from glassloop.edit.spans import borders, whole_characters
from glassloop.edit.work import EditWork
from glassloop.errors import GlassloopError
from glassloop.record.run import Run
from glassloop.util.shown import shown

Check = Callable[[str], object]  # returns a bool, a number, or an object with `passed` and `score`

_LONGER = 256  # tokens that a text may grow when its end is drawn again


class _Draw(NamedTuple):
    score: float
    passed: bool
    proposal: Proposal
    run: Run


def repair_by_check(
    work: EditWork, draft: Run, head: str, check: Check, sampling: Sampling, options: RepairOptions
) -> tuple[Run, list[Proposal]]:
    """Draws the end of a text again from random places until the verifier lets it pass or the budget is
    spent. `head` is what comes before the text for the verifier. Returns the text after and all proposals."""
    budget = options.budget_for(BY_CHECK, len(draft.tokens))
    passed, score = verdict(check, head + work.decode(draft.token_ids))
    current, proposals, step = draft, list[Proposal](), 0
    kept, level = draft, list[Proposal]()  # the first text with this score, and what was accepted since
    built = work.llm.compile(sampling)
    # A draw adds at least one token to those that it keeps.
    most = min(sampling.max_tokens, work.llm.config.context - len(draft.prompt_ids)) - 1
    while not passed and work.tokens < budget:
        cuts = borders(work, current)
        forks = []
        for number in range(options.candidates):
            at = work.luck.below(1 + min(len(current.tokens), most), step, number)
            at, _ = whole_characters(cuts, at, at)
            forks.append((at, redraw(work.llm, current, at, work.luck.salt(step, number), built)))
        work.complete([request for _, request in forks])
        draws = []
        for number, (at, request) in enumerate(forks):
            run = request.runs[0]
            proposal = suffix_proposal(step, number, current, run, at)
            good, proposal.score = verdict(check, head + work.decode(run.token_ids))
            proposal.seconds = work.seconds
            draws.append(_Draw(proposal.score, good, proposal, run))
        proposals += [draw.proposal for draw in draws]
        best = max(draws, key=lambda draw: draw.score)  # the first, if several are equal
        if best.score >= score or best.passed:
            best.proposal.accepted = True
            level.append(best.proposal)
            if best.score > score or best.passed:
                kept, level = best.run, []
            score, passed, current = best.score, best.passed, best.run
        for draw in draws:
            verb = "passes with" if draw.passed else "scores"
            draw.proposal.why = f"{verb} {draw.score:g}"
        step += 1
    for each in level:
        each.accepted, each.why = False, f"{each.why}, which is not better"
    return kept, proposals


def verdict(check: Check, text: str) -> tuple[bool, float]:
    """Returns whether a verifier lets a text pass, and its score."""
    result = check(text)
    if isinstance(result, (bool, int, float)):
        return result >= 1, float(result)
    score = getattr(result, "score", None)
    if not isinstance(score, (bool, int, float)):
        problem = f"returned {shown(result)}; True, False, a number or a verdict with a score is expected"
        raise GlassloopError.about("check", problem)
    return bool(getattr(result, "passed", score >= 1)), float(score)


def sampling_for_check(text: str | Run, tokens: int, sampling: Sampling | None) -> Sampling:
    """Returns the options for drawing the end of a text of so many tokens again: by default those of
    its run."""
    if sampling is None and isinstance(text, Run):
        return REPAIR_CHECK.acting(text.sampling)
    if sampling is None:
        return replace(DRAWN, max_tokens=tokens + _LONGER)
    return sampling
