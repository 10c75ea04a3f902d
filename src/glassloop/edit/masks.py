"""Masks as a proposer: a span is filled in passes that see the text on both sides of it, and tokens are
doubted by what the masked model expects in their place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import log
from typing import TYPE_CHECKING, Any

from glassloop.decode.diffusion import Diffusion
from glassloop.decode.sampling import Sampling
from glassloop.decode.stop import Ending
from glassloop.diffuse.hole import fill_holes, hole_record
from glassloop.edit.proposal import Place
from glassloop.edit.work import EditWork
from glassloop.engine.logits import compute_all
from glassloop.engine.tasks.masked import Masked, MaskedRow, Pass
from glassloop.errors import GlassloopError
from glassloop.ops.quant import Float32
from glassloop.ops.rows import RowOps
from glassloop.record.origin import ByMasks
from glassloop.record.run import Run
from glassloop.record.token import Token
from glassloop.text.stream import TextStream
from glassloop.util.check import check_one_of

if TYPE_CHECKING:
    from glassloop.engine.local import LocalModel

PROPOSERS = ("left", "diffusion")
SEEN_AFTER = 64  # tokens after a span that the masks see
STRIDE = 6  # one of so many tokens is masked in each pass over a whole text
_AT_ONCE = 768  # tokens of a text that are looked at in one piece

Surprise = dict[int, float]  # bits by token id


def check_proposer(llm: LocalModel, proposer: str, method: str = "rerank") -> None:
    """Raises for a proposer that is unknown, or that the model or the method cannot work with."""
    check_one_of("proposer", proposer, PROPOSERS)
    if proposer == "diffusion" and method == "metropolis":
        raise GlassloopError.about(
            "proposer", "is 'diffusion', whose draws have no probability that a chain could use; rerank has"
        )
    if proposer == "diffusion":
        check_masks(llm, "proposer", proposer)


def check_masks(llm: LocalModel, field: str, value: str) -> None:
    """Raises if a model cannot fill masks, which this value of a field needs."""
    try:
        llm.mask  # noqa: B018  (raises if the model has none)
    except GlassloopError as error:
        raise GlassloopError.about(field, f"is {value!r}, but {error}") from None


def options_of(proposer: str, diffusion: Diffusion | Mapping[str, Any] | int | None) -> Diffusion | None:
    """Returns the options of filling, or None if the proposer draws from the left."""
    if proposer != "diffusion":
        if diffusion is not None:
            raise GlassloopError.about("diffusion", "is given; proposer 'diffusion' is expected with it")
        return None
    return Diffusion.of(diffusion)


def fill_place(
    work: EditWork, place: Place, sampling: Sampling, candidates: int, ranked: bool, diffusion: Diffusion
) -> list[Run]:
    """Returns draws for a span that see both sides of it, as runs; the first one greedily if `ranked`."""
    llm, options = work.llm, work.span_sampling(sampling, place.tokens)
    prefix, after = place.prefix, place.following[:SEEN_AFTER]
    samplings = [options] * candidates
    if ranked:
        samplings[0] = replace(options, temperature=0.0)
    salts = [work.luck.salt(place.step, number) for number in range(candidates)]
    holes = fill_holes(llm, prefix, after, place.tokens, samplings, salts, diffusion, work.deadline)
    runs = []
    for number, (hole, hole_sampling, salt) in enumerate(zip(holes, samplings, salts, strict=True)):
        run = llm.requests.new_run(
            prefix, hole_sampling, work.luck.seed, salt=salt, prompt=None, sample=number
        )
        characters = TextStream()
        for chosen in hole.chosen:
            data = llm.tokenizer.token_bytes(chosen.id)
            run.tokens.append(Token(chosen, characters.feed(data), data, llm.piece, "mask", sample=number))
        run.tail = characters.flush()
        run.origin = ByMasks(hole_record(diffusion, llm.mask, after), hole.passes)
        run.finish_reason, run.stop_reason = "length", "the hole is full"
        work.sampled += hole.rows
        runs.append(run)
    return runs


class _Reader:
    """A pilot with one pass. For each mask it keeps the surprise of the likeliest tokens and of the tokens
    `wanted_ids`."""

    def __init__(self, wanted_ids: Sequence[Sequence[int]], top: int, ops: RowOps) -> None:
        self._wanted_ids = wanted_ids
        self._top = top
        self._ops = ops
        self.bits: list[Surprise] = []

    def advance(self, logits: Float32) -> Pass | None:
        for row, wanted_ids in zip(logits, self._wanted_ids, strict=True):
            best = self._ops.summarize(row, self._top)
            ids = dict.fromkeys((*map(int, best.ids), *wanted_ids))
            self.bits.append({token: (best.log_sum_exp - float(row[token])) / log(2) for token in ids})
        return None

    def finish(self, ending: Ending) -> bool:
        return False


def masked_bits(work: EditWork, run: Run) -> list[float]:
    """Returns how surprising each token of a run is to the masked model, in bits, given the text on both
    sides of it. Each token is masked once, every sixth at a time."""
    surprise = look(work, run, range(len(run.tokens)), {}, STRIDE, 1)
    return [surprise[at][token] for at, token in enumerate(run.token_ids)]


def look(
    work: EditWork,
    run: Run,
    places: Sequence[int],
    wanted_ids: Mapping[int, Sequence[int]],
    passes: int,
    top: int,
) -> dict[int, Surprise]:
    """Masks tokens of a run, every `passes`-th of the given places at a time, and returns for each place how
    surprising its token, the `top` likeliest ones and the ones that are asked for would be there, in bits."""
    ids, tasks = run.token_ids, []
    for first in range(0, len(ids), _AT_ONCE):
        end = min(first + _AT_ONCE, len(ids))
        inside = [place for place in places if first <= place < end]
        for offset in range(min(passes, len(inside))):
            masked = inside[offset::passes]
            reader = _Reader(
                [(ids[at], *wanted_ids.get(at, ())) for at in masked], top, work.llm.transformer.ops.rows
            )
            task = _task(work, run, masked, min(masked[-1] + 1 + SEEN_AFTER, len(ids)), reader)
            work.scored += len(task.branch.kept) + len(masked)
            tasks.append((task, reader, masked))
    surprise: dict[int, Surprise] = {}
    compute_all(work.llm.engine, [task for task, _, _ in tasks])
    for _, reader, masked in tasks:
        surprise.update(zip(masked, reader.bits, strict=True))
    return surprise


def _task(work: EditWork, run: Run, places: Sequence[int], end: int, reader: _Reader) -> Masked:
    """Returns a task that masks some tokens of a run; what is before the first of them is plain text."""
    ids, start, mask = run.token_ids, len(run.prompt_ids), work.llm.mask
    plain, hidden = [*run.prompt_ids, *ids[: places[0]]], set(places)
    kept = [MaskedRow(ids[at], start + at) for at in range(places[0], end) if at not in hidden]
    masks = [MaskedRow(mask.token, start + at, True, mask.adapter) for at in places]
    return Masked(plain, kept, Pass(masks, len(masks)), reader, work.deadline)
