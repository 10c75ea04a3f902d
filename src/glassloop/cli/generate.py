"""`glassloop generate`: prints the text on stdout while it is generated, and statistics on stderr."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glassloop.cli.diffusion import Diffused, Filling, Holes, parse_filling, print_diffused
from glassloop.cli.help import INPUT, OUTPUT
from glassloop.cli.options import (
    DEFAULT_MODEL,
    UPSTREAM_KEY,
    AsChat,
    Colors,
    Draft,
    Keep,
    KVMemory,
    Model,
    ModelDefaults,
    Ops,
    Plugins,
    System,
    Upstream,
    UpstreamKey,
    given,
    load_plugins,
    read_text,
    sampling_words,
    takes_sampling,
)
from glassloop.cli.show import Painter, Show
from glassloop.cli.terminal import Color, print_json, set_color, visible, wrapped
from glassloop.decode.defaults import with_defaults
from glassloop.decode.sampling import Sampling
from glassloop.errors import GlassloopError
from glassloop.util.plain_text import known

if TYPE_CHECKING:
    from glassloop.engine.language_model import LanguageModel
    from glassloop.engine.request import Request
    from glassloop.record.run import Run

OneJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object instead of the text.", rich_help_panel=OUTPUT)
]
Trace = Annotated[
    Path | None,
    typer.Option("--trace", metavar="FILE", help="Save the run as a .glass file.", rich_help_panel=OUTPUT),
]
Shown = Annotated[
    Show | None,
    typer.Option(
        "--show",
        metavar="WHAT",
        help="Show the surprise of each token in colours, its alternatives, accepted and refused drafts, or"
        " the text as indented JSON: surprise, alternatives, drafts or json.",
        rich_help_panel=OUTPUT,
    ),
]


def generate(
    prompt: Annotated[
        str | None,
        typer.Argument(
            metavar="[PROMPT]", help="The text to continue; '-' reads it from stdin.", show_default=False
        ),
    ] = None,
    prompts: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="Continue many texts in one batch. Each line of the file ('-' is stdin) is a prompt, or JSON"
            ' such as {"prompt": "...", "temperature": 0}. With --json, one object is printed for each.',
            rich_help_panel=INPUT,
        ),
    ] = None,
    chat: AsChat = False,
    system: System = None,
    model: Model = DEFAULT_MODEL,
    model_defaults: ModelDefaults = True,
    json_output: OneJson = False,
    trace: Trace = None,
    show: Shown = None,
    color: Colors = Color.AUTO,
    store: Keep = True,
    ops: Ops = None,
    kv_memory: KVMemory = None,
    draft: Draft = None,
    plugin: Plugins = None,
    upstream: Upstream = None,
    upstream_key_env: UpstreamKey = UPSTREAM_KEY,
    diffusion: Diffused = False,
    fill: Filling = None,
    holes: Holes = None,
    **options: Any,
) -> None:
    """Continue a text with a model, token by token, or, with --chat, answer a message."""
    from glassloop.cli.kept import chat_messages, drafter, load, load_upstream, note_name

    set_color(color)
    if (prompt is None) == (prompts is None):
        raise GlassloopError("either a prompt or --from FILE is expected")
    load_plugins(plugin)
    asked, chat = given(options), chat or system is not None
    Sampling.from_dict(asked)  # errors in the options come before the model is loaded
    if not diffusion and (fill or holes):
        raise GlassloopError("--fill and --holes are for --diffusion, which is not given")
    if diffusion and (show is not None or upstream is not None):
        raise GlassloopError("--diffusion is given; --show and --upstream are not expected with it")
    if diffusion:
        asked["diffusion"] = parse_filling(fill)
    if prompts is not None:
        from glassloop.cli.batch import print_batch, read_prompts

        if upstream is not None:
            raise GlassloopError("--upstream is given with --from; one prompt at a time is expected")
        entries = read_prompts(prompts, asked, chat, system)
        batch = load(model, ops, kv_memory, drafter(draft), model_defaults, holes)
        print_batch(batch, entries, json_output, trace, show, store)
        return
    text = read_text(prompt or "")
    if prompt != "-":
        note_name(text)
    llm: LanguageModel
    if upstream is None:
        llm = load(model, ops, kv_memory, drafter(draft), model_defaults, holes)
    else:
        here = {"ops": ops, "kv-memory": kv_memory, "draft": draft, "plugin": plugin}
        llm = load_upstream(upstream, model, upstream_key_env, **here)
    sampling = with_defaults(asked, llm.default_sampling)
    if chat:
        request = llm.prepare_chat(chat_messages(llm, text, system), sampling)
    else:
        request = llm.prepare(text, sampling)
    if diffusion:
        print_diffused(llm, request, json_output, trace, store)
    else:
        print_runs(llm, request, json_output, trace, show, store)


takes_sampling(generate)


def print_runs(
    llm: LanguageModel,
    request: Request,
    json_output: bool,
    trace: Path | None,
    show: Show | None,
    store: bool,
) -> None:
    """Computes a request, prints its text while it is generated (several samples when all have ended), and
    keeps its runs."""
    from glassloop.cli.kept import keep

    runs, interrupted = request.runs, False
    with closing(Painter(None if json_output else show)) as painter:
        streamed = not json_output and len(runs) == 1
        if streamed and runs[0].tokens:  # those that a fork has from its parent
            painter.begin("".join([token.text for token in runs[0].tokens]))
        try:
            for token in llm.follow(request, settled=True):
                if streamed:
                    painter.write(token)
        except KeyboardInterrupt:
            # The text so far is printed and kept; the statistics say that it was cancelled.
            interrupted = True
        if not json_output:
            _finish(llm, runs, painter)
    if json_output:
        others = {"samples": [each.to_dict() for each in runs]} if len(runs) > 1 else {}
        print_json(runs[0].to_dict() | others)
    if trace is not None:
        runs[0].save(trace)
    taken_back = [draft for run in runs for draft in run.drafts_taken_back]
    kept = store and keep([*runs, *taken_back])
    if not json_output:
        print(wrapped(statistics(llm, runs[0], kept), sys.stderr), file=sys.stderr)
    if interrupted:
        raise typer.Exit(130)


def _finish(llm: LanguageModel, runs: list[Run], painter: Painter) -> None:
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


def statistics(llm: LanguageModel, run: Run, kept: bool) -> str:
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
