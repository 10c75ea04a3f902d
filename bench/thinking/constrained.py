"""`python -m bench.thinking.constrained SAMPLES.jsonl`: constrained decoding beside best of n, on the prompts
of IFEval whose instructions a grammar can express (`grammars.py`).

SAMPLES is a record of `python -m glassloop.evaluate draw ifeval`: the answers without a grammar. With the
grammar there is one answer for each prompt. The check is the strict one; all ways have the same prompts and
are compared by McNemar's exact test. A prompt whose grammar the engine refuses as too expensive is left out,
and counted. `--out` keeps finished answers, and a run that was stopped continues.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from bench.thinking.grammars import sampling_options
from glassloop import LLM, Sampling
from glassloop.errors import GlassloopError
from glassloop.evaluate.analyse import ItemOutcome, Samples
from glassloop.evaluate.evaluation_task import TaskItem
from glassloop.evaluate.find_task import find_task
from glassloop.evaluate.method_spec import parse_methods
from glassloop.evaluate.record import Record, read
from glassloop.evaluate.report import figures_of, row_of
from glassloop.model.registry import DEFAULT_MODEL
from glassloop.search.verify.ifeval import IFEval


def main() -> None:
    given = _options()
    task = find_task("ifeval")
    items = [item for item in task.items if sampling_options(_verifier(item).instructions) is not None]
    print(f"{len(items)} of {len(task.items)} prompts have instructions that a grammar can express")
    drawn = Samples.of(task, *read(given.samples))
    rows = _draw(items[: given.limit], given)
    held = {row["item"]: row for row in rows if row["error"] is None}
    print(f"{len(rows) - len(held)} of {len(rows)} grammars were refused as too expensive")
    ids = [key for key in drawn.ids if key in held]
    results: dict[str, dict[str, ItemOutcome]] = {}
    for method in parse_methods([given.methods]):
        found = drawn.outcomes(method)
        results[method.text] = {key: found[key] for key in ids}
    verify = {item.id: _verifier(item) for item in items}
    results["grammar"] = {
        key: ItemOutcome(verify[key](held[key]["text"]).passed, held[key]["tokens"]) for key in ids
    }
    shown = [row_of(name, found, None) for name, found in results.items()]
    figures = figures_of("ifeval, instructions with a grammar", given.model, shown, results)
    print(figures.text)
    _print_kinds(verify, held, results)
    print(json.dumps(figures.json))


def _verifier(item: TaskItem) -> IFEval:
    assert isinstance(item.verify, IFEval)
    return item.verify


def _draw(items: list[TaskItem], given: argparse.Namespace) -> list[dict[str, Any]]:
    """Returns a row for each item, with the text under its grammar. What the record has is kept."""
    header = {"what": "constrained", "model": given.model, "tokens": given.max_tokens}
    with Record(given.out, {**header, "temperature": given.temperature}) as record:
        have = {row["item"] for row in record.rows}
        missing = [item for item in items if item.id not in have]
        if missing:
            llm = LLM(given.model, given.ops, most_running=given.streams)
            with llm, ThreadPoolExecutor(given.streams) as pool:
                answers = [pool.submit(_answer, llm, item, given) for item in missing]
                for answer in as_completed(answers):
                    record.add(answer.result())
        wanted = {item.id for item in items}
        return [row for row in record.rows if row["item"] in wanted]


def _answer(llm: LLM, item: TaskItem, given: argparse.Namespace) -> dict[str, Any]:
    grammar = sampling_options(_verifier(item).instructions)
    assert grammar is not None and isinstance(item.question, str)
    sampling = Sampling(temperature=given.temperature, max_tokens=given.max_tokens, seed=0, **grammar)
    try:
        run = llm.chat([{"role": "user", "content": item.question}], sampling)
        if run.error is not None:
            raise run.error
    except GlassloopError as error:
        return {"item": item.id, "text": "", "tokens": 0, "finish": "error", "error": str(error)}
    tokens, finish = len(run.tokens), run.finish_reason
    return {"item": item.id, "text": run.text, "tokens": tokens, "finish": finish, "error": None}


def _print_kinds(
    verify: dict[str, IFEval], held: dict[str, dict[str, Any]], results: dict[str, dict[str, ItemOutcome]]
) -> None:
    """Prints how many prompts with each kind of instruction pass, and why answers under a grammar fail."""
    print("prompts with each kind of instruction, and how many of them pass:")
    for kind in sorted({each.kind for key in held for each in verify[key].instructions}):
        mine = [key for key in results["grammar"] if any(i.kind == kind for i in verify[key].instructions)]
        passed = [f"{name} {sum(found[key].correct for key in mine)}" for name, found in results.items()]
        print(f"  {kind}: {len(mine)}; {', '.join(passed)}")
    failed = Counter(held[key]["finish"] for key, found in results["grammar"].items() if not found.correct)
    print(f"answers under a grammar that fail, by how they ended: {dict(failed)}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("samples", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--ops")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--max-tokens", type=int, default=1024)
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--methods", default="greedy,sample,best:8")
    parser.add_argument("--limit", type=int)
    return parser.parse_args()


if __name__ == "__main__":
    main()
