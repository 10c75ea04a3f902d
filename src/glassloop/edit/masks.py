"""Masks as a proposer: a span is filled in passes that see the text on both sides of it, and tokens are
doubted by what the masked model expects in their place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import log
from typing import TYPE_CHECKING, Any

from glassloop.decode.sampling import Sampling
from glassloop.decode.stop import Ending
from glassloop.diffuse.hole import fill_holes
from glassloop.diffuse.options import Diffusion
from glassloop.engine.masked import Mask, Masked, MaskedRow, Pass
from glassloop.errors import GlassloopError
from glassloop.ops.quant import Float32
from glassloop.ops.rows import RowOps
from glassloop.shown import shown
from glassloop.trace.run import Run
from glassloop.trace.token import Token

if TYPE_CHECKING:
    from glassloop.edit.proposal import Place, Work
    from glassloop.engine.llm import LLM

PROPOSERS = ("left", "diffusion")
SEEN_AFTER = 64  # tokens after a span that the masks see
_STRIDE = 6  # one of so many tokens is masked in each pass over a whole text
_AT_ONCE = 768  # tokens of a text that are doubted in one piece


def check_proposer(llm: LLM, proposer: str, method: str = "rerank") -> None:
    if proposer not in PROPOSERS:
        expected = " or ".join(map(repr, PROPOSERS))
        raise GlassloopError.about("proposer", f"is {shown(proposer)}; {expected} is expected")
    if proposer == "diffusion" and method == "metropolis":
        raise GlassloopError.about(
            "proposer", "is 'diffusion', whose draws have no probability that a chain could use; rerank has"
        )
    if proposer == "diffusion":
        try:
            llm.mask  # noqa: B018  (raises if the model has none)
        except GlassloopError as error:
            raise GlassloopError.about("proposer", f"is 'diffusion', but {error}") from None


def options_of(proposer: str, diffusion: Diffusion | Mapping[str, Any] | None) -> Diffusion | None:
    """Returns the options of filling, or None if the proposer draws from the left."""
    if proposer != "diffusion":
        if diffusion is not None:
            raise GlassloopError.about("diffusion", "is given; proposer 'diffusion' is expected with it")
        return None
    return Diffusion.of(diffusion) if isinstance(diffusion, Mapping) else diffusion or Diffusion()


def fill_place(
    work: Work, place: Place, sampling: Sampling, candidates: int, ranked: bool, diffusion: Diffusion
) -> list[Run]:
    """Returns draws for a span that see both sides of it, as runs; the first one greedily if `ranked`."""
    llm, options = work.llm, work.span_sampling(sampling, place.tokens)
    prefix, after = place.prefix, place.following[:SEEN_AFTER]
    samplings = [options] * candidates
    if ranked:
        samplings[0] = replace(options, temperature=0.0)
    salts = [work.dice.salt(place.step, number) for number in range(candidates)]
    holes = fill_holes(llm, prefix, after, place.tokens, samplings, salts, diffusion, llm.mask, work.deadline)
    made = []
    for number, (hole, own, salt) in enumerate(zip(holes, samplings, salts, strict=True)):
        run = llm.new_run(prefix, own, work.dice.seed, salt=salt, prompt=None, sample=number)
        for chosen in hole.chosen:
            data = llm.tokenizer.token_bytes(chosen.id)
            run.tokens.append(Token(chosen, llm.piece(chosen.id), data, llm.piece, "mask", sample=number))
        run.diffusion, run.passes = diffusion.to_dict(), hole.passes
        run.finish_reason, run.stop_reason = "length", "the hole is full"
        work.sampled += hole.rows
        made.append(run)
    return made


class _Doubts:
    """A pilot with one pass, of which it keeps the log-probabilities of given tokens."""

    def __init__(self, ids: Sequence[int], ops: RowOps) -> None:
        self._ids = ids
        self._ops = ops
        self.logprobs: list[float] = []

    def advance(self, logits: Float32) -> Pass | None:
        self.logprobs = [
            float(row[token]) - self._ops.summarize(row, 1).log_sum_exp
            for row, token in zip(logits, self._ids, strict=True)
        ]
        return None

    def finish(self, ending: Ending) -> bool:
        return False


def masked_bits(work: Work, run: Run) -> list[float]:
    """Returns how surprising each token of a run is to the masked model, in bits, given the text on both
    sides of it. Each token is masked once, every sixth at a time."""
    llm, mask = work.llm, work.llm.mask
    made = [0.0] * len(run.tokens)
    tasks = []
    for first in range(0, len(made), _AT_ONCE):
        end = min(first + _AT_ONCE, len(made))
        for offset in range(min(_STRIDE, end - first)):
            places = range(first + offset, end, _STRIDE)
            task, pilot = _doubt(run, places, min(end + SEEN_AFTER, len(made)), mask, work)
            llm.engine.submit(task)
            tasks.append((task, pilot, places))
            work.scored += end - first
    for task, pilot, places in tasks:
        task.wait()
        for place, logprob in zip(places, pilot.logprobs, strict=True):
            made[place] = -logprob / log(2)
    return made


def _doubt(run: Run, places: range, end: int, mask: Mask, work: Work) -> tuple[Masked, _Doubts]:
    """Returns a task that masks some tokens of a run; what is before the first of them is plain text."""
    ids, start = run.token_ids, len(run.prompt_ids)
    plain = [*run.prompt_ids, *ids[: places[0]]]
    kept = [MaskedRow(ids[place], start + place) for place in range(places[0], end) if place not in places]
    masks = [MaskedRow(mask.token, start + place, True, mask.adapter) for place in places]
    pilot = _Doubts([ids[place] for place in places], work.llm.transformer.ops.rows)
    return Masked(plain, kept, Pass(masks, len(masks)), pilot, work.deadline), pilot
