"""`glassloop runs`: the runs in the store."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from glassloop.cli.flags import takes_flags
from glassloop.cli.help import App
from glassloop.cli.options import Json
from glassloop.cli.remote import ServerFlags
from glassloop.cli.run_model import beam_pieces, defaults_of, prompt_text
from glassloop.cli.sampling_text import options_line
from glassloop.cli.stored_runs import NAME_HELP, Name, complete_run, find_runs, found_as
from glassloop.cli.terminal import print_json, print_result, print_table, visible
from glassloop.cli.worst import MOST_SHOWN, print_worst, worst_to_dict
from glassloop.errors import TraceError
from glassloop.util.files import write_text
from glassloop.util.shown import cut

_LAST_SECOND = 253402300799  # of the year 9999

app = App(help="List, show, remove, export and import stored runs; back up and upgrade the store.")
_StoreAt = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="FILE|URL",
        help="The store, as `serve --store` names it. Default: GLASSLOOP_STORE, or that of all commands.",
        show_default=False,
    ),
]


@app.command(name="list")
@takes_flags()
def list_runs(
    *,
    limit: Annotated[
        int, typer.Option("--limit", "-n", "-l", metavar="N", min=1, help="How many runs to list.")
    ] = 20,
    search: Annotated[
        str,
        typer.Option(
            "--search",
            "-s",
            metavar="TEXT",
            help="List only runs with this text in their prompt, conversation or answer (in upper or lower"
            " case), or whose id begins with it.",
        ),
    ] = "",
    as_json: Json = False,
    remote: ServerFlags,
) -> None:
    """List the runs in the store, the newest first: those of all commands, of Python and of servers.

    A chat is listed by the last message of the user. With --server, the runs of that server are listed.
    """
    from glassloop.cli.titles import Titles
    from glassloop.record.store.store import Store

    server = remote.connect()
    if server is not None:
        _list_remote(server.runs(limit, search.strip()), as_json)
        return
    store = Store()
    entries, titles = store.list(limit, search.strip()), Titles(store)
    if as_json:
        messages = store.messages([entry.id for entry in entries])
        print_json(
            [
                {**entry.to_dict(), "title": titles.of(entry), "messages": messages.get(entry.id)}
                for entry in entries
            ]
        )
        return
    _print_list(
        [
            (entry.id, entry.created, entry.model, entry.tokens, titles.of(entry), entry.text)
            for entry in entries
        ]
    )


def _list_remote(entries: list[dict[str, Any]], as_json: bool) -> None:
    """Prints runs as a server lists them."""
    if as_json:
        print_json(entries)
        return
    names = ("id", "created", "model", "tokens", "title", "text")
    kinds: tuple[Any, ...] = (str, (int, float), str, int, str, str)
    rows = [tuple(entry.get(name) for name in names) for entry in entries]
    for row in rows:
        if not all(isinstance(value, kind) for value, kind in zip(row, kinds, strict=True)):
            raise TraceError("the server's list of runs cannot be read")
    _print_list(rows)


def _print_list(entries: Sequence[tuple[Any, ...]]) -> None:
    rows = [
        (
            visible(id[:8]),
            time.strftime("%m-%d %H:%M", time.localtime(min(max(created, 0), _LAST_SECOND))),
            model,
            str(tokens),
            cut(title, 40),
            cut(text, 40),
        )
        for id, created, model, tokens, title, text in entries
    ]
    print_table(
        ("run", "when", "model", "tokens", "prompt", "text"),
        rows,
        right=("tokens",),
        cut=("model", "prompt", "text"),
    )


@app.command()
@takes_flags()
def show(
    name: Name,
    *,
    as_json: Json = False,
    remote: ServerFlags,
) -> None:
    """Show a run: its options, its text or conversation, each token with its numbers, and its tree."""
    from glassloop.cli.beams import print_beams
    from glassloop.cli.titles import print_conversation, title_of
    from glassloop.cli.tokens import print_tokens

    server = remote.connect()
    run = find_runs(name, server)[0]
    name = found_as(name, run, server)
    tree = run.tree()
    if as_json:
        print_json(run.to_dict() | {"title": title_of(name, run), "tree": tree.to_dict()})
        return
    speed = run.timings.tokens_per_second(len(run.tokens))
    print(f"run      {run.id}, {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(run.created))}")
    made_by = f"{run.model} ({run.model_hash[:12] or 'unknown'}…), {run.ops}"
    print(f"model    {visible(made_by, newlines=False)}")
    print(f"options  {options_line(run.sampling, defaults_of(name, run))}")
    print(f"seed     {run.seed}" + (f", salt {run.salt:x}" if run.salt else ""))
    ended = visible(f"ended by {run.finish_reason} ({run.stop_reason})", newlines=False)
    if run.finish_reason is None:
        ended = "no end  it is being computed, or its server was killed"
    print(f"{ended}, {len(run.tokens)} tokens", end="")
    print(f", {speed:.1f} tokens/s\n" if speed else "\n")
    if run.messages is None:
        print(visible(prompt_text(name, run)))
        print(visible(run.text) + "\n")
    else:
        print_conversation(run)
    print_tokens(run)
    if run.beams:
        print()
        print_beams(run, beam_pieces(name, run))
    if len(tree) > 1:
        print("\n" + visible(str(tree)))


@app.command()
@takes_flags()
def worst(
    name: Name,
    *,
    count: Annotated[
        int, typer.Option("--count", "-c", metavar="N", min=1, help="How many tokens of each kind.")
    ] = MOST_SHOWN,
    as_json: Json = False,
    remote: ServerFlags,
) -> None:
    """Show where a run may have gone wrong: its most surprising tokens, those that won by luck, and the first
    one below 1 %."""
    run = find_runs(name, remote.connect())[0]
    if as_json:
        print_json({"run": run.id, **worst_to_dict(run.tokens, count)})
    else:
        print_worst(run.tokens, count)


@app.command()
def rm(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN]...", help="The ids of the runs, or their beginnings.", autocompletion=complete_run
        ),
    ] = None,
    keep: Annotated[
        int | None, typer.Option("--keep", metavar="N", min=0, help="Remove all runs except the newest N.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Remove runs from the store: those that are named, or all except the newest."""
    from glassloop.record.store.store import Store

    if bool(names) == (keep is not None):
        raise TraceError("either the ids of runs or --keep N is expected")
    store = Store()
    removed = store.remove(*(names or [])) if keep is None else store.prune(keep)
    left = len(store)
    text = f"removed {removed} run{'' if removed == 1 else 's'}, {left} left"
    print_result({"removed": removed, "left": left}, text, as_json)


