"""Holes: a few tokens between two texts, filled in passes that see both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from glassloop.decode.chosen import Chosen
from glassloop.decode.diffusion import Diffusion
from glassloop.decode.sampling import Sampling
from glassloop.decode.stop import Ending
from glassloop.diffuse.filling import Filling, check_stages_can_fill
from glassloop.diffuse.masked_rows import MaskedRows
from glassloop.engine.deadline import Deadline
from glassloop.engine.logits import compute_all
from glassloop.engine.tasks.masked import Mask, Masked, Pass
from glassloop.errors import GlassloopError
from glassloop.ops.quant import Float32
from glassloop.record.passes import PassRecord
from glassloop.record.run import Run

if TYPE_CHECKING:
    from glassloop.engine.local import LocalEngine


AFTER = "after"  # the key of `Run.diffusion` that only a run which fills a hole has: the tokens after it


@dataclass
class Hole:
    """A filled hole."""

    ids: list[int]
    chosen: list[Chosen]
    passes: list[PassRecord]
    rows: int = field(default=0)  # masked and filled rows that were computed for it


class _Pilot:
    """Fills one hole. The end of the text cannot be inside of it."""

    def __init__(self, rows: MaskedRows, filling: Filling) -> None:
        self.rows = rows
        self.filling = filling
        self._revisions = filling.options.revise
        self.computed = 0

    def first(self) -> Pass:
        return self.rows.of_pass(self.filling.places)

    def advance(self, logits: Float32) -> Pass | None:
        filling = self.filling
        self.computed += len(filling.tokens)
        filling.advance(self.rows.logits(logits, filling.places))
        if filling.is_full:
            if not self._revisions:
                return None
            self._revisions -= 1
            filling.take_back()
        return self.rows.of_pass(filling.places)

    def finish(self, ending: Ending) -> bool:
        return False


def never_in_hole(llm: LocalEngine, sampling: Sampling, mask: Mask) -> tuple[int, ...]:
    """Returns the tokens that a hole cannot have: the mask, and those that end a text."""
    return (mask.token, *llm.tokenizer.eos_ids, *sampling.stop_token_ids)


def hole_record(options: Diffusion, mask: Mask, after: Sequence[int]) -> dict[str, Any]:
    """Returns what the record of a run that fills a hole says of it: `Run.diffusion`."""
    return options.to_dict() | {"adapter": mask.sha256, AFTER: list(after)}


def fill_holes(
    llm: LocalEngine,
    before: Sequence[int],
    after: Sequence[int],
    width: int,
    samplings: Sequence[Sampling],
    salts: Sequence[int],
    options: Diffusion,
    mask: Mask,
    deadline: Deadline | None = None,
) -> list[Hole]:
    """Fills a hole of `width` tokens once for each of the samplings and salts, all of them together."""
    if options.revise and options.revise_by == "likelihood":
        raise GlassloopError.about(
            "diffusion.revise_by",
            "is 'likelihood'; in a hole, which has a text after it, only 'confidence' is",
        )
    for sampling in samplings:
        check_stages_can_fill(sampling)
    if not before:
        raise GlassloopError.about("before", "is empty; at least one token is expected")
    tasks, pilots = [], []
    for sampling, salt in zip(samplings, salts, strict=True):
        drawn = Run(llm.name, list(before), sampling.seed or 0, llm.config.context, sampling, salt)
        decoder = llm.engine.loop.context.decoder(drawn, before, None, never_in_hole(llm, sampling, mask))
        pilot = _Pilot(MaskedRows(before, width, after, mask), Filling(width, options, decoder, mask.token))
        task = Masked(pilot.rows.tokens, pilot.rows.kept, pilot.first(), pilot, deadline)
        task.branch.check_pass(llm.transformer, "tokens")
        tasks.append(task)
        pilots.append(pilot)
    compute_all(llm.engine, tasks)
    holes = []
    for pilot in pilots:
        filling = pilot.filling
        chosen = [each for each in filling.chosen if each is not None]
        holes.append(Hole([each.id for each in chosen], chosen, filling.records, pilot.computed))
    return holes
