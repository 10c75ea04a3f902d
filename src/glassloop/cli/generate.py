"""`glassloop generate`: the text alone on stdout as it comes, one line of statistics on stderr."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glassloop.cli.options import DEFAULT_MODEL, Model, given, takes_sampling
from glassloop.cli.show import Painter, Show
from glassloop.cli.terminal import visible
from glassloop.decode.sampling import Sampling

if TYPE_CHECKING:
    from glassloop.engine.llm import LLM
    from glassloop.engine.request import Request
    from glassloop.trace.run import Run


def generate(
    prompt: Annotated[str, typer.Argument(help="What to continue; '-' reads it from stdin.")],
    model: Model = DEFAULT_MODEL,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
    trace: Annotated[
        Path | None, typer.Option("--trace", metavar="FILE", help="Save the run as a .glass file.")
    ] = None,
    show: Annotated[
        Show | None, typer.Option("--show", help="On a terminal, colour the text by this.")
    ] = None,
    store: Annotated[
        bool, typer.Option("--store/--no-store", help="Keep the run for explain, replay and runs.")
    ] = True,
    kv_memory: Annotated[
        str | None, typer.Option(help="For keys and values: 2GB; a quarter of the free memory if absent.")
    ] = None,
    draft: Annotated[str | None, typer.Option(help="A smaller model that guesses ahead, or 'off'.")] = None,
    **options: Any,
) -> None:
    """Continue a text with a model, token by token."""
    from glassloop.cli.kept import drafter, keep, load

    sampling = Sampling.from_dict(given(options))
    text = sys.stdin.read() if prompt == "-" else prompt
    llm = load(model, kv_memory=kv_memory, draft=drafter(draft))
    request = llm.prepare(text, sampling)
    painter = Painter(show)
    interrupted = False
    try:
        _print_as_it_comes(llm, request, painter, json_output)
    except KeyboardInterrupt:
        # The text so far is worth keeping: finish the line, tell the figures, and say that it was cut.
        interrupted = True
    run = request.runs[0]
    _finish(request.runs, painter, json_output)
    if trace is not None:
        run.save(trace)
    kept = store and keep(request.runs)
    if not json_output:
        print(_statistics(llm, run, kept), file=sys.stderr)
    if interrupted:
        raise typer.Exit(130)


takes_sampling(generate)


def _print_as_it_comes(llm: LLM, request: Request, painter: Painter, json_output: bool) -> None:
    """Several samples come all at once and are printed when they have ended, one after the other."""
    for token in llm.follow(request):
        if not json_output and request.sampling.n == 1:
            painter.write(token)


def _finish(runs: list[Run], painter: Painter, json_output: bool) -> None:
    run = runs[0]
    if json_output:
        from glassloop.cli.terminal import print_json

        others = {"samples": [each.to_dict() for each in runs]} if len(runs) > 1 else {}
        print_json(run.to_dict() | others)
        return
    if len(runs) > 1:
        for each in runs:
            print(f"── {each.sample + 1} of {len(runs)} ──")
            for token in each.tokens:
                painter.write(token)
            painter.end(each)
    else:
        painter.end(run)
    if legend := painter.legend(run):
        print(legend, file=sys.stderr)


def _statistics(llm: LLM, run: Run, kept: bool) -> str:
    usage, speed = run.usage, run.timings.tokens_per_second(len(run.tokens))
    parts = [
        run.model,
        f"{llm.ops} ops",
        f"{usage.prompt_tokens} + {usage.completion_tokens} tokens",
        f"first after {run.timings.prefill:.2f} s",
        f"{speed:.1f} tokens/s" if speed else "",
        f"{run.drafts.accepted} guessed" if run.drafts.accepted else "",
        f"seed {run.seed}",
        f"run {run.id[:8]}" if kept else "",
        f"ended by {run.finish_reason}" + (f" ({run.stop_reason!r})" if run.stop_reason else ""),
    ]
    return visible(" · ".join(part for part in parts if part), newlines=False)