@app.command()
@takes_flags()
def export(
    name: Annotated[str, typer.Argument(metavar="RUN", help=NAME_HELP, autocompletion=complete_run)],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write: .glass, .json or .csv.")],
    *,
    tree: Annotated[bool, typer.Option("--tree", help="Export all forks and samples too.")] = False,
    as_json: Json = False,
    remote: ServerFlags,
) -> None:
    """Write a run as a .glass file, which can be replayed, or as a .json or .csv file for other programs.

    A .csv file has one row for each token.
    """
    import json

    from glassloop.record.format.glass_file import write
    from glassloop.record.views.csv_text import to_csv

    run = find_runs(name, remote.connect(tree=tree))[0]
    runs = run.tree().from_run(run) if tree else [run]
    if file.suffix == ".json":
        plain = [each.to_dict() for each in runs]
        write_text(file, json.dumps(plain if tree else plain[0], ensure_ascii=False, allow_nan=False))
    elif file.suffix == ".csv":
        write_text(file, to_csv(runs))
    else:
        write(file, runs)
    size = file.stat().st_size
    text = f"{file}: {len(runs)} run{'' if len(runs) == 1 else 's'}, {size:,} bytes"
    print_result({"run": run.id, "path": str(file), "runs": len(runs), "size": size}, text, as_json)


@app.command(name="import")
def import_runs(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The .glass file to read.")],
    as_json: Json = False,
) -> None:
    """Copy the runs of a .glass file into the store.

    Runs that are in the store already stay as they are; if another run there has the same id, nothing is
    imported.
    """
    from glassloop.record.format.glass_file import read
    from glassloop.record.store.store import Store

    store = Store(origin="file")  # not the user's own: such a run does not decide which model is loaded
    runs, new = read(file), []
    for run in runs:
        here = store.run(run.id)
        if here is None:
            new.append(run)
        elif not here.same_record(run):
            raise TraceError(
                f"run {run.id} of {file} is not the run with this id in the store; remove that one first:"
                f" glassloop runs rm {run.id}"
            )
    if new:
        store.add(*new)
    there = len(runs) - len(new)
    text = f"{file}: {len(new)} run{'' if len(new) == 1 else 's'} imported, {there} there already"
    ids = [run.id for run in runs]
    print_result(
        {"path": str(file), "runs": ids, "imported": len(new)}, visible(text, newlines=False), as_json
    )


@app.command()
def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write; it must not exist yet.")],
    store: _StoreAt = None,
    as_json: Json = False,
) -> None:
    """Copy the whole store into a new file, also while servers and other programs write to it.

    The copy is a store itself: GLASSLOOP_STORE=FILE uses it. A store in PostgreSQL is copied with pg_dump.
    """
    from glassloop.cli.terminal import working
    from glassloop.record.store.store import Store

    opened = Store(store)
    with working("copying"):
        count = opened.backup(file)
    size = file.stat().st_size
    text = f"{file}: {count} run{'' if count == 1 else 's'} of {opened.name}, {size:,} bytes"
    result = {"store": opened.name, "path": str(file), "runs": count, "size": size}
    print_result(result, visible(text, newlines=False), as_json)


@app.command()
def upgrade(store: _StoreAt = None, as_json: Json = False) -> None:
    """Bring a store of an older version of glassloop to this version, and keep a copy of it beside it.

    Until then the store can be read, and nothing is written to it. Older versions cannot open it afterwards.
    """
    from glassloop.cli.terminal import working
    from glassloop.record.store.store import Store

    opened = Store(store)
    with working("upgrading"):
        before, now, copy = opened.upgrade()
    if before == now:
        text = f"{opened.name}: is of version {now} already"
    else:
        text = f"{opened.name}: upgraded from version {before} to {now}"
    if copy is not None:
        text += f"; the store as it was is kept as {copy}"
    result = {"store": opened.name, "before": before, "now": now, "copy": None if copy is None else str(copy)}
    print_result(result, visible(text, newlines=False), as_json)
