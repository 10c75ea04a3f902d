"""`python -m glassloop.evaluate`: the same as `glassloop eval`, with nothing but the standard library for its
options, for machines without typer and rich. Its own are `draw` and `analyse`, for samples that are drawn on
one machine and analysed on another.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

from glassloop.errors import GlassloopError
from glassloop.evaluate.find import find_task
from glassloop.evaluate.progress import progress


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status."""
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
    except GlassloopError as error:
        print(f"glassloop: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nglassloop: interrupted; the same command continues", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m glassloop.evaluate", description=__doc__)
    commands = parser.add_subparsers(required=True)
    draw = commands.add_parser("draw", help="Draw samples of every item and record them.")
    _add_task(draw)
    _add_model(draw)
    draw.add_argument("--greedy", action=argparse.BooleanOptionalAction, default=True)
    draw.add_argument("--samples", type=int, default=16, metavar="N")
    draw.add_argument("--temperature", type=float, default=0.7)
    draw.add_argument("--top-p", type=float)
    draw.add_argument("--min-p", type=float)
    draw.add_argument("--max-tokens", type=int)
    draw.add_argument("--seed", type=int, default=0)
    draw.add_argument(
        "--part",
        default="1/1",
        metavar="K/N",
        help="The K-th of N equal parts of the items, each with a record of its own, drawn by N processes.",
    )
    draw.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="The record, which is continued."
    )
    draw.set_defaults(run=_draw)
    run = commands.add_parser("run", help="Run methods on a task: what `glassloop eval` does.")
    _add_task(run)
    _add_model(run)
    run.add_argument("--methods", default="greedy", help="As greedy,vote:8,confidence:16,keep=0.9.")
    run.add_argument("--extract")
    run.add_argument("--temperature", type=float, default=0.7)
    run.add_argument("--top-p", type=float, default=1.0)
    run.add_argument("--max-tokens", type=int)
    run.add_argument("--seed", type=int, default=0)
    run.add_argument("--budget-tokens", type=int)
    run.add_argument("--budget-seconds", type=float)
    run.add_argument("--out", type=Path, metavar="FILE", help="The record, which is continued.")
    run.add_argument("--plot", type=Path, metavar="FILE.svg")
    run.set_defaults(run=_run)
    analyse = commands.add_parser("analyse", help="Compute methods from recorded samples, without the model.")
    _add_task(analyse)
    analyse.add_argument("record", type=Path, nargs="+", help="The record, or those of its parts.")
    analyse.add_argument("--beside", type=Path, action="append", default=[], help="A record to compare with.")
    analyse.add_argument(
        "--methods", default="greedy,sample,vote:2,vote:4,vote:8,vote:16,confidence:16,likelihood:16,any:16"
    )
    analyse.add_argument("--plot", type=Path, metavar="FILE.svg")
    analyse.set_defaults(run=_analyse)
    return parser


def _add_task(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("task", help="gsm8k, ifeval, ifeval:loose, bbh, bbh:PART, gym:NAME, or a task file.")
    parser.add_argument("--data", type=Path, help="The whole file of a built-in task.")
    parser.add_argument("--limit", type=int, metavar="N", help="The first N items only.")


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", "-m", required=True)
    parser.add_argument("--ops")
    parser.add_argument("--streams", type=int, metavar="N", help="Sequences that run at once.")
    parser.add_argument("--kv-memory")


def _draw(options: argparse.Namespace) -> None:
    from glassloop.api.llm import LLM
    from glassloop.evaluate.draw import Plan, draw
    from glassloop.evaluate.record import Record

    task = find_task(options.task, data=options.data)
    indices = _part(range(len(task.items))[: options.limit], options.part)
    filters = {"top_p": options.top_p, "min_p": options.min_p}
    extra = tuple((name, value) for name, value in filters.items() if value is not None)
    most = options.max_tokens or task.max_tokens
    plan = Plan(options.greedy, options.samples, options.temperature, most, options.seed, extra)
    loading = perf_counter()
    with LLM(options.model, options.ops, kv_memory=options.kv_memory, most_running=options.streams) as llm:
        print(f"loaded {llm.name} ({llm.op_set}) in {perf_counter() - loading:.1f} s", file=sys.stderr)
        record = Record(options.out, plan.header(task, llm))
        kinds = int(options.greedy) + int(options.samples > 0)
        with record, progress(len(indices) * kinds, len(record.rows)) as shown:
            shown.begin(task.name)
            draw(llm, task, indices, plan, record, shown.finish_item)


def _run(options: argparse.Namespace) -> None:
    from glassloop.api.llm import LLM
    from glassloop.evaluate.evaluation import Evaluation, evaluate

    evaluation = Evaluation(
        task=find_task(options.task, data=options.data, extract=options.extract),
        methods=options.methods,
        limit=options.limit,
        sampling={"temperature": options.temperature, "top_p": options.top_p},
        max_tokens=options.max_tokens,
        seed=options.seed,
        budget={"tokens": options.budget_tokens, "seconds": options.budget_seconds},
        record=options.out,
    )
    with LLM(options.model, options.ops, kv_memory=options.kv_memory, most_running=options.streams) as llm:
        figures = evaluate(llm, evaluation)
    print(figures.text)
    if options.plot is not None:
        options.plot.write_text(figures.svg, encoding="utf-8")
    print(json.dumps(figures.json))


def _part(indices: range, part: str) -> range:
    """Returns every N-th index from the K-th on, for a part "K/N"."""
    number, _, count = part.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count) <= 1024):
        raise GlassloopError(f"part is {part!r}; K/N with K from 1 to N is expected, as 2/8")
    return indices[int(number) - 1 :: int(count)]


def _analyse(options: argparse.Namespace) -> None:
    from glassloop.evaluate.figures import figures_of_samples

    task = find_task(options.task, data=options.data)
    figures = figures_of_samples(task, options.record, options.methods, options.beside)
    print(figures.text)
    if options.plot is not None:
        options.plot.write_text(figures.svg, encoding="utf-8")
    print(json.dumps(figures.json))


if __name__ == "__main__":
    sys.exit(main())
