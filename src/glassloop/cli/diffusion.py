"""`generate --diffusion`: a text that is filled in passes, drawn while it is, and its passes afterwards."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glassloop.cli.flags import Flags, flag
from glassloop.cli.help import INPUT, OUTPUT
from glassloop.cli.options import OutputFlags, RunModel
from glassloop.cli.run_model import model_of
from glassloop.cli.run_output import statistics, with_samples
from glassloop.cli.stored_runs import Name, find_runs, keep
from glassloop.cli.terminal import has_colours, print_json, visible, wrapped
from glassloop.decode.diffusion import Diffusion
from glassloop.errors import GlassloopError, TraceError

if TYPE_CHECKING:
    from rich.text import Text

    from glassloop.cli.loading import AnyEngine
    from glassloop.diffuse.frames import Frame, FrameCell
    from glassloop.engine.request import Request
    from glassloop.record.run import Run

MASKED = "░"


@dataclass(frozen=True)
class DiffusionFlags(Flags, group=INPUT):
    """Whether a text is written by filling masks, and how."""

    diffusion: bool = flag(
        False,
        "Write by filling masks, block by block, in passes. On a terminal it can be watched.",
        "--diffusion",
    )
    fill: list[str] | None = flag(
        None,
        "An option of --diffusion: block, passes, threshold, entropy, most, order, revise, retake or"
        " revise_by. May be given several times.",
        metavar="NAME=VALUE",
    )

    @property
    def filling(self) -> Diffusion:
        """The options of `--fill`."""
        values: dict[str, Any] = {}
        for text in self.fill or ():
            name, equals, value = text.partition("=")
            if not equals:
                raise GlassloopError(f"--fill is {text!r}; NAME=VALUE is expected")
            values[name] = _value(value)
        return Diffusion.of(values)


def _value(text: str) -> int | float | str | None:
    if text == "none":
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def print_diffused(llm: AnyEngine, request: Request, output: OutputFlags) -> None:
    """Writes a text by diffusion and prints it: on a terminal after each pass, else at the end. The text so
    far is printed and kept when Ctrl-C interrupts it."""
    from rich.console import Console
    from rich.live import Live

    from glassloop.api.llm import LLM
    from glassloop.diffuse.frames import Frames
    from glassloop.diffuse.write import DiffusionRequest, follow_passes

    assert isinstance(llm, LLM) and isinstance(request, DiffusionRequest)
    runs, interrupted = request.runs, False
    run = runs[0]
    drawn = sys.stdout.isatty() and not output.json_output and len(runs) == 1
    maker = Frames(run, llm.piece, llm.tokenizer.eos_ids)
    with Live(console=Console(), auto_refresh=False, transient=True) if drawn else nullcontext() as live:
        try:
            for _, record in follow_passes(llm.engine, request):
                if live is not None:
                    live.update(_screen(run, maker.at(record.number)), refresh=True)
        except KeyboardInterrupt:
            interrupted = True
    if output.json_output:
        print_json(with_samples(runs))
    else:
        for each in runs:
            text = visible(each.text) if sys.stdout.isatty() else each.text
            print(f"── {each.sample + 1} of {len(runs)} ──\n" * (len(runs) > 1) + text)
    if output.trace is not None:
        run.save(output.trace)
    kept = output.store and keep(runs)
    if not output.json_output:
        rows = sum(len(record.filled) for record in run.passes)
        passes = f"{len(run.passes)} passes, {rows / max(1, len(run.passes)):.1f} tokens each"
        print(wrapped(f"{statistics(llm, run, bool(kept))} · {passes}", sys.stderr), file=sys.stderr)
    if interrupted:
        raise typer.Exit(130)


def _screen(run: Run, frame: Frame) -> Text:
    """Returns the text after a pass: the complete blocks, and the one that is being filled."""
    from rich.text import Text

    before = "".join([token.text for token in run.tokens[: frame.first]])
    return Text(visible(before)).append_text(frame_text(frame.cells))


def frame_text(cells: list[FrameCell], newlines: bool = True) -> Text:
    """Returns the cells of a frame as text; what the pass has changed is marked by colour. Without `newlines`
    it is one line."""
    from rich.text import Text

    text = Text()
    for cell in cells:
        style = "bold green" if cell.changed and cell.text is not None else "red" if cell.changed else ""
        text.append(
            MASKED if cell.text is None else visible(cell.text, newlines=newlines),
            style if has_colours() else "",
        )
    return text


def passes(
    name: Name,
    number: Annotated[
        int | None, typer.Option("--pass", metavar="N", help="Show one pass in full.", rich_help_panel=OUTPUT)
    ] = None,
    model: RunModel = None,
) -> None:
    """Show how a text that was written by diffusion was filled, pass after pass."""
    from rich.console import Console

    from glassloop.diffuse.frames import frames

    run = find_runs(name)[0]
    if run.diffusion is None:
        raise TraceError(f"run {run.id[:8]} was not written by diffusion, so it has no passes")
    pieces = {token.id: token.piece for token in run.tokens}
    if model is not None or any(each.id not in pieces for record in run.passes for each in record.filled):
        from glassloop.model.loader import load_tokenizer

        tokenizer = load_tokenizer(model or model_of(name, run))
        pieces |= {each.id: tokenizer.piece(each.id) for record in run.passes for each in record.filled}
    console = Console(highlight=False)
    for record, frame in zip(run.passes, frames(run, pieces.__getitem__), strict=True):
        if number is not None and record.number != number:
            continue
        block = frame_text(frame.cells, newlines=False)
        console.print(f"{record.number:4d}  ", block, sep="", end="\n")
        if number is not None:
            for taken in record.unfilled:
                token = visible(pieces.get(taken.id, str(taken.id)), newlines=False)
                console.print(f"      {taken.at}: {token!r} taken back ({taken.why})", markup=False)
            for each in record.filled:
                token = visible(pieces[each.id], newlines=False)
                console.print(
                    f"      {each.at}: {token!r} filled, confidence {each.confidence:.3f}, entropy"
                    f" {each.entropy:.2f} nats",
                    markup=False,
                )
