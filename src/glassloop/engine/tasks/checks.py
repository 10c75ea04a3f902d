"""Checks of a new task. Its maker has made them already; but rows that a batch cannot compute would be an
error of all tasks in it.
"""

from __future__ import annotations

from glassloop.engine.tasks.masked import MaskedBranch
from glassloop.engine.tasks.task import Task
from glassloop.errors import GlassloopError
from glassloop.model.transformer import Transformer


def check_task(task: Task, transformer: Transformer) -> None:
    """Raises unless all rows of a new task are the model's and fit into its context and into a step."""
    size, context = transformer.config.vocab_size, transformer.config.context
    for branch in task.branches:
        tokens = branch.tokens
        if task.masked and not tokens:
            continue
        if not tokens or len(tokens) > context:
            raise GlassloopError(f"there are {len(tokens)} tokens; 1 to {context} are expected")
        if min(tokens) < 0 or max(tokens) >= size:
            wrong = next(token for token in tokens if not 0 <= token < size)
            raise GlassloopError(f"there is a token id {wrong}; ids from 0 to {size - 1} are expected")
    if task.masked:
        (branch,) = task.branches
        assert isinstance(branch, MaskedBranch)
        _check_pass(branch, transformer)


def _check_pass(branch: MaskedBranch, transformer: Transformer) -> None:
    """Raises unless the first pass of a masked task fits into a step beside others, and its rows are the
    model's."""
    config = transformer.config
    check_rows(branch, transformer)
    for row in [*branch.kept, *branch.next.rows]:
        if not 0 <= row.id < config.vocab_size or not 0 <= row.position < config.context:
            raise GlassloopError(
                f"a row has the token {row.id} at the position {row.position}; a token below"
                f" {config.vocab_size} at a position below {config.context} is expected"
            )


def check_rows(branch: MaskedBranch, transformer: Transformer, field: str | None = None) -> None:
    """Raises unless the next pass of a branch fits into a step beside others. `field` is the option that has
    the number of its rows."""
    config, rows = transformer.config, len(branch.next.rows)
    # Beside other tasks half of a step is always free. A model for whole masked texts has no such tasks.
    most = transformer.ops.step_rows // 2 if config.mask_token is None else config.context
    if 0 < rows <= most:
        return
    expected = f"1 to {most} are expected, since they are computed in one step"
    if field is None:
        raise GlassloopError(f"a pass has {rows} rows; {expected}")
    raise GlassloopError.about(field, f"makes a pass of {rows} rows; {expected}")
