"""`glassloop infill` and `glassloop edit`: text that is filled in, rewritten or repaired, with the bits of
each change. In a pipe, stdout has the text alone; on a terminal, what went and what came are in colours.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glassloop.cli.diffusion import Holes
from glassloop.cli.generate import OneJson
from glassloop.cli.help import INPUT, OUTPUT
from glassloop.cli.options import (
    DEFAULT_MODEL,
    Colors,
    KVMemory,
    Model,
    Ops,
    Plugins,
    given,
    load_plugins,
    read_text,
    takes_sampling,
)
from glassloop.cli.terminal import (
    Color,
    dim,
    has_colours,
    plain_lines,
    print_json,
    print_text,
    set_color,
    visible,
    wrapped,
)
from glassloop.errors import GlassloopError, TextError

if TYPE_CHECKING:
    from glassloop.api.llm import LLM
    from glassloop.decode.sampling import Sampling
    from glassloop.edit.record import Edit

_MOST_TEXT = 4 << 20  # bytes of a file
_SPAN = re.compile(r"(\d{1,9}):(\d{1,9})")
_REMOVED, _ADDED, _END = "\x1b[31;9m", "\x1b[32;1m", "\x1b[0m"


class EditMethod(StrEnum):
    RERANK = "rerank"
    METROPOLIS = "metropolis"


class InfillMethod(StrEnum):
    RERANK = "rerank"
    METROPOLIS = "metropolis"
    HOLES = "holes"


class Proposer(StrEnum):
    LEFT = "left"
    DIFFUSION = "diffusion"


_Proposer = Annotated[
    Proposer,
    typer.Option(
        "--proposer",
        metavar="WHICH",
        help="left draws replacements from the text before; diffusion fills masks that see both sides.",
        rich_help_panel=INPUT,
    ),
]
_TokensOfHole = Annotated[
    int, typer.Option("--tokens", metavar="N", help="The length of the hole.", rich_help_panel=INPUT)
]
_Candidates = Annotated[
    int,
    typer.Option("--candidates", metavar="N", help="How many replacements to draw.", rich_help_panel=INPUT),
]
_Method = Annotated[
    EditMethod | None,
    typer.Option(
        "--method",
        metavar="METHOD",
        help="How a span is rewritten: rerank (default) takes the likeliest, with what follows; metropolis"
        " draws one by its probability given both sides.",
        show_default=False,
        rich_help_panel=INPUT,
    ),
]
_Window = Annotated[
    int,
    typer.Option("--window", metavar="N", help="How many tokens after a span count.", rich_help_panel=INPUT),
]
_Record = Annotated[
    Path | None,
    typer.Option(
        "--record", metavar="FILE", help="Save the record of the edit as JSON.", rich_help_panel=OUTPUT
    ),
]
_All = Annotated[bool, typer.Option("--all", help="List refused proposals too.", rich_help_panel=OUTPUT)]


def infill(
    before: Annotated[str, typer.Argument(metavar="BEFORE", help="The text before the hole.")],
    after: Annotated[str, typer.Argument(metavar="AFTER", help="The text after it.")],
    tokens: _TokensOfHole = 12,
    candidates: _Candidates = 16,
    method: Annotated[
        InfillMethod,
        typer.Option(
            "--method",
            metavar="METHOD",
            help="rerank takes the likeliest, with what follows; metropolis draws one by its probability"
            " given both sides; holes is rerank with --proposer diffusion.",
            rich_help_panel=INPUT,
        ),
    ] = InfillMethod.RERANK,
    window: _Window = 32,
    proposer: _Proposer = Proposer.LEFT,
    holes: Holes = None,
    every: _All = False,
    record: _Record = None,
    model: Model = DEFAULT_MODEL,
    json_output: OneJson = False,
    color: Colors = Color.AUTO,
    ops: Ops = None,
    kv_memory: KVMemory = None,
    plugin: Plugins = None,
    **options: Any,
) -> None:
    """Fill a hole between two texts with what suits both sides."""
    from glassloop.cli.kept import load

    set_color(color)
    load_plugins(plugin)
    sampling = _sampling(options)
    llm = load(model, ops, kv_memory)
    if holes is not None:
        llm.load_holes(holes)
    with _counting(llm, "Filling"):
        edit = llm.infill(
            before,
            after,
            tokens,
            candidates=candidates,
            method=method.value,
            window=window,
            sampling=sampling,
            proposer=proposer.value,
        )
    _print(edit, json_output, every, record)


def edit(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The text to edit; '-' reads it from stdin.")],
    span: Annotated[
        list[str] | None,
        typer.Option(
            "--span",
            metavar="A:B",
            help="Rewrite the characters from A to B, counted from 0; may be repeated. Without it, what is"
            " surprising is repaired.",
            show_default=False,
            rich_help_panel=INPUT,
        ),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(
            "--prompt",
            metavar="TEXT",
            help="What comes before the text; it is not edited.",
            rich_help_panel=INPUT,
        ),
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(
            "--tokens",
            metavar="N",
            help="The length of a replacement; by default that of a span, or 6 where the text is repaired.",
            rich_help_panel=INPUT,
        ),
    ] = None,
    candidates: _Candidates = 8,
    method: _Method = None,
    window: Annotated[
        int | None,
        typer.Option(
            "--window",
            metavar="N",
            help="How many tokens after a span count; by default 16, or 4 with --proposer diffusion.",
            show_default=False,
            rich_help_panel=INPUT,
        ),
    ] = None,
    proposer: Annotated[
        Proposer,
        typer.Option(
            "--proposer",
            metavar="WHICH",
            help="left repairs spans by draws from the text before; diffusion replaces single tokens by what"
            " masks expect that see both sides.",
            rich_help_panel=INPUT,
        ),
    ] = Proposer.LEFT,
    holes: Holes = None,
    budget: Annotated[
        int | None,
        typer.Option(
            "--budget",
            metavar="N",
            help="Stop repairing after computing N tokens; by default 40 for each of the text, or 80 with"
            " --proposer diffusion.",
            rich_help_panel=INPUT,
        ),
    ] = None,
    least_gain: Annotated[
        float | None,
        typer.Option(
            "--least-gain",
            metavar="BITS",
            help="Repair only what saves at least this many bits; by default 3, or 4 bits of evidence with"
            " --proposer diffusion.",
            show_default=False,
            rich_help_panel=INPUT,
        ),
    ] = None,
    check: Annotated[
        str | None,
        typer.Option(
            "--check",
            metavar="NAME",
            help="Draw the end anew until this verifier accepts the text: contains:WORD, regex:PATTERN,"
            " json:SCHEMA or number:VALUE.",
            rich_help_panel=INPUT,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write the edited text to this file.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    every: _All = False,
    record: _Record = None,
    model: Model = DEFAULT_MODEL,
    json_output: OneJson = False,
    color: Colors = Color.AUTO,
    ops: Ops = None,
    kv_memory: KVMemory = None,
    plugin: Plugins = None,
    **options: Any,
) -> None:
    """Repair a text where it is surprising from both sides, or rewrite spans of it."""
    from glassloop.cli.kept import load
    from glassloop.util.files import write_text

    set_color(color)
    load_plugins(plugin)
    sampling = _sampling(options)
    spans = [_span(each) for each in span or ()]
    given_for_repair = [prompt, budget, check, least_gain, None if proposer is Proposer.LEFT else proposer]
    if spans and any(each is not None for each in given_for_repair):
        raise GlassloopError(
            "--prompt, --budget, --check, --least-gain and --proposer are for repairing; with --span they are"
            " not expected"
        )
    if not spans and method is not None:
        raise GlassloopError("--method is for rewriting; --span is expected with it")
    text = _read(file)
    llm = load(model, ops, kv_memory)
    if holes is not None:
        llm.load_holes(holes)
    with _counting(llm, "Rewriting" if spans else "Repairing"):
        if spans:
            made = llm.rewrite(
                text,
                spans,
                sampling,
                tokens=tokens,
                candidates=candidates,
                method=(method or EditMethod.RERANK).value,
                window=16 if window is None else window,
            )
        else:
            made = llm.repair(
                text,
                prompt=prompt,
                budget=budget,
                candidates=candidates,
                tokens=tokens,
                window=window,
                least_gain=least_gain,
                sampling=sampling,
                check=check,
                proposer=proposer.value,
            )
    if output is not None:
        write_text(output, made.text)
    _print(made, json_output, every, record)


takes_sampling(infill, prefix="Options of the draws", unset=True)
takes_sampling(edit, prefix="Options of the draws", unset=True)


@contextmanager
def _counting(llm: LLM, what: str) -> Iterator[None]:
    """Shows on stderr, if that is a terminal, how much has been computed, and clears the line afterwards."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    counters, began = llm.engine.loop.counters, perf_counter()
    before = counters.rows

    def draw() -> Text:
        return Text(f"{what} … {counters.rows - before} tokens computed, {perf_counter() - began:.0f} s")

    with Live(get_renderable=draw, console=Console(stderr=True), refresh_per_second=4, transient=True):
        yield


