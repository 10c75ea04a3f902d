"""`glassloop diff`: where two recorded runs differ, and why."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

from glassloop.cli.compare import print_texts
from glassloop.cli.flags import Only, takes_flags
from glassloop.cli.options import EngineFlags, Json, RunModel
from glassloop.cli.remote import ServerFlags
from glassloop.cli.run_model import model_of
from glassloop.cli.stored_runs import Name, find_runs, found_as
from glassloop.cli.terminal import print_json, visible, wrapped
from glassloop.errors import GlassloopError

if TYPE_CHECKING:
    from glassloop.record.diff import Diff
    from glassloop.record.run import Run


@takes_flags()
def diff(
    first: Name,
    second: Name,
    *,
    model: RunModel = None,
    as_json: Json = False,
    engine: Annotated[EngineFlags, Only("plugin")],
    remote: ServerFlags,
) -> None:
    """Say where two runs differ first, and which option, seed, prompt or token is the reason."""
    engine.load_plugins()
    server = remote.connect()
    one, other = find_runs(first, server)[0], find_runs(second, server)[0]
    difference = _compared(found_as(first, one, server), one, other, model, engine)
    if as_json:
        texts = {
            "first_run": one.id,
            "first_text": one.text,
            "second_run": other.id,
            "second_text": other.text,
        }
        print_json(difference.to_dict() | texts)
        return
    print(wrapped(visible(difference.sentence, newlines=False)) + "\n")
    print_texts([one.id[:8], other.id[:8]], [one, other], [difference, difference])


def _compared(name: str, one: Run, other: Run, model: str | None, engine: EngineFlags) -> Diff:
    """Returns the difference. The model is loaded only where it is needed to find the reason; if it is not
    here, and none was named, a notice says so and all differences are listed."""
    from glassloop.record.diff import diff as compare

    difference = compare(one, other)
    if difference.same or not difference.causes or any(cause.decisive for cause in difference.causes):
        return difference
    try:
        one.attach(engine.load(model or model_of(name, one)))
    except GlassloopError as error:
        if model is not None:
            raise
        print(
            f"glassloop: the reason was not looked for: {visible(str(error), newlines=False)}",
            file=sys.stderr,
        )
        return difference
    return compare(one, other)
