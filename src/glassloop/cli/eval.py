"""`glassloop eval`: methods on a task with known answers, with intervals, paired tests and what they cost."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from glassloop.cli.help import INPUT, OUTPUT
from glassloop.cli.options import (
    DEFAULT_MODEL,
    Json,
    KVMemory,
    Model,
    Ops,
    Plugins,
    given,
    load_plugins,
    takes_sampling,
)
from glassloop.cli.terminal import visible, working
from glassloop.errors import GlassloopError

_LIMITS = "Budget of each item"


def evaluate(
    task: Annotated[
        str,
        typer.Argument(
            metavar="TASK",
            help="A .jsonl file (a line has prompt, question or messages, and answer), a .yaml file of"
            " lm-evaluation-harness, or gsm8k, ifeval, ifeval:loose, bbh, bbh:PART, gym:GENERATOR.",
        ),
    ],
    methods: Annotated[
        list[str] | None,
        typer.Option(
            "--methods",
            "--method",
            metavar="NAMES",
            help="greedy, vote:8, best:8, confidence:16,keep=0.9 …, separated by commas; may be repeated.",
            show_default="greedy",
            rich_help_panel="What to evaluate",
        ),
    ] = None,
    extract: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="How the answer is found in a text: number, choice, json, last_line, text, regex:PATTERN …",
            show_default="auto",
            rich_help_panel="What to evaluate",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The data of a task, where it is not in it.", rich_help_panel=INPUT
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(metavar="N", help="The first N items only.", rich_help_panel=INPUT)
    ] = None,
    size: Annotated[
        int, typer.Option(metavar="N", help="The number of items of a generator.", rich_help_panel=INPUT)
    ] = 100,
    budget_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Tokens of all paths.", rich_help_panel=_LIMITS)
    ] = None,
    budget_seconds: Annotated[
        float | None, typer.Option(metavar="X", help="Seconds.", rich_help_panel=_LIMITS)
    ] = None,
    budget_branches: Annotated[
        int | None, typer.Option(metavar="N", help="Paths.", rich_help_panel=_LIMITS)
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(
            "--record",
            "--out",
            metavar="FILE",
            help="Write finished items to this file, and continue with what is missing in it.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.svg", help="Plot accuracy over tokens to this file.", rich_help_panel=OUTPUT
        ),
    ] = None,
    as_json: Json = False,
    model: Model = DEFAULT_MODEL,
    ops: Ops = None,
    kv_memory: KVMemory = None,
    streams: Annotated[int | None, typer.Option(metavar="N", help="How many sequences run at once.")] = None,
    plugin: Plugins = None,
    **options: Any,
) -> None:
    """Measure methods on a task whose answers are known.

    Prints a table with accuracies, their 95 % intervals and paired tests, and one line of JSON at the end.
    """
    from glassloop.api.llm import LLM
    from glassloop.cli.adapters import load_given
    from glassloop.evaluate.evaluation import Evaluation
    from glassloop.evaluate.evaluation import evaluate as run
    from glassloop.evaluate.find_task import find_task

    load_plugins(plugin)
    sampling = given(options)
    seed = sampling.pop("seed", 0)
    max_tokens = sampling.pop("max_tokens", None)
    wanted = Evaluation(
        task=find_task(task, data=data, extract=extract, size=size, seed=seed),
        methods=",".join(methods or ["greedy"]),
        limit=limit,
        sampling=sampling,
        max_tokens=max_tokens,
        seed=seed,
        budget={"tokens": budget_tokens, "seconds": budget_seconds, "branches": budget_branches},
        record=record,
    )
    wanted.check()
    with working(f"Loading {model}"):
        llm = LLM(model, ops, kv_memory=kv_memory, most_running=streams)
    with llm:
        load_given(llm)
        try:
            figures = run(llm, wanted)
        except KeyboardInterrupt:
            rest = "nothing is kept without --record" if record is None else "the same command continues"
            print(f"glassloop: interrupted; {rest}", file=sys.stderr)
            raise typer.Exit(130) from None
    if plot is not None:
        try:
            plot.write_text(figures.svg, encoding="utf-8")
        except OSError as error:
            raise GlassloopError.about("plot", f"cannot be written to {plot}: {error.strerror}") from None
    if not as_json:
        print(visible(figures.text))
    print(json.dumps(figures.json))


takes_sampling(evaluate, unset=True)
