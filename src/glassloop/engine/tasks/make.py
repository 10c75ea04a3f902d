"""Makes the tasks of a request. The loop knows no kind of task by name.

Another kind of request registers a function of its own with `tasks_of`, as diffuse/write.py does.
"""

from __future__ import annotations

from functools import singledispatch

from glassloop.engine.request import Request
from glassloop.engine.tasks.context import TaskContext
from glassloop.engine.tasks.reading import Reading
from glassloop.engine.tasks.sample import Sample
from glassloop.engine.tasks.task import Asker, Task
from glassloop.errors import GlassloopError


@singledispatch
def tasks_of(request: Asker, context: TaskContext, order: tuple[int, int]) -> list[Task]:
    """Returns the tasks of a request. The loop queues the first one, which queues the others."""
    raise GlassloopError(f"there is no kind of task for a {type(request).__name__}")


@tasks_of.register(Request)
def _writers(request: Request, context: TaskContext, order: tuple[int, int]) -> list[Task]:
    """Returns the tasks of a request whose runs are written from left to right: a beam search, or a sample
    for each run."""
    request.adapter = context.adapters.number_of(request.sampling.adapter, request.runs[0].adapters)
    if context.transformer.config.mask_token is not None:
        raise GlassloopError(
            "this model fills masks and does not write from left to right; diffuse() is expected"
        )
    if request.sampling.beam_width > 1:
        from glassloop.engine.tasks.beams import Beams

        return [Beams(request, order, context)]
    kind: type[Sample] = Sample
    if request.sampling.revise:
        from glassloop.engine.tasks.revise import Revising

        kind = Revising
    samples = [kind(request, run, order, context) for run in request.runs]
    samples[0].siblings = [*samples[1:]]
    return [*samples]


@tasks_of.register(Reading)
def _reading(reading: Reading, context: TaskContext, order: tuple[int, int]) -> list[Task]:
    """Returns a reading, which is its own task."""
    if not reading.is_next_piece:
        reading.order = order
    reading.host = context.transformer.ops.host
    context.adapters.check_number(reading.branches[0].adapter)
    return [reading]
