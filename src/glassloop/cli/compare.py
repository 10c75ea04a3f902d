"""`glassloop compare`: one prompt, or that of a recorded run, decoded in several ways, side by side."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glassloop.cli.arguments import json_or_text, read_text
from glassloop.cli.flags import Only, takes_flags
from glassloop.cli.loading import chat_messages
from glassloop.cli.options import DEFAULT_MODEL, AnyModel, AsChat, AsText, EngineFlags, Json, Keep, System
from glassloop.cli.run_model import model_of
from glassloop.cli.sampling_flags import sampling_options, stage_options_of
from glassloop.cli.stored_runs import complete_run, find_runs, keep, names_run, note_name
from glassloop.cli.terminal import print_json, print_table, visible, working, wrapped
from glassloop.decode.defaults import with_defaults
from glassloop.decode.sampling import Sampling, merge_options
from glassloop.errors import GlassloopError, SamplingError

if TYPE_CHECKING:
    from glassloop.api.llm import LLM
    from glassloop.record.diff import Diff
    from glassloop.record.run import Run

_SHORT = {"greedy": {"temperature": 0.0}, "default": {}}
_WIDE = 100  # columns of a terminal that has room for the speed
_ALIASES = {"beam": "beam_width", "beams": "beam_width"}


@takes_flags(prefix="For all runs", unset=True)
def compare(
    prompt: Annotated[
        str,
        typer.Argument(
            metavar="PROMPT|RUN|FILE",
            help="The text to continue ('-' reads it from stdin); or a run: a .glass file, its id in the"
            " store (8 digits or more), the id of a server's answer, or 'last'. Its prompt is then decoded"
            " again, with its options in place of those that are not given.",
            autocompletion=complete_run,
            show_default=False,
        ),
    ],
    ways: Annotated[
        list[str],
        typer.Option(
            "--with",
            metavar="OPTIONS",
            help="The options of one run; repeat it for each run to compare: greedy, default, temperature=1,"
            " top_p=0.9,temperature=0.7, beam_width=4, stages=default,my_stage,my_stage.words=3 …",
            show_default=False,
            rich_help_panel="What to compare",
        ),
    ],
    *,
    chat: AsChat = False,
    system: System = None,
    as_text: AsText = False,
    model: AnyModel = None,
    engine: Annotated[EngineFlags, Only("model_defaults", "plugin")],
    store: Keep = True,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Decode one prompt in several ways with the same seed, and show where they differ and why.

    The prompt may be that of a recorded run, which is then the first of those that are compared.
    """
    engine.load_plugins()
    common = sampling_options(options)
    overrides = [merge_options({**common, "n": 1}, _way(way)) for way in ways]
    for each in overrides:
        Sampling.from_dict(each)  # errors in the options come before the model is loaded
    if not as_text and names_run(prompt):
        unfit = {
            "--chat": chat,
            "--system": system is not None,
            "--no-model-defaults": not engine.model_defaults,
        }
        if refused := [name for name, is_given in unfit.items() if is_given]:
            raise GlassloopError(f"{refused[0]} is given with a run, whose prompt and options are used")
        recorded = find_runs(prompt)[0]
        if recorded.diffusion is not None:
            raise GlassloopError(
                f"run {recorded.id[:8]} was written by diffusion; compare decodes token by token"
            )
        runs = _again(engine.load(model or model_of(prompt, recorded)), recorded, ways, overrides)
        _show([f"run {recorded.id[:8]}", *ways], [recorded, *runs], as_json, runs if store else [])
        return
    text = prompt if as_text else read_text(prompt)
    if not as_text and prompt != "-":
        note_name(text)
    llm = engine.load(model or DEFAULT_MODEL)
    messages = chat_messages(llm, text, system) if chat or system is not None else None
    runs = []
    for way, each in zip(ways, overrides, strict=True):
        sampling = with_defaults(each, llm.default_sampling)
        # All have the same luck, unless a way has a seed of its own.
        if runs and sampling.seed is None:
            sampling = replace(sampling, seed=runs[0].seed)
        with working(f"{way} ({len(runs) + 1} of {len(ways)})"):
            runs.append(llm.generate(text, sampling) if messages is None else llm.chat(messages, sampling))
    _show(ways, runs, as_json, runs if store else [])


