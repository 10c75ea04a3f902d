"""Holes of 12 tokens in paragraphs of novels, filled by three methods and judged by another model.

    python -m bench.editing.holes generate    # fills the holes (SmolLM2)
    python -m bench.editing.holes judge       # scores the 32 tokens after each (Qwen2.5-Coder 0.5B)
    python -m bench.editing.holes report      # the table and a last line of JSON

`rerank` is `LLM.infill`. `greedy` takes the likeliest token at each step. `own` is the likeliest of n draws,
with n such that it computes as many rows as `rerank`. `original` is what the author wrote.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from bench.editing.data import BOOKS, Results, add_spread, paired, paragraphs, part_of, repetition
from glassloop import LLM, Sampling
from glassloop.edit.infill import infill
from glassloop.edit.proposal import bits
from glassloop.edit.work import EditWork

HOLE, AFTER, CANDIDATES = 12, 32, 16
TEMPERATURE = 0.8
# `rerank` draws each candidate and then scores it with what follows; `own` only draws.
MATCHED = CANDIDATES * (HOLE + HOLE + AFTER) // HOLE
METHODS = ("greedy", "own", "rerank", "original")


def main() -> None:
    options = read_options()
    if options.phase == "generate":
        generate(options)
    elif options.phase == "judge":
        judge(options)
    else:
        report(options)


def generate(options: argparse.Namespace) -> None:
    """Fills the hole of each paragraph by each method."""
    results = Results(options.out / "holes.jsonl")
    items = paragraphs(options.books, options.count, 500, 900)
    llm = LLM(options.model, ops=options.ops, kv_memory=options.kv_memory)
    results.compute(
        part_of(range(len(items)), options.part),
        lambda item: {"book": items[item]["book"], **fill(llm, items[item]["text"], item)},
        options.at_once,
    )


def fill(llm: LLM, text: str, seed: int) -> dict[str, Any]:
    ids = llm.tokenizer.encode_inside(text)
    start = len(ids) // 2 - HOLE

    def decoded(first: int, last: int) -> str:
        return llm.tokenizer.decode(ids[first:last])

    before, hole, after = decoded(0, start), decoded(start, start + HOLE), decoded(start + HOLE, len(ids))
    near = decoded(start + HOLE, start + HOLE + AFTER)
    drawn = Sampling(temperature=TEMPERATURE, seed=seed)
    edit = infill(llm, before, near, HOLE, candidates=CANDIDATES, window=AFTER, sampling=drawn)
    many = Sampling(
        temperature=TEMPERATURE, seed=seed, n=MATCHED, max_tokens=HOLE, min_tokens=HOLE, logprobs=0
    )
    own = max(llm.generate(before, many).samples, key=lambda run: run.logprob)
    greedy = edit.proposals[0]
    fills = {"greedy": greedy.text, "own": own.text, "rerank": edit.accepted[0].text, "original": hole}
    rows = {"rerank": edit.sampled + edit.scored, "own": MATCHED * HOLE, "greedy": HOLE}
    return {"before": before, "after": near, "rest": after, "fills": fills, "rows": rows}


def judge(options: argparse.Namespace) -> None:
    """Scores what follows each hole with another model."""
    filled, judged = Results(options.out / "holes.jsonl"), Results(options.out / "judged.jsonl")
    llm = LLM(options.judge, ops=options.ops, kv_memory=options.kv_memory)
    items = part_of(sorted(filled.rows), options.part)
    judged.compute(items, lambda item: score(llm, filled.rows[item]), options.at_once)


def score(llm: LLM, row: dict[str, Any]) -> dict[str, Any]:
    """Returns the bits per token of what follows the hole, after each filling."""
    work = EditWork(llm, 0)
    after = llm.tokenizer.encode_inside(row["after"])
    requests = {}
    for method, text in row["fills"].items():
        prefix = llm.tokenizer.encode(row["before"] + text)
        draft = llm.new_run(prefix, Sampling(), 0, salt=0, prompt=None, sample=0)
        requests[method] = work.branch(draft, 0, after)
    work.complete(list(requests.values()))
    return {
        "bits": {
            name: bits(request.runs[0], 0, len(after)) / len(after) for name, request in requests.items()
        }
    }


def report(options: argparse.Namespace) -> None:
    """Prints a table for people and a last line of JSON."""
    filled, judged = Results(options.out / "holes.jsonl"), Results(options.out / "judged.jsonl")
    items = sorted(judged.rows)
    bits_of = {name: [judged.rows[item]["bits"][name] for item in items] for name in METHODS}
    made: dict[str, Any] = {"items": len(items), "matched_draws": MATCHED, "methods": {}, "gains": {}}
    print(f"{len(items)} paragraphs; bits per token of the {AFTER} tokens after the hole, by {options.judge}")
    print(f"{'method':10} {'bits':>7} {'rep-4':>7} {'distinct-3':>11} {'rows':>7}")
    for name in METHODS:
        texts = [filled.rows[item] for item in items]
        whole = [(row["before"] + row["fills"][name] + row["after"]).split() for row in texts]
        rep, distinct = zip(*map(repetition, whole), strict=True)
        rows = [row["rows"].get(name, 0) for row in texts]
        numbers = {
            "bits": sum(bits_of[name]) / len(items),
            "rep_4": sum(rep) / len(items),
            "distinct_3": sum(distinct) / len(items),
            "rows": sum(rows) / len(items),
        }
        made["methods"][name] = numbers
        print(
            f"{name:10} {numbers['bits']:7.3f} {numbers['rep_4']:7.4f} {numbers['distinct_3']:11.4f}"
            f" {numbers['rows']:7.0f}"
        )
    for name in ("greedy", "own"):
        gain = paired(bits_of[name], bits_of["rerank"])
        made["gains"][name] = gain
        print(
            f"rerank against {name}: {gain['mean']:+.3f} ± {gain['standard_error']:.3f} bits per token"
            f" (95 %: {gain['low']:.3f} to {gain['high']:.3f}), p = {gain['p_t']:.2g} (t),"
            f" {gain['p_signs']:.2g} (signs)"
        )
    print(json.dumps(made))


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("phase", choices=("generate", "judge", "report"))
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--judge", default="qwen2.5-coder-0.5b-instruct", help="a name, a file or a folder")
    parser.add_argument("--ops", default=None, help="the op set; torch runs on a GPU")
    parser.add_argument("--count", type=int, default=320, help="paragraphs")
    add_spread(parser)
    parser.add_argument("--books", type=Path, required=True, help=BOOKS)
    parser.add_argument("--out", type=Path, default=Path("build/editing"), help="folder of the results")
    return parser.parse_args()


if __name__ == "__main__":
    main()
