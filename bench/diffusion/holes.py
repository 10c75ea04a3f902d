"""Holes of 12 tokens, filled from both sides in passes, against rerank-16 of `bench.editing.holes`.

    python -m bench.diffusion.holes rerank --books standardebooks-17.jsonl.xz
    python -m bench.diffusion.holes generate
    python -m bench.diffusion.holes judge       # scores the 32 tokens after each (Qwen2.5-Coder 0.5B)
    python -m bench.diffusion.holes report

`diffusion` is one candidate in 12 passes, the surest token first. `reranked` is the best of three such
candidates, the first one without luck. `rows` are the rows that each method computes; the text before the
hole is computed once by each and not counted.
"""

from __future__ import annotations

import argparse
from typing import Any

from bench.diffusion.data import finish, load, options_of
from bench.editing.data import Results, paired, paragraphs
from bench.editing.holes import AFTER, CANDIDATES, HOLE, TEMPERATURE, judge
from glassloop import LLM, Sampling

METHODS = ("rerank", "diffusion", "reranked", "original")
PASSES = {"passes": HOLE, "threshold": None, "most": 1}


def main() -> None:
    phases = {"rerank": rerank, "generate": generate, "judge": judge, "report": report}
    options = options_of(__doc__, tuple(phases), 100, judge="qwen2.5-coder-0.5b-instruct")
    phases[options.phase](options)


def rerank(options: argparse.Namespace) -> None:
    """Fills the holes from the left, which needs no adapter."""
    results = Results(options.out / "rerank.jsonl")
    items = paragraphs(options.books, options.count, 500, 900)
    llm = LLM(options.model, ops=options.ops, kv_memory=options.kv_memory)
    for item in results.missing(range(len(items))):
        before, hole, after = cut(llm, items[item]["text"])
        text, rows = fill(llm, before, after, item, candidates=CANDIDATES)
        results.add(
            {"item": item, "before": before, "hole": hole, "after": after, "text": text, "rows": rows}
        )


def generate(options: argparse.Namespace) -> None:
    """Fills the holes that have been filled from the left by masked rows, too."""
    left, results = Results(options.out / "rerank.jsonl"), Results(options.out / "holes.jsonl")
    llm = load(options)
    for item in results.missing(sorted(left.rows)):
        row = left.rows[item]
        fills, rows = {"original": row["hole"], "rerank": row["text"]}, {"rerank": row["rows"]}
        for name, candidates in (("diffusion", 1), ("reranked", 3)):
            fills[name], rows[name] = fill(
                llm,
                row["before"],
                row["after"],
                item,
                candidates=candidates,
                proposer="diffusion",
                diffusion=PASSES,
            )
        results.add(
            {"item": item, "before": row["before"], "after": row["after"], "fills": fills, "rows": rows}
        )


def cut(llm: LLM, text: str) -> tuple[str, str, str]:
    """Returns the text before the hole, in it, and the first tokens after it."""
    ids = llm.tokenizer.encode_inside(text)
    start = len(ids) // 2 - HOLE
    cuts = [(0, start), (start, start + HOLE), (start + HOLE, start + HOLE + AFTER)]
    before, hole, after = (llm.tokenizer.decode(ids[first:last]) for first, last in cuts)
    return before, hole, after


def fill(llm: LLM, before: str, after: str, seed: int, **options: Any) -> tuple[str, int]:
    """Returns what fills the hole, and the rows that it took."""
    sampling = Sampling(temperature=TEMPERATURE, seed=seed)
    edit = llm.infill(before, after, HOLE, window=AFTER, sampling=sampling, **options)
    return edit.accepted[0].text, edit.sampled + edit.scored


def report(options: argparse.Namespace) -> None:
    filled, judged = Results(options.out / "holes.jsonl"), Results(options.out / "judged.jsonl")
    items = sorted(judged.rows)
    bits_of = {name: [judged.rows[item]["bits"][name] for item in items] for name in METHODS}
    made: dict[str, Any] = {"items": len(items), "methods": {}, "gains": {}}
    print(f"{len(items)} paragraphs; bits per token of the {AFTER} tokens after the hole, by {options.judge}")
    for name in METHODS:
        rows = [filled.rows[item]["rows"].get(name, 0) for item in items]
        numbers = {"bits": sum(bits_of[name]) / len(items), "rows": sum(rows) / len(items)}
        made["methods"][name] = numbers
        print(f"{name:10} {numbers['bits']:7.3f} bits {numbers['rows']:7.0f} rows")
    for name in ("diffusion", "reranked"):
        gain = made["gains"][name] = paired(bits_of["rerank"], bits_of[name])
        print(
            f"{name} against rerank: {gain['mean']:+.3f} bits per token (95 %: {gain['low']:+.3f} to"
            f" {gain['high']:+.3f}), p = {gain['p_t']:.2g}"
        )
    finish(made)


if __name__ == "__main__":
    main()