def _again(llm: LLM, run: Run, ways: list[str], overrides: list[dict[str, Any]]) -> list[Run]:
    """Returns the prompt of a run decoded in several ways: with the options and the luck of the run, except
    for what a way has."""
    run.attach(llm)  # which finds the reason of a difference
    past = run.options_at(0)
    before = {**past.sampling.to_dict(), "n": 1, "seed": past.seed}
    runs: list[Run] = []
    for way, each in zip(ways, overrides, strict=True):
        sampling = Sampling.from_dict(merge_options(before, each))
        request = llm.prepare(run.prompt_ids, sampling, messages=run.messages)
        request.runs[0].prompt = run.prompt
        if sampling.seed == past.seed and sampling.beam_width == 1:
            request.runs[0].salt = past.salt  # a run of several samples has luck of its own
        with working(f"{way} ({len(runs) + 1} of {len(ways)})"):
            for _ in llm.follow(request):
                pass
        runs.append(request.runs[0])
    return runs


def _show(ways: list[str], runs: list[Run], as_json: bool, kept: list[Run]) -> None:
    """Prints runs beside each other, and keeps those that are new."""
    from glassloop.record.diff import diff

    parts = [diff(runs[0], run) for run in runs]
    if kept:
        keep(kept)
    if as_json:
        print_json([_plain(*each) for each in zip(ways, runs, parts, strict=True)])
    else:
        _print(ways, runs, parts)


def _way(text: str) -> dict[str, Any]:
    """Returns the options of a way to decode: names with values, or a word that stands for some. After
    `stages=`, parts without a value are further stages; STAGE.NAME=VALUE is the option of a stage."""
    options: dict[str, Any] = {}
    stages: list[str] | None = None  # while these are listed
    of_stages: list[str] = []
    for part in text.split(","):
        name, equals, value = (each.strip() for each in part.partition("="))
        if stages is not None and not equals:
            stages.append(name)
            continue
        stages = None
        if not equals and name not in _SHORT:
            raise SamplingError(f"--with has {part!r}; greedy, default or name=value is expected")
        if name == "stages":
            options[name] = stages = [value]
        elif "." in name:
            of_stages.append(part)
        else:
            options |= {_ALIASES.get(name, name): json_or_text(value)} if equals else _SHORT[name]
    if of_stages:
        options["stage_options"] = stage_options_of(of_stages)
    return options


def _plain(way: str, run: Run, part: Diff) -> dict[str, Any]:
    return {
        "with": way,
        "run": run.id,
        "text": run.text,
        "tokens": len(run.tokens),
        "logprob": run.logprob,
        "logprob_per_token": run.logprob / len(run.tokens) if run.tokens else None,
        "distinct": {str(size): run.distinct(size) for size in (1, 2, 3)},
        "tokens_per_second": run.timings.tokens_per_second(len(run.tokens)),
        "finish_reason": run.finish_reason,
        "stop_reason": run.stop_reason,
        "seed": run.seed,
        "sampling": run.sampling.to_dict(),
        "parts": part.to_dict(),
    }


def _print(ways: list[str], runs: list[Run], parts: list[Diff]) -> None:
    rows = []
    has_room = not sys.stdout.isatty() or shutil.get_terminal_size().columns >= _WIDE
    for way, run, part in zip(ways, runs, parts, strict=True):
        plain = _plain(way, run, part)
        rows.append(
            (
                way,
                str(len(run.tokens)),
                f"{run.logprob:.1f}",
                _number(plain["logprob_per_token"], 2),
                f"{_number(plain['distinct']['1'], 2)}/{_number(plain['distinct']['2'], 2)}",
                *([_number(plain["tokens_per_second"], 1)] if has_room else []),
                "" if run is runs[0] else "nowhere" if part.at is None else str(part.at),
                run.id[:8],
            )
        )
    speeds = ("tokens/s",) if has_room else ()
    numbers = ("tokens", "logprob", "per token", "distinct-1/2", *speeds, "differs at")
    print_table(("with", *numbers, "run"), rows, right=numbers, fold=("with",))
    for way, part in list(zip(ways, parts, strict=True))[1:]:
        print(wrapped(visible(f"{ways[0]} / {way}: {part.sentence}", newlines=False)))
    print()
    print_texts(ways, runs, parts)


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def print_texts(ways: list[str], runs: list[Run], parts: list[Diff]) -> None:
    """Prints the texts: on a terminal side by side, dimmed as far as they equal the first; else in turn."""
    if not sys.stdout.isatty():
        for way, run in zip(ways, runs, strict=True):
            print(visible(f"── {way} ──\n{run.text}\n"))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, expand=True)
    cells = []
    for way, run, part in zip(ways, runs, parts, strict=True):
        table.add_column(Text(visible(way, newlines=False)), ratio=1, overflow="fold")
        same = len(run.tokens) if part.at is None else part.at
        common = "" if run is runs[0] else "".join([token.text for token in run.tokens[:same]])
        cells.append(Text.assemble((visible(common), "dim"), visible(run.text[len(common) :])))
    table.add_row(*cells)
    Console().print(table)
