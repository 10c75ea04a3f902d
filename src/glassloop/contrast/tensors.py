"""Which weights turn a token: those of the second model are put into the first one, half of them at a time,
until the weights are found with which the choice changes."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import NamedTuple

from glassloop.engine.deadline import Deadline
from glassloop.engine.local import LocalModel
from glassloop.engine.replay import decoder_at
from glassloop.model.cache import Branches
from glassloop.model.graft import graft, weight_names
from glassloop.model.transformer import Transformer
from glassloop.record.run import Run


class RunPlace(NamedTuple):
    """A place of a run of the first model at which the second one chose another token."""

    run: Run
    at: int


class TurningWeights(NamedTuple):
    """The weights with which the choice changes, given that all before them in the model are exchanged."""

    name: str
    alone: bool  # whether these weights alone change it


def find_tensor(
    first: LocalModel, second: LocalModel, place: RunPlace, deadline: Deadline | None
) -> TurningWeights | None:
    """Returns the weights of the second model that turn the token which the first model chose at a place, or
    None if all of them together do not: then the forward passes differ in something else."""
    model, donor = first.transformer, second.transformer
    names = weight_names(model)

    def turns(exchanged: Set[str]) -> bool:
        return not chooses_recorded(first, graft(model, donor, exchanged), place, deadline)

    # With the first `low` weights exchanged the choice is the recorded one, with the first `high` it is not.
    low, high = 0, len(names)
    if not turns(frozenset(names)):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if turns(frozenset(names[:middle])):
            high = middle
        else:
            low = middle
    name = names[high - 1]
    return TurningWeights(name, high == 1 or turns(frozenset([name])))


def count_back(
    first: LocalModel,
    second: LocalModel,
    names: Sequence[str],
    places: Sequence[RunPlace],
    deadline: Deadline | None,
) -> int:
    """Returns at how many places the second model, with these weights of the first one, chooses as the first
    one did."""
    mended = graft(second.transformer, first.transformer, frozenset(names))
    return sum(chooses_recorded(first, mended, place, deadline) for place in places)


def chooses_recorded(llm: LocalModel, model: Transformer, place: RunPlace, deadline: Deadline | None) -> bool:
    """Returns whether a model chooses the token that a run has at a place, with the options and the luck of
    the run. Its keys and values are computed anew, as they depend on the weights."""
    if deadline is not None:
        deadline.check()
    run, at = place
    ids = [*run.prompt_ids, *run.token_ids[:at]]
    logits = Branches(model, len(ids)).forward([(0, 0, ids)])[-1]
    records = run.tokens if run.end is None else [*run.tokens, run.end]
    return decoder_at(llm, run, at).choose(logits).id == records[at].id
