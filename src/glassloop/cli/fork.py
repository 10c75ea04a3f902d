"""`glassloop fork`: continues a recorded run from one of its tokens, with another token, other options or new
luck. The old run stays as it is.
"""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from glassloop.cli.flags import REQUIRED, Flags, Only, flag, takes_flags
from glassloop.cli.naming import find_place, forms, token_named
from glassloop.cli.options import EngineFlags, OutputFlags, RunModel
from glassloop.cli.remote import ServerFlags
from glassloop.cli.run_model import model_of
from glassloop.cli.run_output import print_runs
from glassloop.cli.sampling_flags import sampling_options
from glassloop.cli.show import Painter
from glassloop.cli.stored_runs import Name, Which, find_run, is_path
from glassloop.cli.terminal import print_json, print_notes, set_color, visible, working, wrapped
from glassloop.errors import GlassloopError, TextError

if TYPE_CHECKING:
    from glassloop.api.llm import LLM
    from glassloop.cli.loading import AnyEngine
    from glassloop.record.run import Run

_WHERE = "Where to fork"
_ENGINE = Only("ops", "kv_memory", "draft", "plugin", "upstream", "upstream_key_env")


@dataclass(frozen=True)
class ForkFlags(Flags, group=_WHERE):
    """Where a run is forked, and what replaces the token there."""

    at: str = flag(
        REQUIRED,
        "The token to replace: its number, from 0 (-1 is the last), or its text. The number after the last"
        " token continues the whole run.",
        metavar="N|TEXT",
        show_default=False,
    )
    token: str | None = flag(
        None,
        "The token to use instead. It gets a space in front if the old token has one; in quotes (--token"
        " '\"text\"') it is used exactly.",
        metavar="TEXT",
    )
    text: str | None = flag(None, "The text to use instead, of any number of tokens.", metavar="TEXT")

    def place(self, pieces: list[str]) -> int:
        """Returns the number of the token to replace."""
        place = find_place(self.at, pieces, "the run", "--at")
        if not 0 <= place <= len(pieces):
            raise GlassloopError(f"--at is {self.at}; a token from 0 to {len(pieces)} is expected")
        return place


@takes_flags(prefix="Options of the fork", unset=True)
def fork(
    name: Name,
    *,
    where: ForkFlags,
    which: Which = "",
    model: RunModel = None,
    engine: Annotated[EngineFlags, _ENGINE],
    output: OutputFlags,
    remote: ServerFlags,
    **options: Any,
) -> None:
    """Continue a recorded run from one of its tokens, and keep both runs.

    The fork has the options and the luck of the run, except for what is given. If nothing is given, it has
    new luck.
    """
    from glassloop.decode.plugins import plugin_notes

    set_color(output.color)
    if where.token is not None and where.text is not None:
        raise GlassloopError("--token and --text are both given; at most one of them is expected")
    server = remote.connect(
        model=model,
        ops=engine.ops,
        kv_memory=engine.kv_memory,
        draft=engine.draft,
        plugin=engine.plugin,
        upstream=engine.upstream,
        no_store=not output.store,
        samples=options.get("n"),
        **{each: options.get(each) for each in ("adapter", "revise", "beam_width")},
    )
    engine.load_plugins()
    overrides = sampling_options(options)
    run = find_run(name, which, server)
    pieces = [each.piece for each in run.tokens]
    place = where.place(pieces)
    old_piece = pieces[place] if place < len(pieces) else ""
    if server is not None:
        if is_path(name):
            raise GlassloopError(f"{name} is a file; a run of {server.url} is expected with --server")
        with working(f"Forking on {server.url}"):
            token_forms = [] if where.token is None else forms(where.token, old_piece)
            remote_run = server.fork(run, place, token_forms, where.text, overrides)
        _print_remote(remote_run, server.url, output)
        return
    llm: AnyEngine
    if engine.upstream is None:
        llm = engine.load(model or model_of(name, run))
        token = None if where.token is None else _token(llm, where.token, old_piece)
    else:
        llm = engine.connect(model or run.model)
        token = None if where.token is None else _token_named_upstream(run, place, where.token)
    overrides = {"n": 1, "beam_width": 1, **overrides}
    request = llm.prepare_fork(run, place, token=token, text=where.text, **overrides)
    print_notes(plugin_notes(run.plugins))
    print_runs(llm, request, output)


def _token(llm: LLM, name: str, old_piece: str) -> int:
    """Returns the token that `--token` names in place of another one."""
    token = token_named(llm.tokenizer, name, old_piece)
    if token is None:
        problem = f"--token is {name!r}; a single token of {llm.name} is expected"
        raise TextError(f"{problem}; --text takes any text")
    return token


def _token_named_upstream(run: Run, place: int, name: str) -> int:
    """Returns the token that `--token` names, which must be one that the other engine named at this place."""
    replaced = run.tokens[place] if place < len(run.tokens) else None
    if replaced is not None and replaced.piece:
        ids = {each.text: each.id for each in replaced.alternatives}
        for form in forms(name, replaced.piece):
            if form in ids:
                return ids[form]
    raise TextError(f"--token is {name!r}, which was not named at this place; --text takes any text")


def _print_remote(run: Run, url: str, output: OutputFlags) -> None:
    """Prints a fork that a server has made and keeps."""
    if output.trace is not None:
        run.save(output.trace)
    if output.json_output:
        print_json(run.to_dict())
        return
    with closing(Painter(output.show)) as painter:
        painter.begin("".join([token.text for token in run.tokens[: run.fork_at or 0]]))
        for token in run.tokens[run.fork_at or 0 :]:
            painter.write(token)
        painter.end(run)
    ended = f"ended by {run.finish_reason}" + (f" ({run.stop_reason!r})" if run.stop_reason else "")
    parts = (
        run.model,
        url,
        f"{len(run.tokens)} tokens",
        f"seed {run.seed}",
        f"run {run.id[:8]} there",
        ended,
    )
    print(wrapped(visible(" · ".join(parts), newlines=False), sys.stderr), file=sys.stderr)
