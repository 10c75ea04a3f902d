"""Makes a recorded edit again and compares every proposal and every number."""

from __future__ import annotations

from dataclasses import replace as changed
from typing import TYPE_CHECKING, Any

from glassloop.decode.sampling import Sampling
from glassloop.decode.task_kinds import (
    INFILL,
    INFILL_MASKS,
    REPAIR,
    REPAIR_CHECK,
    REPAIR_MASKS,
    REWRITE,
    SHARPEN,
    TaskKind,
)
from glassloop.edit.infill import infill, rewrite
from glassloop.edit.power import sharpen
from glassloop.edit.record import Edit, Replay, compare
from glassloop.edit.repair import repair_again
from glassloop.engine.deadline import Cancelled, Deadline, TimedOut
from glassloop.errors import GlassloopError, TraceError

if TYPE_CHECKING:
    from glassloop.engine.local import LocalModel


def replay(edit: Edit, llm: LocalModel, check: Any = None, deadline: Deadline | None = None) -> Replay:
    """Returns the verdict of `Edit.replay`. Raises if another model made the edit."""
    if edit.model_hash != llm.model_hash:
        raise TraceError(f"the edit was made by another model: {edit.model}, and this is {llm.name}")
    try:
        repeated = _again(edit, llm, check, deadline)
    except (Cancelled, TimedOut):
        raise
    except (KeyError, TypeError) as error:
        raise TraceError(f"given does not hold what the edit was made from: {error}") from None
    except GlassloopError as error:
        raise TraceError(f"the edit cannot be made again: {error}") from None
    return compare(edit, repeated)


def _kind_of(edit: Edit) -> TaskKind:
    by_masks = edit.given.get("proposer") == "diffusion"
    if edit.kind == "infill":
        return INFILL_MASKS if by_masks else INFILL
    if edit.kind == "repair":
        return REPAIR_CHECK if edit.given.get("checked") else REPAIR_MASKS if by_masks else REPAIR
    return SHARPEN if edit.kind == "sharpen" else REWRITE


def _again(edit: Edit, llm: LocalModel, check: Any, deadline: Deadline | None) -> Edit:
    arguments = dict(edit.given)
    prompt_ids = arguments.pop("prompt_ids")
    sampling = changed(Sampling.from_dict(arguments.pop("sampling")), seed=edit.seed)
    sampling = _kind_of(edit).acting(sampling)
    if edit.kind == "sharpen":
        return sharpen(llm, prompt_ids, sampling=sampling, deadline=deadline, **arguments)
    if edit.kind == "infill":
        return infill(llm, sampling=sampling, deadline=deadline, **arguments)
    if edit.kind == "repair":
        return repair_again(llm, prompt_ids, arguments, sampling, check, deadline)
    return rewrite(llm, sampling=sampling, deadline=deadline, **arguments)
