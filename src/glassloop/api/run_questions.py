"""Questions about a recorded run: which code answers them depends on where the run came from, and this is
the one place that decides it.

    this engine, from left to right    engine/replay.py
    this engine, by filling masks      diffuse/replay.py
    another engine                     record/reported.py, from what that engine reported
"""

from __future__ import annotations

from typing import Any

from glassloop.decode.explanation import Explanation
from glassloop.engine.deadline import Deadline, check_deadline
from glassloop.engine.local import LocalModel
from glassloop.engine.replay import explain_token, replay_run
from glassloop.record.reported import explain_reported
from glassloop.record.run import Run, check_is_run
from glassloop.record.verdict import ReplayVerdict


def explain(
    llm: LocalModel, run: Run, at: int, deadline: Deadline | None = None, **options: Any
) -> Explanation:
    """Returns why the token at this place of a run is there. `explain_token` and `explain_fill` have the
    options. The prompt of a run is read from left to right, however its answer was written."""
    check_is_run(run)
    check_deadline(deadline)
    if not run.origin.is_local:
        return explain_reported(run, at, **options)
    if not run.origin.in_order and options.get("of", "answer") == "answer":
        from glassloop.diffuse.replay import explain_fill

        options.pop("of", None)
        return explain_fill(llm, run, at, deadline=deadline, **options)
    return explain_token(llm, run, at, deadline=deadline, **options)


def replay(
    llm: LocalModel, run: Run, first: int = 0, strict: bool = True, deadline: Deadline | None = None
) -> ReplayVerdict:
    """Computes a recorded run once more, from the token `first` on, and compares every number. A run of
    another engine is refused."""
    check_is_run(run)
    check_deadline(deadline)
    if not run.origin.in_order:
        from glassloop.diffuse.replay import replay_passes

        return replay_passes(llm, run, first, strict, deadline)
    return replay_run(llm, run, first, strict, deadline)