def _sampling(options: dict[str, Any]) -> Sampling:
    from glassloop.decode.defaults import with_defaults
    from glassloop.edit.infill import DRAWN

    return with_defaults(given(options), DRAWN)


def _span(text: str) -> tuple[int, int]:
    found = _SPAN.fullmatch(text)
    if found is None:
        raise GlassloopError.about("--span", f"is {text[:80]!r}; A:B is expected, such as 10:25")
    return int(found[1]), int(found[2])


def _read(file: str) -> str:
    from glassloop.util.files import read_at_most

    if file == "-":
        return read_text("-")
    data = read_at_most(Path(file), _MOST_TEXT, TextError)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TextError(f"{file}: is not UTF-8 text: byte {error.start}") from None


def _print(edit: Edit, json_output: bool, every: bool, record: Path | None) -> None:
    if record is not None:
        edit.save(record)
    if json_output:
        print_json(edit.to_dict())
        return
    if has_colours():
        print(wrapped(visible_diff(edit)))
    else:
        print_text(edit.text)
    for each in edit.proposals:
        if each.accepted or every:
            mark = "+" if each.accepted else "-"
            change = f"{mark} {visible(repr(each.old_text))} → {visible(repr(each.text))}"
            line = f"{change}: {_coloured(each.line, each.accepted)}"
            print(wrapped(line, sys.stderr), file=sys.stderr)
    accepted, count = len(edit.accepted), len(edit.proposals)
    parts = [
        edit.model,
        f"{accepted} of {count} proposals accepted",
        f"{edit.sampled} tokens drawn, {edit.scored} scored",
        f"seed {edit.seed}",
    ]
    print(wrapped(dim(visible(" · ".join(parts), newlines=False), sys.stderr), sys.stderr), file=sys.stderr)


def _coloured(line: str, accepted: bool) -> str:
    if not has_colours(sys.stderr):
        return line
    return f"\x1b[32m{line}{_END}" if accepted else dim(line, sys.stderr)


def visible_diff(edit: Edit) -> str:
    """Returns the text with what went struck out in red and what came in green."""
    from difflib import SequenceMatcher

    old, new = (re.findall(r"\s*\S+|\s+$", plain_lines(text)) for text in (edit.before, edit.text))
    made = []
    for kind, i1, i2, j1, j2 in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        gone, come = visible("".join(old[i1:i2])), visible("".join(new[j1:j2]))
        if kind == "equal":
            made.append(come)
            continue
        made += [f"{_REMOVED}{gone}{_END}"] * bool(gone) + [f"{_ADDED}{come}{_END}"] * bool(come)
    return "".join(made)
