"""What `generate` and `fork` print and keep: the text while it is generated, and a line of statistics."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

import typer

from glassloop.cli.options import OutputFlags
from glassloop.cli.sampling_text import sampling_words
from glassloop.cli.show import Painter
from glassloop.cli.stored_runs import keep
from glassloop.cli.terminal import print_json, visible, wrapped
from glassloop.util.plain_text import known

if TYPE_CHECKING:
    from glassloop.cli.loading import AnyEngine
    from glassloop.engine.request import Request
    from glassloop.record.run import Run


def print_runs(llm: AnyEngine, request: Request, output: OutputFlags) -> None:
    """Computes a request, prints its text while it is generated (several samples when all have ended), and
    keeps its runs."""
    runs, interrupted = request.runs, False
    with closing(Painter(None if output.json_output else output.show)) as painter:
        streamed = not output.json_output and len(runs) == 1
        if streamed and runs[0].tokens:  # those that a fork has from its parent
            painter.begin("".join([token.text for token in runs[0].tokens]))
        try:
            for token in llm.follow(request, settled=True):
                if streamed:
                    painter.write(token)
        except KeyboardInterrupt:
            # The text so far is printed and kept; the statistics say that it was cancelled.
            interrupted = True
        if not output.json_output:
            _finish(llm, runs, painter)
    if output.json_output:
        print_json(with_samples(runs))
    if output.trace is not None:
        runs[0].save(output.trace)
    taken_back = [draft for run in runs for draft in run.drafts_taken_back]
    kept = output.store and keep([*runs, *taken_back])
    if not output.json_output:
        print(wrapped(statistics(llm, runs[0], kept), sys.stderr), file=sys.stderr)
    if interrupted:
        raise typer.Exit(130)


def with_samples(runs: list[Run]) -> dict[str, Any]:
    """Returns the first run as JSON has it, with all samples if there are several."""
    samples = {"samples": [run.to_dict() for run in runs]} if len(runs) > 1 else {}
    return runs[0].to_dict() | samples


def _finish(llm: AnyEngine, runs: list[Run], painter: Painter) -> None:
    """Ends the text of a single run, or prints several; then, on a terminal, the tree of a beam search."""
    for run in runs:
        if len(runs) > 1:
            print(f"── {run.sample + 1} of {len(runs)} ──")
            for token in run.tokens:
                painter.write(token)
        painter.end(run)
    if legend := painter.legend(runs[0]):
        print(legend, file=sys.stderr)
    if runs[0].beams and sys.stdout.isatty():
        from glassloop.cli.beams import print_beams

        print()
        print_beams(runs[0], llm.piece)


def statistics(llm: AnyEngine, run: Run, kept: bool) -> str:
    usage, speed = run.usage, run.timings.tokens_per_second(len(run.tokens) - (run.fork_at or 0))
    continued = run.prompt is not None and run.fork_at is None and llm.tokenizer.can_chat
    parts = [
        run.model,
        f"{llm.ops} ops" if run.upstream is None else llm.op_set,
        f"{known(usage.prompt_tokens)} + {known(usage.completion_tokens)} tokens",
        f"first after {run.timings.prefill:.2f} s",
        f"{speed:.1f} tokens/s" if speed else "",
        f"{run.drafts.accepted} drafted" if run.drafts.accepted else "",
        f"taken back {run.revised} times" if run.revised else "",
        sampling_words(run.sampling, llm.default_sampling),
        f"seed {run.seed}",
        f"run {run.id[:8]}" if kept else "",
        f"ended by {run.finish_reason}" + (f" ({run.stop_reason!r})" if run.stop_reason else ""),
        # A newcomer may expect an answer to the prompt; in a pipe, that is known.
        "text continued (--chat asks the model)" if continued and sys.stderr.isatty() else "",
    ]
    return visible(" · ".join(part for part in parts if part), newlines=False)
