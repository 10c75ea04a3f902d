"""Repair: spans of a text are drawn anew, until no replacement is an improvement or the budget is spent.

Without a verifier, the spans are those that are most surprising given the text on both sides, and a
replacement is accepted if it makes the text likelier; by masks, `mistakes` finds single tokens that are
wrong. With a verifier, the end of the text is drawn anew from some place on until the verifier lets it pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from glassloop.decode.defaults import check_sampling
from glassloop.decode.sampling import Sampling
from glassloop.decode.task_kinds import REPAIR, REPAIR_CHECK, REPAIR_MASKS, TaskKind
from glassloop.edit.accept import best_by_gain
from glassloop.edit.infill import DRAWN, MOST_CANDIDATES, MOST_TOKENS
from glassloop.edit.masks import check_proposer
from glassloop.edit.mistakes import LEAST, WINDOW, MistakeLimits, mend
from glassloop.edit.power import redraw, suffix_proposal
from glassloop.edit.proposal import EditWork, Place, Proposal
from glassloop.edit.record import Edit
from glassloop.edit.spans import apart, apply, borders, prompt_and_text, whole_characters
from glassloop.edit.surprise import SurprisingToken, left_bits, measure
from glassloop.engine.compatibility import check_continuable, check_run
from glassloop.engine.deadline import Deadline
from glassloop.engine.request import draw_seed
from glassloop.errors import GlassloopError, TextError
from glassloop.record.run import Run
from glassloop.util.check import check_count, check_number, check_text
from glassloop.util.shown import shown

if TYPE_CHECKING:
    from glassloop.engine.local import LocalModel

Check = Callable[[str], object]  # returns a bool, a number, or an object with `passed` and `score`

MOST_BUDGET = 1 << 30
_SCREENED = 48  # tokens whose surprise is measured from both sides in a round, at most
_UNEXPECTED = 4.0  # bits from the left, from which on a token is measured from both sides
_SUSPICIOUS = 6.0  # bits from both sides, from which on a token is drawn anew
_NARROW = 2  # tokens of the narrower of the two spans that are drawn anew
_PER_TOKEN = 40  # the default budget for each token of the text
_PER_TOKEN_MASKED = 80  # the same by masks
_PER_TOKEN_CHECKED = 4  # the same with a verifier
_LENGTH = 6  # tokens of a replacement by default
_LONGER = 256  # tokens by which a text may grow when its end is drawn anew


@dataclass(frozen=True)
class _Options:
    budget: int | None
    candidates: int
    tokens: int
    window: int
    least_gain: float
    spans: int | None
    proposer: str = "left"


def repair(
    llm: LocalModel,
    text: str | Run,
    *,
    prompt: Any = None,
    check: Check | None = None,
    budget: int | None = None,
    candidates: int = 8,
    tokens: int | None = None,
    window: int | None = None,
    least_gain: float | None = None,
    spans: int | None = None,
    sampling: Sampling | None = None,
    proposer: str = "left",
    deadline: Deadline | None = None,
) -> Edit:
    """Replaces what is wrong with a text, or with the answer of a run.

    Each round measures the most surprising tokens from both sides, draws replacements of one and of `tokens`
    tokens (6 by default) for up to `spans` (4 by default) of the worst that are apart, and accepts those that
    save at least `least_gain` bits (3 by default) on themselves and the `window` tokens (16 by default) after
    them. It ends when no span pays or `budget` tokens have been computed. `prompt` is what comes before the
    text and is not edited: a text, token ids or a conversation.

    With the proposer "diffusion" single tokens are replaced by others that the masked model expects in their
    place given both sides: `candidates` of them are measured for each token that it does not expect, with the
    `window` tokens after it (4 by default), and accepted if there are at least `least_gain` bits of evidence
    for it (4 by default; see `edit.mistakes`), up to `spans` of them in a round (by default all). Nothing is
    drawn, so `tokens` and all options but `allowed_token_ids` and `seed` are refused.

    With `check`, a function that says of a text whether it passes (True or False, a score up to 1, or an
    object with `passed` and `score`), the end of the text is drawn anew from random places,
    `candidates` at a time, and what scores no worse is the text from which the next ones are drawn, until one
    passes. If none does, the result is the first text with the highest score: without a better one, the text
    as it was. `tokens`, `window`, `least_gain` and `spans` have nothing to do then, and are refused.
    """
    kind = REPAIR_CHECK if check is not None else REPAIR_MASKS if proposer == "diffusion" else REPAIR
    _check_arguments(kind, tokens=tokens, window=window, least_gain=least_gain, spans=spans)
    check_count("candidates", candidates, 1, MOST_CANDIDATES)
    tokens = check_count("tokens", _LENGTH if tokens is None else tokens, 1, MOST_TOKENS)
    by_masks = proposer == "diffusion"
    window = check_count("window", (WINDOW if by_masks else 16) if window is None else window, 0, 1 << 20)
    spans = (None if by_masks else 4) if spans is None else check_count("spans", spans, 1, 64)
    least = (
        (LEAST if by_masks else 3.0) if least_gain is None else check_number("least_gain", least_gain, 0, 1e9)
    )
    if budget is not None:
        check_count("budget", budget, 0, MOST_BUDGET)
    if check is not None and not callable(check):
        raise GlassloopError.about("check", f"is {shown(check)}; a function of a text is expected")
    if sampling is not None:
        check_sampling(sampling)
        kind.check(sampling, DRAWN)
    check_proposer(llm, proposer)
    if check is not None and proposer != "left":
        raise GlassloopError.about("proposer", "is given with check, which draws the end of the text anew")
    if isinstance(text, Run):
        (check_run if check is None else check_continuable)(llm, text)
    options = _Options(budget, candidates, tokens, window, least, spans, proposer)
    seed = None if sampling is None else sampling.seed
    work = EditWork(llm, draw_seed() if seed is None else seed, deadline)
    prompt_ids, ids, head = _tokens(llm, text, prompt)
    if check is None:
        draft = work.text(prompt_ids, ids)
        sampling = sampling or DRAWN
        current, proposals = _unchecked(work, draft, sampling, options)
    else:
        sampling = replace(_checked_sampling(text, len(ids), sampling), seed=work.dice.seed)
        draft = work.text(prompt_ids, ids, text if isinstance(text, Run) else None)
        current, proposals = _by_check(work, draft, head, check, sampling, options)
    given = {**_plain(options), "ids": ids, "head": head, "checked": check is not None}
    given["sampling"] = sampling.to_dict()
    before, after = (head + work.decode(run.token_ids) for run in (draft, current))
    span = (0, len(after))
    return Edit.of(
        work, "repair", prompt_ids, draft, current, proposals, given, span, before=before, text=after
    )


_UNUSED = {  # arguments that a kind of repair has no use for
    REPAIR: (),
    REPAIR_MASKS: ("tokens",),
    REPAIR_CHECK: ("tokens", "window", "least_gain", "spans"),
}


def _check_arguments(kind: TaskKind, **given: object) -> None:
    for name in _UNUSED[kind]:
        if given[name] is not None:
            raise GlassloopError.about(name, f"is {shown(given[name])}; {kind.name} does not take it")


def _unchecked(
    work: EditWork, draft: Run, sampling: Sampling, options: _Options
) -> tuple[Run, list[Proposal]]:
    """Repairs without a verifier. Returns the text after and all proposals."""
    by_masks = options.proposer == "diffusion"
    per_token = _PER_TOKEN_MASKED if by_masks else _PER_TOKEN
    budget = per_token * len(draft.tokens) if options.budget is None else options.budget
    if not by_masks:
        return _by_surprise(work, draft, sampling, options, budget)
    allowed = None if sampling.allowed_token_ids is None else frozenset(sampling.allowed_token_ids)
    limits = MistakeLimits(
        budget, options.candidates, options.window, options.least_gain, options.spans, allowed
    )
    return mend(work, draft, limits)


# ── by surprise ────────────────────────────────────────────────────────────────────────────────────────────


def _by_surprise(
    work: EditWork, draft: Run, sampling: Sampling, options: _Options, budget: int
) -> tuple[Run, list[Proposal]]:
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
        drawn = work.propose(together, sampling, options.candidates, ranked=True)
        narrow = [_narrow(work, place, made, cuts) for place, made in zip(together, drawn, strict=True)]
        spans = [*together, *(place for place, _ in narrow)]
        work.score_all(spans, [*drawn, *(made for _, made in narrow)], options.window)
        accepted = []
        for place, made, (_, shorter) in zip(together, drawn, narrow, strict=True):
            single = next(each for each in worst if each.place.step == place.step)
            all_of_them = [*single.proposals, *shorter, *made]
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
    made: dict[tuple[int, ...], Proposal] = {}
    for each in drawn:
        ids = each.ids[: short.tokens]
        if short.tokens < place.tokens and (*ids,) not in made:
            made[(*ids,)] = work.proposal(short, len(made), each.drawn, ids)
    return short, list(made.values())


def _moved(settled: set[int], accepted: Sequence[Proposal]) -> set[int]:
    """Returns the settled places of the text after replacements, without those that were replaced."""
    kept = {at for at in settled if not any(each.start <= at < each.end for each in accepted)}

    def shift(at: int) -> int:
        return sum(len(each.ids) - (each.end - each.start) for each in accepted if each.end <= at)

    return {at + shift(at) for at in kept}


# ── by a verifier ──────────────────────────────────────────────────────────────────────────────────────────


def _by_check(
    work: EditWork, draft: Run, head: str, check: Check, sampling: Sampling, options: _Options
) -> tuple[Run, list[Proposal]]:
    budget = _PER_TOKEN_CHECKED * len(draft.tokens) if options.budget is None else options.budget
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
            at = work.dice.below(1 + min(len(current.tokens), most), step, number)
            at, _ = whole_characters(cuts, at, at)
            forks.append((at, redraw(work.llm, current, at, work.dice.salt(step, number), built)))
        work.complete([request for _, request in forks])
        made = []
        for number, (at, request) in enumerate(forks):
            run = request.runs[0]
            each = suffix_proposal(step, number, current, run, at)
            good, each.score = verdict(check, head + work.decode(run.token_ids))
            each.seconds = work.seconds
            made.append((each.score, good, each, run))
        proposals += [each for _, _, each, _ in made]
        best = max(made, key=lambda it: it[0])  # the first, if several are equal
        if best[0] >= score or best[1]:
            best[2].accepted = True
            level.append(best[2])
            if best[0] > score or best[1]:
                kept, level = best[3], []
            score, passed, current = best[0], best[1], best[3]
        for found, good, each, _ in made:
            each.why = f"passes with {found:g}" if good else f"scores {found:g}"
        step += 1
    for each in level:
        each.accepted, each.why = False, f"{each.why}, which is not better"
    return kept, proposals


def verdict(check: Check, text: str) -> tuple[bool, float]:
    """Returns whether a verifier lets a text pass, and its score."""
    found = check(text)
    if isinstance(found, (bool, int, float)):
        return found >= 1, float(found)
    score = getattr(found, "score", None)
    if not isinstance(score, (bool, int, float)):
        problem = f"returned {shown(found)}; True, False, a number or a verdict with a score is expected"
        raise GlassloopError.about("check", problem)
    return bool(getattr(found, "passed", score >= 1)), float(score)


def _checked_sampling(text: str | Run, tokens: int, sampling: Sampling | None) -> Sampling:
    """Returns the options with which the end of a text of so many tokens is drawn anew: by default those of
    its run."""
    if sampling is None and isinstance(text, Run):
        return REPAIR_CHECK.acting(text.sampling)
    if sampling is None:
        return replace(DRAWN, max_tokens=tokens + _LONGER)
    return sampling


# ── the text ───────────────────────────────────────────────────────────────────────────────────────────────


def _tokens(llm: LocalModel, text: str | Run, prompt: Any) -> tuple[list[int], list[int], str]:
    """Returns the tokens of the prompt, those of the text, and the beginning of the text that is part of the
    prompt since nothing is known of the first token of all."""
    if isinstance(text, Run):
        if prompt is not None:
            raise GlassloopError.about("prompt", "is given with a run, which has its own")
        return text.prompt_ids, text.token_ids, ""
    check_text("text", text)
    if prompt is None:
        prompt_ids, ids = prompt_and_text(llm, "", text)
        whole = len(ids) < len(llm.tokenizer.encode_inside(text))
        head = llm.tokenizer.token_bytes(prompt_ids[0]).decode("utf-8", "replace") if whole else ""
        return prompt_ids, ids, head
    if isinstance(prompt, str):
        prompt_ids = llm.tokenizer.encode(check_text("prompt", prompt))
    elif isinstance(prompt, Sequence) and prompt and isinstance(prompt[0], Mapping):
        prompt_ids = llm.tokenizer.encode_chat(prompt)
    else:
        prompt_ids = llm.requests.checked(prompt)
    for name, given in (("text", text), ("prompt", prompt_ids)):
        if not given:
            raise TextError.about(name, "is empty; at least one token is expected")
    return prompt_ids, llm.tokenizer.encode_inside(text), ""


def _plain(options: _Options) -> dict[str, Any]:
    made = {name: getattr(options, name) for name in _Options.__dataclass_fields__}
    if options.proposer == "left":
        del made["proposer"]
    return made


def again(
    llm: LocalModel,
    prompt_ids: list[int],
    given: Mapping[str, Any],
    sampling: Sampling,
    check: Check | None,
    deadline: Deadline | None,
) -> Edit:
    """Makes a repair again from its record."""
    values = dict(given)
    ids, head = llm.requests.checked(values.pop("ids"), "ids"), values.pop("head")
    if values.pop("checked") and check is None:
        raise GlassloopError.about("check", "is missing; the edit was made with a verifier")
    options = _Options(**values)
    work = EditWork(llm, sampling.seed or 0, deadline)
    draft = work.text(llm.requests.checked(prompt_ids, "prompt_ids"), ids)
    if check is None:
        current, proposals = _unchecked(work, draft, sampling, options)
    else:
        current, proposals = _by_check(work, draft, head, check, sampling, options)
    before, after = (head + work.decode(run.token_ids) for run in (draft, current))
    span = (0, len(after))
    return Edit.of(
        work, "repair", prompt_ids, draft, current, proposals, given, span, before=before, text=after
    )
