"""`glassloop diff`: where two recorded runs differ, and why."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from glassloop.cli.kept import Name
from glassloop.cli.options import Json, Plugins, RunModel, load_plugins
from glassloop.cli.remote import ServerKey, ServerKeyFile, ServerURL, connect

if TYPE_CHECKING:
    from glassloop.record.diff import Diff
    from glassloop.record.run import Run


def diff(
    first: Name,
    second: Name,
    model: RunModel = None,
    as_json: Json = False,
    plugin: Plugins = None,
    server: ServerURL = None,
    api_key: ServerKey = None,
    api_key_file: ServerKeyFile = None,
) -> None:
    """Say where two runs differ first, and which option, seed, prompt or token is the reason."""
    from glassloop.cli.compare import print_texts
    from glassloop.cli.kept import find_runs, found_as
    from glassloop.cli.terminal import print_json, visible, wrapped

    load_plugins(plugin)
    there = connect(server, api_key, api_key_file)
    one, other = find_runs(first, there)[0], find_runs(second, there)[0]
    told = _compared(found_as(first, one, there), one, other, model)
    if as_json:
        texts = {
            "first_run": one.id,
            "first_text": one.text,
            "second_run": other.id,
            "second_text": other.text,
        }
        print_json(told.to_dict() | texts)
        return
    print(wrapped(visible(told.sentence, newlines=False)) + "\n")
    print_texts([one.id[:8], other.id[:8]], [one, other], [told, told])


def _compared(name: str, one: Run, other: Run, model: str | None) -> Diff:
    """Returns the difference. The model is loaded only where it is needed to find the reason; if it is not
    here, and none was named, a notice says so and all differences are listed."""
    from glassloop.cli.kept import load, model_of
    from glassloop.cli.terminal import visible
    from glassloop.errors import GlassloopError
    from glassloop.record.diff import diff as compare

    told = compare(one, other)
    if told.same or not told.causes or any(cause.decisive for cause in told.causes):
        return told
    try:
        one.attach(load(model or model_of(name, one)))
    except GlassloopError as error:
        if model is not None:
            raise
        print(
            f"glassloop: the reason was not looked for: {visible(str(error), newlines=False)}",
            file=sys.stderr,
        )
        return told
    return compare(one, other)
