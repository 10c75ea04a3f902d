"""Infill and rewrite: spans of a text that are drawn from the left and chosen by what follows them too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from glassloop.decode.defaults import check_sampling
from glassloop.decode.diffusion import Diffusion
from glassloop.decode.sampling import Sampling
from glassloop.decode.task_kinds import INFILL, INFILL_MASKS, REWRITE, TaskKind
from glassloop.edit.acceptance import best_by_bits, span_chain
from glassloop.edit.characters import widen
from glassloop.edit.masks import check_masks, check_proposer, options_of
from glassloop.edit.proposal import MOST_CANDIDATES, MOST_SPANS, MOST_TOKENS, Place, Proposal
from glassloop.edit.record import Edit
from glassloop.edit.span_draws import propose
from glassloop.edit.spans import Characters, apart, apply, check_span, fixed_prompt
from glassloop.edit.work import EditWork
from glassloop.engine.deadline import Deadline
from glassloop.engine.request import Request, draw_seed
from glassloop.errors import GlassloopError, SamplingError
from glassloop.record.run import Run
from glassloop.record.token import Token
from glassloop.util.check import check_count, check_one_of, check_text
from glassloop.util.shown import shown

if TYPE_CHECKING:
    from glassloop.engine.local import LocalModel

METHODS = ("rerank", "metropolis")
HOLES = "holes"  # a method of `infill` only: masks propose, and "rerank" takes the best
WINDOW = 32  # tokens after a span whose surprise counts
DRAWN = Sampling(temperature=0.8)  # how replacements are drawn by default


def infill(
    llm: LocalModel,
    before: str,
    after: str,
    tokens: int = 12,
    *,
    candidates: int = 16,
    method: str = "rerank",
    window: int | None = WINDOW,
    sampling: Sampling | None = None,
    proposer: str = "left",
    diffusion: Diffusion | Mapping[str, Any] | int | None = None,
    deadline: Deadline | None = None,
) -> Edit:
    """Fills a hole between two texts with `tokens` tokens.

    `candidates` replacements are drawn from the left, the first one greedily. With the method "rerank", the
    one is taken whose tokens and whose `window` tokens after it have the highest probability together; with
    "metropolis", the draws are a chain of Metropolis-Hastings, whose limit is the distribution of the hole
    given both sides; then `window` is best None, which scores all that follows. A constraint in `sampling`
    (regex, choice, json_schema, grammar) holds inside the hole, which then has at most `tokens` tokens.

    With the proposer "diffusion" the candidates are not drawn from the left: each is a row of masks that see
    both sides of the hole, filled in passes. A few candidates are enough then. `diffusion` has its options.
    The method "holes" is another name of the proposer "diffusion" with "rerank".
    """
    check_text("before", before)
    check_text("after", after)
    check_one_of("method", method, (*METHODS, HOLES))
    if method == HOLES:
        check_masks(llm, "method", HOLES)
        proposer, method = "diffusion", "rerank"
    check_proposer(llm, proposer, method)
    filling = options_of(proposer, diffusion)
    kind = INFILL if filling is None else INFILL_MASKS
    work = _begin(llm, kind, tokens, candidates, method, window, sampling, deadline)
    sampling = sampling or DRAWN
    prompt, following = fixed_prompt(llm, before), llm.tokenizer.encode_inside(after)
    longer = "after" if len(following) > len(prompt) else "before"
    llm.requests.check_length(len(prompt) + tokens + len(following), longer, ", hole and other side included")
    draft = work.text(prompt, [])
    place = Place(draft, 0, 0, tokens, 0, tuple(following))
    ranked = method == "rerank"
    (proposals,) = propose(work, [place], sampling, candidates, ranked=ranked, diffusion=filling)
    best = decide_all(work, [place], [proposals], sampling, method, window)[0]
    if best is None:
        problem = f"none of {candidates} candidates fits: {proposals[0].refusal}"
        raise GlassloopError(problem, field="candidates")
    run = apply(work, following, [best])
    arguments = {"before": before, "after": after, **_options(tokens, candidates, method, window, sampling)}
    if filling is not None:
        arguments |= {"proposer": proposer, "diffusion": filling.to_dict()}
    span = (len(before), len(before) + len(best.text))
    text = before + best.text + after
    return Edit.of(work, "infill", draft, run, proposals, arguments, span, (before + after, text))


def rewrite(
    llm: LocalModel,
    text: str,
    spans: Characters | Sequence[Characters],
    sampling: Sampling | None = None,
    *,
    tokens: int | None = None,
    candidates: int = 16,
    method: str = "rerank",
    window: int | None = WINDOW,
    deadline: Deadline | None = None,
) -> Edit:
    """Replaces one or more spans of a text, given by characters, by others that are drawn with `sampling` and
    chosen as `infill` does. A replacement has `tokens` tokens, by default as many as the span.

    A span is widened where it would cut a character. Several spans are drawn and scored together as long as
    `window` tokens are between them, the others after them.
    """
    check_text("text", text)
    check_one_of("method", method, METHODS)
    length = 1 if tokens is None else tokens
    work = _begin(llm, REWRITE, length, candidates, method, window, sampling, deadline)
    sampling = sampling or DRAWN
    wanted = _checked_spans(text, spans)
    prompt, pieces = _pieces(llm, text, wanted)
    draft = work.text(prompt, [token for piece in pieces for token in piece])
    current, proposals = draft, list[Proposal]()
    # Even pieces are kept and odd ones are the spans.
    left, step = list(range(1, len(pieces), 2)), 0
    while left:
        starts = [sum(map(len, pieces[:number])) for number in range(len(pieces))]
        places = {}
        for order, number in enumerate(left):
            end = starts[number] + len(pieces[number])
            length = tokens or max(1, len(pieces[number]))
            places[number] = Place(current, starts[number], end, length, step + order)
        together = apart(list(places.values()), len(draft.tokens) if window is None else window)
        drawn = propose(work, together, sampling, candidates, ranked=method == "rerank")
        for place, each in zip(together, drawn, strict=True):
            _refuse_the_same(place, each, method)
        chosen = decide_all(work, together, drawn, sampling, method, window)
        proposals += [proposal for each in drawn for proposal in each]
        step += len(left)
        for number in [number for number in left if places[number] in together]:
            best = chosen[together.index(places[number])]
            if best is not None:
                pieces[number] = best.ids
            left.remove(number)
        accepted = [best for best in chosen if best is not None]
        if accepted:
            current = apply(work, current.token_ids, accepted)
    arguments = {"text": text, "spans": wanted, **_options(tokens, candidates, method, window, sampling)}
    final, span = _final(work, text, wanted, pieces)
    return Edit.of(work, "rewrite", draft, current, proposals, arguments, span, (text, final))


def decide_all(
    work: EditWork,
    places: Sequence[Place],
    proposals: Sequence[Sequence[Proposal]],
    sampling: Sampling,
    method: str,
    window: int | None,
) -> list[Proposal | None]:
    """Scores the proposals of all places in one batch and returns the accepted one of each, if any."""
    requests = [
        each
        for place, proposed in zip(places, proposals, strict=True)
        for each in work.score(place, proposed, window)
    ]
    olds: list[Run | None] = [None] * len(places)
    if method == "metropolis":  # how likely are the spans to be drawn that are there now?
        for number, place in enumerate(places):
            if place.after is None and place.start < place.end and sampling.constraint is None:
                request = _given(work, place, sampling)
                requests.append(request)
                olds[number] = request.runs[0]
    work.complete(requests)
    chosen: list[Proposal | None] = []
    for place, proposed, old in zip(places, proposals, olds, strict=True):
        work.note(place, proposed)
        if method == "metropolis":
            chosen.append(_by_chain(work, place, proposed, old, window))
        else:
            chosen.append(best_by_bits(proposed))
    return chosen


def _by_chain(
    work: EditWork, place: Place, proposals: Sequence[Proposal], old: Run | None, window: int | None
) -> Proposal | None:
    if old is not None:
        scored = place.run.tokens[place.start :] if window is None else _near(place, window)
        return span_chain(proposals, scored, old.tokens, work.luck)
    first = next((each for each in proposals if each.run is not None), None)
    if first is None:
        return None
    first.accepted, first.why = True, "the chain begins with it"
    return span_chain(proposals, [], [], work.luck, first)


def _near(place: Place, window: int) -> list[Token]:
    return place.run.tokens[place.start : place.end + window]


def _given(work: EditWork, place: Place, sampling: Sampling) -> Request:
    """Returns a request that scores the tokens of a span as if they had been drawn with these options."""
    ids = place.run.token_ids[place.start : place.end]
    options = work.span_sampling(sampling, max(1, len(ids)))
    request = work.llm.prepare(place.prefix, options)
    request.forced, request.drafts = ids, False
    return request


def _refuse_the_same(place: Place, proposals: Sequence[Proposal], method: str) -> None:
    """Refuses proposals that change nothing. A chain needs them: they are how it stays where it is."""
    old = place.run.token_ids[place.start : place.end]
    for each in proposals:
        if method == "rerank" and each.ids == old and each.refusal is None:
            each.refusal = "it is the text that is there"


def _begin(
    llm: LocalModel,
    kind: TaskKind,
    tokens: int,
    candidates: int,
    method: str,
    window: int | None,
    sampling: Sampling | None,
    deadline: Deadline | None,
) -> EditWork:
    """Checks the arguments that all have in common, and returns the work to do."""
    check_count("tokens", tokens, 1, MOST_TOKENS)
    check_count("candidates", candidates, 1, MOST_CANDIDATES)
    if window is not None:
        check_count("window", window, 0, 1 << 20)
    if sampling is not None:
        check_sampling(sampling)
        kind.check(sampling, DRAWN)
    if method == "metropolis" and sampling is not None and sampling.greedy:
        raise SamplingError.about("temperature", "is 0; a chain draws, so a number above 0 is expected")
    seed = draw_seed() if sampling is None or sampling.seed is None else sampling.seed
    return EditWork(llm, seed, deadline)


def _options(
    tokens: int | None, candidates: int, method: str, window: int | None, sampling: Sampling
) -> dict[str, Any]:
    options = {"tokens": tokens, "candidates": candidates, "method": method, "window": window}
    return options | {"sampling": sampling.to_dict()}


def _checked_spans(text: str, spans: object) -> list[Characters]:
    """Returns the spans in order, widened to whole characters."""
    if isinstance(spans, Sequence) and spans and not isinstance(spans[0], Sequence):
        spans = [spans]
    if not isinstance(spans, Sequence) or isinstance(spans, str) or not 1 <= len(spans) <= MOST_SPANS:
        raise GlassloopError.about("spans", f"is {shown(spans)}; 1 to {MOST_SPANS} spans are expected")
    ordered = sorted(check_span(text, span, f"spans[{number}]") for number, span in enumerate(spans))
    wide = [widen(text, *span) for span in ordered]
    for one, other in pairwise(wide):
        if other[0] < one[1]:
            raise GlassloopError.about(
                "spans", f"overlap: {one} and {other}; spans that are apart are expected"
            )
    return wide


def _pieces(llm: LocalModel, text: str, spans: Sequence[Characters]) -> tuple[list[int], list[list[int]]]:
    """Returns the tokens of the prompt, which is the text before the first span, and those of the pieces from
    there on: kept, span, kept, span, … Each piece is encoded by itself, so what is kept keeps its tokens."""
    prompt = fixed_prompt(llm, text[: spans[0][0]])
    pieces: list[list[int]] = [[]]
    for number, (start, end) in enumerate(spans):
        until = spans[number + 1][0] if number + 1 < len(spans) else len(text)
        pieces += [llm.tokenizer.encode_inside(text[start:end]), llm.tokenizer.encode_inside(text[end:until])]
    return prompt, pieces


def _final(
    work: EditWork, text: str, spans: Sequence[Characters], pieces: Sequence[Sequence[int]]
) -> tuple[str, Characters]:
    """Returns the text with its new spans, and the characters from the first of them to the last."""
    edited, at = text[: spans[0][0]], spans[0][0]
    for (start, end), piece in zip(spans, pieces[1::2], strict=True):
        edited += text[at:start] + work.decode(piece)
        at = end
    return edited + text[at:], (spans[0][0], len(edited))
