"""`glassloop eval`: methods on a task with known answers, with intervals, paired tests and what they cost."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glassloop.cli.adapters import load_adapters, take_adapters
from glassloop.cli.flags import Flags, Only, flag, takes_flags
from glassloop.cli.help import INPUT, OUTPUT
from glassloop.cli.options import DEFAULT_MODEL, EngineFlags, Json, Model
from glassloop.cli.sampling_flags import sampling_options
from glassloop.cli.terminal import visible, working
from glassloop.errors import GlassloopError

if TYPE_CHECKING:
    from glassloop.evaluate.evaluation import Evaluation

_WHAT, _LIMITS = "What to evaluate", "Budget of each item"


@dataclass(frozen=True)
class EvaluationFlags(Flags, group=INPUT):
    """The methods and the items of an evaluation, and the limits of each item."""

    methods: list[str] | None = flag(
        None,
        "greedy, vote:8, best:8, confidence:16,keep=0.9 …, separated by commas; may be repeated.",
        *("--methods", "--method"),
        metavar="NAMES",
        show_default="greedy",
        group=_WHAT,
    )
    extract: str | None = flag(
        None,
        "How the answer is found in a text: number, choice, json, last_line, text, regex:PATTERN …",
        metavar="NAME",
        show_default="auto",
        group=_WHAT,
    )
    data: Path | None = flag(None, "The data of a task, where it is not in it.")
    limit: int | None = flag(None, "The first N items only.")
    size: int = flag(100, "The number of items of a generator.")
    budget_tokens: int | None = flag(None, "Tokens of all paths.", group=_LIMITS)
    budget_seconds: float | None = flag(None, "Seconds.", group=_LIMITS)
    budget_branches: int | None = flag(None, "Paths.", group=_LIMITS)
    record: Path | None = flag(
        None,
        "Write finished items to this file, and continue with what is missing in it.",
        *("--record", "--out"),
        group=OUTPUT,
    )
    plot: Path | None = flag(
        None, "Plot accuracy over tokens to this file.", metavar="FILE.svg", group=OUTPUT
    )

    def evaluation(self, task: str, sampling: dict[str, Any]) -> Evaluation:
        """Returns what to evaluate with these options of `Sampling`. Raises for what is wrong, before a model
        is loaded."""
        from glassloop.evaluate.evaluation import Evaluation
        from glassloop.evaluate.find import find_task

        seed = sampling.pop("seed", 0)
        max_tokens = sampling.pop("max_tokens", None)
        evaluation = Evaluation(
            task=find_task(task, data=self.data, extract=self.extract, size=self.size, seed=seed),
            methods=",".join(self.methods or ["greedy"]),
            limit=self.limit,
            sampling=sampling,
            max_tokens=max_tokens,
            seed=seed,
            budget={
                "tokens": self.budget_tokens,
                "seconds": self.budget_seconds,
                "branches": self.budget_branches,
            },
            record=self.record,
        )
        evaluation.check()
        return evaluation


@takes_flags(unset=True)
def evaluate(
    task: Annotated[
        str,
        typer.Argument(
            metavar="TASK",
            help="A .jsonl file (a line has prompt, question or messages, and answer), a .yaml file of"
            " lm-evaluation-harness, or gsm8k, ifeval, ifeval:loose, bbh, bbh:PART, gym:GENERATOR.",
        ),
    ],
    *,
    flags: EvaluationFlags,
    as_json: Json = False,
    model: Model = DEFAULT_MODEL,
    engine: Annotated[EngineFlags, Only("ops", "kv_memory", "plugin")],
    streams: Annotated[int | None, typer.Option(metavar="N", help="How many sequences run at once.")] = None,
    **options: Any,
) -> None:
    """Measure methods on a task whose answers are known.

    Prints a table with accuracies, their 95 % intervals and paired tests, and one line of JSON at the end.
    """
    from glassloop.api.llm import LLM
    from glassloop.evaluate.evaluation import evaluate as run

    engine.load_plugins()
    evaluation = flags.evaluation(task, sampling_options(options))
    with working(f"Loading {model}"):
        llm = LLM(model, engine.ops, kv_memory=engine.kv_memory, most_running=streams)
    with llm:
        load_adapters(llm, take_adapters())
        try:
            figures = run(llm, evaluation)
        except KeyboardInterrupt:
            rest = (
                "nothing is kept without --record" if flags.record is None else "the same command continues"
            )
            print(f"glassloop: interrupted; {rest}", file=sys.stderr)
            raise typer.Exit(130) from None
    if flags.plot is not None:
        try:
            flags.plot.write_text(figures.svg, encoding="utf-8")
        except OSError as error:
            problem = f"cannot be written to {flags.plot}: {error.strerror}"
            raise GlassloopError.about("plot", problem) from None
    if not as_json:
        print(visible(figures.text))
    print(json.dumps(figures.json))
