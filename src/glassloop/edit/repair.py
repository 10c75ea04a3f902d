"""Repair: spans of a text are replaced until no replacement is an improvement or the budget is spent.

There are three ways, one file each: by surprise (spans that are surprising given both sides are drawn again),
by masks (single tokens that the masked model does not expect), and with a verifier (the end of the text is
drawn again until it passes).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from glassloop.decode.defaults import check_sampling
from glassloop.decode.sampling import Sampling
from glassloop.edit.infill import DRAWN
from glassloop.edit.masks import check_proposer
from glassloop.edit.record import Edit
from glassloop.edit.repair_by_check import Check, repair_by_check, sampling_for_check
from glassloop.edit.repair_by_masks import repair_by_masks
from glassloop.edit.repair_by_surprise import repair_by_surprise
from glassloop.edit.repair_options import RepairOptions, repair_way
from glassloop.edit.spans import prompt_and_text
from glassloop.edit.work import EditWork
from glassloop.engine.compatibility import check_continuable, check_run
from glassloop.engine.deadline import Deadline
from glassloop.engine.request import draw_seed
from glassloop.errors import GlassloopError, TextError
from glassloop.record.run import Run
from glassloop.util.check import check_text
from glassloop.util.shown import shown

if TYPE_CHECKING:
    from glassloop.engine.local import LocalModel


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
    for it (4 by default; see `repair_by_masks.py`), up to `spans` of them in a round (by default all).
    Nothing is drawn, so `tokens` and all options but `allowed_token_ids` and `seed` are refused.

    With `check`, a function that says of a text whether it passes (True or False, a score up to 1, or an
    object with `passed` and `score`), the end of the text is drawn again from random places,
    `candidates` at a time, and what scores no worse is the text from which the next ones are drawn, until one
    passes. If none does, the result is the first text with the highest score: without a better one, the text
    as it was. `tokens`, `window`, `least_gain` and `spans` have nothing to do then, and are refused.
    """
    way = repair_way(proposer, check is not None)
    options = RepairOptions.checked(
        way,
        budget=budget,
        candidates=candidates,
        tokens=tokens,
        window=window,
        least_gain=least_gain,
        spans=spans,
        proposer=proposer,
    )
    if check is not None and not callable(check):
        raise GlassloopError.about("check", f"is {shown(check)}; a function of a text is expected")
    if sampling is not None:
        check_sampling(sampling)
        way.kind.check(sampling, DRAWN)
    check_proposer(llm, proposer)
    if check is not None and proposer != "left":
        raise GlassloopError.about("proposer", "is given with check, which draws the end of the text anew")
    if isinstance(text, Run):
        (check_run if check is None else check_continuable)(llm, text)
    seed = None if sampling is None else sampling.seed
    work = EditWork(llm, draw_seed() if seed is None else seed, deadline)
    prompt_ids, ids, head = _tokens(llm, text, prompt)
    if check is None:
        sampling = sampling or DRAWN
        draft = work.text(prompt_ids, ids)
    else:
        sampling = replace(sampling_for_check(text, len(ids), sampling), seed=work.luck.seed)
        draft = work.text(prompt_ids, ids, text if isinstance(text, Run) else None)
    arguments = {**options.to_dict(), "ids": ids, "head": head, "checked": check is not None}
    arguments["sampling"] = sampling.to_dict()
    return _repaired(work, draft, head, check, sampling, options, arguments)


def repair_again(
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
    options = RepairOptions(**values)
    work = EditWork(llm, sampling.seed or 0, deadline)
    draft = work.text(llm.requests.checked(prompt_ids, "prompt_ids"), ids)
    return _repaired(work, draft, head, check, sampling, options, given)


def _repaired(
    work: EditWork,
    draft: Run,
    head: str,
    check: Check | None,
    sampling: Sampling,
    options: RepairOptions,
    given: Mapping[str, Any],
) -> Edit:
    """Repairs a text and returns the edit, with `given` as its record has it."""
    if check is not None:
        current, proposals = repair_by_check(work, draft, head, check, sampling, options)
    elif options.proposer == "diffusion":
        current, proposals = repair_by_masks(work, draft, sampling, options)
    else:
        current, proposals = repair_by_surprise(work, draft, sampling, options)
    before, after = (head + work.decode(run.token_ids) for run in (draft, current))
    span = (0, len(after))
    return Edit.of(work, "repair", draft, current, proposals, given, span, (before, after))


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
    for name, argument in (("text", text), ("prompt", prompt_ids)):
        if not argument:
            raise TextError.about(name, "is empty; at least one token is expected")
    return prompt_ids, llm.tokenizer.encode_inside(text), ""
