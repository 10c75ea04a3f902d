"""`glassloop solve`: answers a question by a search, and shows paths, votes and tokens while it runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glassloop.cli.generate import OneJson, Trace
from glassloop.cli.help import INPUT, OUTPUT
from glassloop.cli.options import (
    DEFAULT_MODEL,
    Colors,
    Draft,
    Keep,
    KVMemory,
    Model,
    ModelDefaults,
    Ops,
    Plugins,
    System,
    given,
    json_or_text,
    load_plugins,
    read_text,
    takes_sampling,
)
from glassloop.cli.terminal import Color, print_json, print_text, set_color, visible, wrapped
from glassloop.decode.sampling import Sampling
from glassloop.errors import GlassloopError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from glassloop.search.running import Running
    from glassloop.search.solution import Path as SearchPath
    from glassloop.search.solution import Solution
    from glassloop.search.solve import Watch

SEARCH = "How to search"
_SHOWN_PATHS = 24  # lines of the live table; the newest are shown


def solve(
    question: Annotated[
        str, typer.Argument(metavar="QUESTION", help="The question; '-' reads it from stdin.")
    ],
    method: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="vote, best, confidence, likelihood, beam, tree, budget, power, greedy, none, or one of your"
            " own (--plugin).",
            rich_help_panel=SEARCH,
        ),
    ] = "vote",
    n: Annotated[
        int | None,
        typer.Option(
            "--n",
            "--samples",
            metavar="N",
            help="How many paths.",
            show_default="the method's",
            rich_help_panel=SEARCH,
        ),
    ] = None,
    extract: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="How the answer is found in a text: number, choice, json, last_line, regex:… or auto.",
            show_default="auto",
            rich_help_panel=SEARCH,
        ),
    ] = None,
    verify: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="What a right text has: number:72, choice:B, contains:…, regex:…, json, json:SCHEMA, or a"
            " verifier of your own (--plugin).",
            rich_help_panel=SEARCH,
        ),
    ] = None,
    judge: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="What each step is judged by; as --verify.", rich_help_panel=SEARCH
        ),
    ] = None,
    budget: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=N",
            help="A limit for all paths together: tokens=4000, seconds=20 or branches=16; may be repeated.",
            show_default=False,
            rich_help_panel=SEARCH,
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=X",
            help="An option of the method, such as warmup=8; may be repeated. docs/thinking.md has all.",
            show_default=False,
            rich_help_panel=SEARCH,
        ),
    ] = None,
    raw: Annotated[
        bool,
        typer.Option(
            "--raw", help="Continue the question as a text, without a chat template.", rich_help_panel=INPUT
        ),
    ] = False,
    system: System = None,
    paths: Annotated[
        bool,
        typer.Option(
            "--paths",
            help="Print the text of every path, not only of the one that won.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    model: Model = DEFAULT_MODEL,
    model_defaults: ModelDefaults = True,
    json_output: OneJson = False,
    trace: Trace = None,
    color: Colors = Color.AUTO,
    store: Keep = True,
    ops: Ops = None,
    kv_memory: KVMemory = None,
    draft: Draft = None,
    plugin: Plugins = None,
    **options: Any,
) -> None:
    """Answer a question by several paths and a method that decides between them."""
    from glassloop.cli.kept import chat_messages, drafter, keep, load
    from glassloop.search.budget import Budget
    from glassloop.search.methods import make_method
    from glassloop.search.solve import Stopped, drive, named_extractor, named_verifier, prepare

    set_color(color)
    load_plugins(plugin)
    asked = given(options)
    Sampling.from_dict(asked)  # errors in the options come before the model is loaded
    own = _pairs(option, "--option")
    if n is not None and "n" in own:
        raise GlassloopError.about("n", "is given twice, by --n and by --option")
    counted = own if n is None else {"n": n, **own}
    chosen = make_method(None if method == "none" else method, counted)
    named_extractor(extract)
    named_verifier(verify)
    named_verifier(judge, "judge")
    if chosen.needs_verifier and verify is None:
        raise GlassloopError.about("verify", f"is missing; the method {method} needs a verifier")
    limits = Budget.of(_pairs(budget, "--budget"))
    text = read_text(question)
    llm = load(model, ops, kv_memory, drafter(draft), model_defaults)
    asked_for = text if raw or system is None else chat_messages(llm, text, system)
    running = prepare(
        llm,
        asked_for,
        None if method == "none" else method,
        extract=extract,
        verify=verify,
        judge=judge,
        budget=limits,
        chat=False if raw else None,
        **counted,
        **asked,
    )
    interrupted = False
    with _shown(running, json_output) as watch:
        try:
            found = drive(running, watch)
        except Stopped as stopped:  # what there is by then is printed and kept
            found, interrupted = stopped.solution, True
    if json_output:
        print_json(found.to_dict(texts=paths))
    else:
        _print_texts(found, paths)
    if trace is not None:
        found.save(trace)
    kept = store and keep([path.run for path in found.paths])
    if not json_output:
        print(wrapped(_statistics(llm.name, found, kept), sys.stderr), file=sys.stderr)
    if interrupted:
        raise typer.Exit(130)


takes_sampling(solve, unset=True)


def _pairs(texts: list[str] | None, flag: str) -> dict[str, Any]:
    """Returns options that were written as NAME=VALUE; several may be separated by commas."""
    found: dict[str, Any] = {}
    for text in texts or ():
        for part in text.split(",") if flag == "--budget" else [text]:
            name, equals, value = part.partition("=")
            if not (equals and name.strip()):
                raise GlassloopError(f"{flag} is {part!r}; NAME=VALUE is expected")
            found[name.strip().replace("-", "_")] = json_or_text(value)
    return found


# ── while it runs ──────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def _shown(running: Running, quiet: bool) -> Iterator[Watch]:
    """Shows a search on stderr while it runs: a live table on a terminal, else a line for each path that has
    ended. If `quiet`, there are no lines, and the table is gone afterwards. Gives the function that is called
    after each round."""
    if not sys.stderr.isatty():
        told: set[int] = set()

        def tell(running: Running) -> None:
            for path in running.paths.ended:
                if path.number not in told and not quiet:
                    told.add(path.number)
                    print(_line(path), file=sys.stderr, flush=True)

        yield tell
        return
    from rich.console import Console
    from rich.live import Live

    def draw() -> RenderableType:
        return _table(running)

    with Live(
        get_renderable=draw, console=Console(stderr=True), refresh_per_second=8, transient=quiet
    ) as live:
        yield lambda running: live.refresh()


def _table(running: Running) -> RenderableType:
    """Returns the paths of a search with what is known of each, and the votes and what is spent."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    paths = [running.preview(path) for path in running.paths]
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("path", "tokens", "confidence"):
        table.add_column(name, justify="right")
    table.add_column("answer", no_wrap=True, overflow="ellipsis", max_width=24)
    table.add_column("state", no_wrap=True, overflow="ellipsis")
    for path in paths[-_SHOWN_PATHS:]:
        style = "" if path.running or path.ended_by in ("stop", "length") else "dim"
        table.add_row(*map(Text, _cells(path)), style=style)
    hidden = f"… and {len(paths) - _SHOWN_PATHS} before\n" if len(paths) > _SHOWN_PATHS else ""
    return Group(table, Text(hidden + _progress(running, paths), "bold"))


