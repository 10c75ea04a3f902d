"""`glassloop solve`: answers a question by a search, and shows paths, votes and tokens while it runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glassloop.cli.arguments import json_or_text, read_text
from glassloop.cli.flags import Flags, Only, flag, takes_flags
from glassloop.cli.help import INPUT, OUTPUT
from glassloop.cli.loading import chat_messages
from glassloop.cli.options import DEFAULT_MODEL, EngineFlags, Model, OutputFlags, System
from glassloop.cli.sampling_flags import sampling_options
from glassloop.cli.stored_runs import keep
from glassloop.cli.terminal import print_json, print_text, set_color, visible, wrapped
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


@dataclass(frozen=True)
class SearchFlags(Flags, group=SEARCH):
    """The method of a search, and what it needs to know."""

    method: str = flag(
        "vote",
        "vote, best, confidence, likelihood, beam, tree, budget, power, greedy, none, or one of your own"
        " (--plugin).",
        metavar="NAME",
    )
    n: int | None = flag(None, "How many paths.", *("--n", "--samples"), show_default="the method's")
    extract: str | None = flag(
        None,
        "How the answer is found in a text: number, choice, json, last_line, regex:… or auto.",
        metavar="NAME",
        show_default="auto",
    )
    verify: str | None = flag(
        None,
        "What a right text has: number:72, choice:B, contains:…, regex:…, json, json:SCHEMA, or a verifier of"
        " your own (--plugin).",
        metavar="NAME",
    )
    judge: str | None = flag(None, "What each step is judged by; as --verify.", metavar="NAME")
    budget: list[str] | None = flag(
        None,
        "A limit for all paths together: tokens=4000, seconds=20 or branches=16; may be repeated.",
        metavar="NAME=N",
    )
    option: list[str] | None = flag(
        None,
        "An option of the method, such as warmup=8; may be repeated. docs/thinking.md has all.",
        metavar="NAME=X",
    )
    raw: bool = flag(False, "Continue the question as a text, without a chat template.", "--raw", group=INPUT)
    system: System = None
    paths: bool = flag(
        False, "Print the text of every path, not only of the one that won.", "--paths", group=OUTPUT
    )

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of `prepare` beside the question and the options of `Sampling`. Raises for what is
        wrong, before a model is loaded."""
        from glassloop.search.budget import Budget
        from glassloop.search.methods import make_method
        from glassloop.search.solve import named_extractor, named_verifier

        method = None if self.method == "none" else self.method
        options = _pairs(self.option, "--option")
        if self.n is not None and "n" in options:
            raise GlassloopError.about("n", "is given twice, by --n and by --option")
        if self.n is not None:
            options = {"n": self.n, **options}
        needs_verifier = make_method(method, options).needs_verifier
        named_extractor(self.extract)
        named_verifier(self.verify)
        named_verifier(self.judge, "judge")
        if needs_verifier and self.verify is None:
            raise GlassloopError.about("verify", f"is missing; the method {self.method} needs a verifier")
        return {
            "method": method,
            "extract": self.extract,
            "verify": self.verify,
            "judge": self.judge,
            "budget": Budget.of(_pairs(self.budget, "--budget")),
            "chat": False if self.raw else None,
            **options,
        }


@takes_flags(unset=True)
def solve(
    question: Annotated[
        str, typer.Argument(metavar="QUESTION", help="The question; '-' reads it from stdin.")
    ],
    *,
    search: SearchFlags,
    model: Model = DEFAULT_MODEL,
    engine: Annotated[EngineFlags, Only("model_defaults", "ops", "kv_memory", "draft", "plugin")],
    output: Annotated[OutputFlags, Only("json_output", "trace", "color", "store")],
    **options: Any,
) -> None:
    """Answer a question by several paths and a method that decides between them."""
    from glassloop.search.solve import Stopped, drive, prepare

    set_color(output.color)
    engine.load_plugins()
    overrides = sampling_options(options)
    Sampling.from_dict(overrides)  # errors in the options come before the model is loaded
    arguments = search.arguments
    text = read_text(question)
    llm = engine.load(model)
    prompt = text if search.raw or search.system is None else chat_messages(llm, text, search.system)
    running = prepare(llm, prompt, **arguments, **overrides)
    interrupted = False
    with _shown(running, output.json_output) as watch:
        try:
            solution = drive(running, watch)
        except Stopped as stopped:  # what there is by then is printed and kept
            solution, interrupted = stopped.solution, True
    if output.json_output:
        print_json(solution.to_dict(texts=search.paths))
    else:
        _print_texts(solution, search.paths)
    if output.trace is not None:
        solution.save(output.trace)
    kept = output.store and keep([path.run for path in solution.paths])
    if not output.json_output:
        print(wrapped(_statistics(llm.name, solution, kept), sys.stderr), file=sys.stderr)
    if interrupted:
        raise typer.Exit(130)


def _pairs(texts: list[str] | None, flag: str) -> dict[str, Any]:
    """Returns options that were written as NAME=VALUE; several may be separated by commas."""
    values: dict[str, Any] = {}
    for text in texts or ():
        for part in text.split(",") if flag == "--budget" else [text]:
            name, equals, value = part.partition("=")
            if not (equals and name.strip()):
                raise GlassloopError(f"{flag} is {part!r}; NAME=VALUE is expected")
            values[name.strip().replace("-", "_")] = json_or_text(value)
    return values


# ── while it runs ──────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def _shown(running: Running, quiet: bool) -> Iterator[Watch]:
    """Shows a search on stderr while it runs: a live table on a terminal, else a line for each path that has
    ended. If `quiet`, there are no lines, and the table is gone afterwards. Yields the function to call after
    each round."""
    if not sys.stderr.isatty():
        printed: set[int] = set()

        def print_ended(running: Running) -> None:
            for path in running.paths.ended:
                if path.number not in printed and not quiet:
                    printed.add(path.number)
                    print(_line(path), file=sys.stderr, flush=True)

        yield print_ended
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
    shares = [
        f"{visible(value, newlines=False)[:24]} ×{round(weight, 2):g} ({100 * weight / total:.0f} %)"
        for value, weight in ranked
    ]
    return ", ".join(shares)


# ── the result ─────────────────────────────────────────────────────────────────────────────────────────────


def _print_texts(solution: Solution, paths: bool) -> None:
    for path in solution.paths if paths else [solution.path]:
        if path is None:
            continue
        if paths:
            print(f"── path {path.number}{' (the answer)' if path is solution.path else ''} ──")
        print_text(path.run.text)


def _statistics(model: str, solution: Solution, kept: bool) -> str:
    usage, record = solution.usage, solution.record
    won = "no path" if solution.path is None else f"path {solution.path.number}"
    paths = "1 path" if usage.branches == 1 else f"{usage.branches} paths"
    parts = [
        model,
        "no answer found" if solution.value is None else f"answer {visible(solution.value, newlines=False)}",
        won,
        "" if solution.path is None else _judged(solution.path),
        f"votes {_votes(solution.votes)}" if solution.votes else "",
        f"{record['method']}, {paths}, {usage.tokens} tokens, {usage.seconds:.1f} s",
        f"seed {record['seed']}",
        f"run {solution.paths[0].run.id[:8]}" if kept and solution.paths else "",
        str(record["cut"]["why"]) if record["cut"] else "",
    ]
    return visible(" · ".join(part for part in parts if part), newlines=False)
