"""`glassloop infill` and `glassloop edit`: text that is filled in, rewritten or repaired, with the bits of
each change. In a pipe, stdout has the text alone; on a terminal, what went and what came are in colours.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glassloop.cli.arguments import read_text
from glassloop.cli.flags import Flags, Only, flag, takes_flags
from glassloop.cli.help import INPUT, OUTPUT
from glassloop.cli.options import DEFAULT_MODEL, EngineFlags, Holes, Model, OutputFlags
from glassloop.cli.sampling_flags import sampling_options
from glassloop.cli.terminal import (
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
from glassloop.util.files import read_at_most, write_text

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


Candidates = Annotated[
    int,
    typer.Option("--candidates", metavar="N", help="How many replacements to draw.", rich_help_panel=INPUT),
]


@dataclass(frozen=True)
class InfillFlags(Flags, group=INPUT):
    """How a hole is filled."""

    tokens: int = flag(12, "The length of the hole.")
    candidates: Candidates = 16
    method: InfillMethod = flag(
        InfillMethod.RERANK,
        "rerank takes the likeliest, with what follows; metropolis draws one by its probability given both"
        " sides; holes is rerank with --proposer diffusion.",
        metavar="METHOD",
    )
    window: int = flag(32, "How many tokens after a span count.")
    proposer: Proposer = flag(
        Proposer.LEFT,
        "left draws replacements from the text before; diffusion fills masks that see both sides.",
        metavar="WHICH",
    )


@dataclass(frozen=True)
class EditFlags(Flags, group=INPUT):
    """Which parts of a text are edited, and how. Without `--span`, what is surprising is repaired."""

    span: list[str] | None = flag(
        None,
        "Rewrite the characters from A to B, counted from 0; may be repeated. Without it, what is surprising"
        " is repaired.",
        metavar="A:B",
    )
    prompt: str | None = flag(None, "What comes before the text; it is not edited.", metavar="TEXT")
    tokens: int | None = flag(
        None, "The length of a replacement; by default that of a span, or 6 where the text is repaired."
    )
    candidates: Candidates = 8
    method: EditMethod | None = flag(
        None,
        "How a span is rewritten: rerank (default) takes the likeliest, with what follows; metropolis draws"
        " one by its probability given both sides.",
        metavar="METHOD",
    )
    window: int | None = flag(
        None, "How many tokens after a span count; by default 16, or 4 with --proposer diffusion."
    )
    proposer: Proposer = flag(
        Proposer.LEFT,
        "left repairs spans by draws from the text before; diffusion replaces single tokens by what masks"
        " expect that see both sides.",
        metavar="WHICH",
    )
    holes: Holes = None
    budget: int | None = flag(
        None,
        "Stop repairing after computing N tokens; by default 40 for each of the text, or 80 with --proposer"
        " diffusion.",
    )
    least_gain: float | None = flag(
        None,
        "Repair only what saves at least this many bits; by default 3, or 4 bits of evidence with --proposer"
        " diffusion.",
        metavar="BITS",
    )
    check: str | None = flag(
        None,
        "Draw the end anew until this verifier accepts the text: contains:WORD, regex:PATTERN, json:SCHEMA or"
        " number:VALUE.",
        metavar="NAME",
    )

    @property
    def spans(self) -> list[tuple[int, int]]:
        """The spans to rewrite. Raises if a flag is given that does not fit."""
        spans = [_span(text) for text in self.span or ()]
        of_repair = (self.prompt, self.budget, self.check, self.least_gain)
        is_repair = any(each is not None for each in of_repair) or self.proposer is not Proposer.LEFT
        if spans and is_repair:
            raise GlassloopError(
                "--prompt, --budget, --check, --least-gain and --proposer are for repairing; with --span they"
                " are not expected"
            )
        if not spans and self.method is not None:
            raise GlassloopError("--method is for rewriting; --span is expected with it")
        return spans


@dataclass(frozen=True)
class EditRecordFlags(Flags, group=OUTPUT):
    """What is listed and written of an edit."""

    output: Path | None = flag(None, "Write the edited text to this file.", "--output", "-o")
    every: bool = flag(False, "List refused proposals too.", "--all")
    record: Path | None = flag(None, "Save the record of the edit as JSON.")


@takes_flags(prefix="Options of the draws", unset=True)
def infill(
    before: Annotated[str, typer.Argument(metavar="BEFORE", help="The text before the hole.")],
    after: Annotated[str, typer.Argument(metavar="AFTER", help="The text after it.")],
    *,
    hole: InfillFlags,
    record: Annotated[EditRecordFlags, Only("every", "record")],
    model: Model = DEFAULT_MODEL,
    engine: Annotated[EngineFlags, Only("holes", "ops", "kv_memory", "plugin")],
    output: Annotated[OutputFlags, Only("json_output", "color")],
    **options: Any,
) -> None:
    """Fill a hole between two texts with what suits both sides."""
    set_color(output.color)
    engine.load_plugins()
    sampling = _sampling(options)
    llm = engine.load(model)
    with _counting(llm, "Filling"):
        edit = llm.infill(
            before,
            after,
            hole.tokens,
            candidates=hole.candidates,
            method=hole.method.value,
            window=hole.window,
            sampling=sampling,
            proposer=hole.proposer.value,
        )
    _print(edit, record, output)


@takes_flags(prefix="Options of the draws", unset=True)
def edit(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The text to edit; '-' reads it from stdin.")],
    *,
    what: EditFlags,
    record: EditRecordFlags,
    model: Model = DEFAULT_MODEL,
    engine: Annotated[EngineFlags, Only("ops", "kv_memory", "plugin")],
    output: Annotated[OutputFlags, Only("json_output", "color")],
    **options: Any,
) -> None:
    """Repair a text where it is surprising from both sides, or rewrite spans of it."""
    set_color(output.color)
    engine.load_plugins()
    sampling = _sampling(options)
    spans = what.spans
    text = _read(file)
    llm = replace(engine, holes=what.holes).load(model)
    with _counting(llm, "Rewriting" if spans else "Repairing"):
        if spans:
            edited = llm.rewrite(
                text,
                spans,
                sampling,
                tokens=what.tokens,
                candidates=what.candidates,
                method=(what.method or EditMethod.RERANK).value,
                window=16 if what.window is None else what.window,
            )
        else:
            edited = llm.repair(
                text,
                prompt=what.prompt,
                budget=what.budget,
                candidates=what.candidates,
                tokens=what.tokens,
                window=what.window,
                least_gain=what.least_gain,
                sampling=sampling,
                check=what.check,
                proposer=what.proposer.value,
            )
    if record.output is not None:
        write_text(record.output, edited.text)
    _print(edited, record, output)


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

    return with_defaults(sampling_options(options), DRAWN)


def _span(text: str) -> tuple[int, int]:
    match = _SPAN.fullmatch(text)
    if match is None:
        raise GlassloopError.about("--span", f"is {text[:80]!r}; A:B is expected, such as 10:25")
    return int(match[1]), int(match[2])


def _read(file: str) -> str:
    if file == "-":
        return read_text("-")
    data = read_at_most(Path(file), _MOST_TEXT, TextError)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TextError(f"{file}: is not UTF-8 text: byte {error.start}") from None


def _print(edit: Edit, record: EditRecordFlags, output: OutputFlags) -> None:
    if record.record is not None:
        edit.save(record.record)
    if output.json_output:
        print_json(edit.to_dict())
        return
    if has_colours():
        print(wrapped(visible_diff(edit)))
    else:
        print_text(edit.text)
    for each in edit.proposals:
        if each.accepted or record.every:
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
    parts = []
    for kind, i1, i2, j1, j2 in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        gone, come = visible("".join(old[i1:i2])), visible("".join(new[j1:j2]))
        if kind == "equal":
            parts.append(come)
            continue
        parts += [f"{_REMOVED}{gone}{_END}"] * bool(gone) + [f"{_ADDED}{come}{_END}"] * bool(come)
    return "".join(parts)