def _cells(path: SearchPath) -> list[str]:
    sure = "" if path.confidence is None else f"{path.confidence:.2f}"
    value = "" if path.value is None else visible(path.value, newlines=False)
    state = "running" if path.running else f"{path.ended_by}: {path.why}" if path.why else str(path.ended_by)
    state = ", ".join(part for part in (_judged(path), state) if part)
    return [str(path.number), str(len(path.run.tokens)), sure, value, visible(state, newlines=False)]


def _judged(path: SearchPath) -> str:
    """Returns what the verifier says of a path, if it was asked."""
    verdict = path.verdict
    if verdict is None or verdict.passed:
        return "" if verdict is None else "passed"
    return f"failed ({verdict.reason or f'score {verdict.score:g}'})"


def _line(path: SearchPath) -> str:
    number, tokens, sure, value, state = _cells(path)
    parts = [f"path {number}", value or "no answer", f"{tokens} tokens", sure and f"confidence {sure}", state]
    return " · ".join(part for part in parts if part)


def _progress(running: Running, paths: list[SearchPath]) -> str:
    budget = running.budget
    parts = [
        _votes(_counted(paths)) if running.method.votes else "",
        f"{running.tokens}{f' of {budget.tokens}' if budget.tokens else ''} tokens",
        f"{running.seconds:.1f}{f' of {budget.seconds:g}' if budget.seconds else ''} s",
    ]
    return " · ".join(part for part in parts if part)


def _counted(paths: list[SearchPath]) -> dict[str, float]:
    """Returns the votes as the method has counted them by now, or else how many paths have each answer."""
    from glassloop.search.voting import voters, votes_of

    answers = [path.value for path in voters(paths) if path.value is not None]
    return votes_of(paths) or {answer: float(answers.count(answer)) for answer in answers}


def _votes(votes: dict[str, float]) -> str:
    """Returns the leading answers with their share: "72 ×5 (63 %), 68 ×2 (25 %)"."""
    ranked, total = sorted(votes.items(), key=lambda item: -item[1])[:4], sum(votes.values())
    told = [
        f"{visible(value, newlines=False)[:24]} ×{round(weight, 2):g} ({100 * weight / total:.0f} %)"
        for value, weight in ranked
    ]
    return ", ".join(told)


# ── the result ─────────────────────────────────────────────────────────────────────────────────────────────


def _print_texts(found: Solution, paths: bool) -> None:
    for path in found.paths if paths else [found.path]:
        if path is None:
            continue
        if paths:
            print(f"── path {path.number}{' (the answer)' if path is found.path else ''} ──")
        print_text(path.run.text)


def _statistics(model: str, found: Solution, kept: bool) -> str:
    usage, record = found.usage, found.record
    won = "no path" if found.path is None else f"path {found.path.number}"
    paths = "1 path" if usage.branches == 1 else f"{usage.branches} paths"
    parts = [
        model,
        f"answer {visible(found.value, newlines=False)}" if found.value is not None else "no answer found",
        won,
        "" if found.path is None else _judged(found.path),
        f"votes {_votes(found.votes)}" if found.votes else "",
        f"{record['method']}, {paths}, {usage.tokens} tokens, {usage.seconds:.1f} s",
        f"seed {record['seed']}",
        f"run {found.paths[0].run.id[:8]}" if kept and found.paths else "",
        str(record["cut"]["why"]) if record["cut"] else "",
    ]
    return visible(" · ".join(part for part in parts if part), newlines=False)
