"""`python -m bench.drafting QUESTIONS.jsonl`: tokens per second of one stream with drafts, beside the same
without.

QUESTIONS has MT-bench's layout: a line for each question, with "category" and "turns", of which the first is
asked. Each question is answered without and with drafts, one right after the other and in turn first, so that
a busy machine slows both; every token must be the same. Each round has engines of its own: an earlier answer
must not be looked up."""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

from glassloop import LLM, Sampling
from glassloop.model.registry import DEFAULT_MODEL
from glassloop.record.run import Run


def main() -> None:
    options = _options()
    lines = Path(options.questions).read_text(encoding="utf-8").splitlines()
    questions = [json.loads(line) for line in lines][options.first :: options.every][: options.count]
    found = {}
    for temperature in options.temperatures:
        measured = [
            each
            for number in range(options.rounds)
            for each in _round(options, questions, temperature, seed=number + 1)
        ]
        if options.keep:
            with Path(options.keep).open("a", encoding="utf-8") as file:
                file.writelines(json.dumps({"temperature": temperature, **each}) + "\n" for each in measured)
            lines = Path(options.keep).read_text(encoding="utf-8").splitlines()
            kept = [json.loads(line) for line in lines]
            measured = [each for each in kept if each["temperature"] == temperature]
        found[str(temperature)] = _summary(temperature, measured)
    print(json.dumps({"model": options.model, "tokens": options.tokens, "temperatures": found}))


def _round(
    options: argparse.Namespace, questions: list[dict[str, Any]], temperature: float, seed: int
) -> list[dict[str, Any]]:
    """Answers all questions once, without and with drafts."""
    sampling = Sampling(temperature=temperature, max_tokens=options.tokens, seed=seed)
    measured = []
    with (
        LLM(options.model, draft=False, kv_memory="300MB") as plain,
        LLM(options.model, draft=options.draft or True, kv_memory="300MB") as drafting,
    ):
        for llm in (plain, drafting):
            llm.generate("Warm", Sampling(temperature=temperature, max_tokens=24, ignore_eos=True))
        for number, question in enumerate(questions):
            messages = [{"role": "user", "content": question["turns"][0]}]
            pair = (plain, drafting) if number % 2 else (drafting, plain)
            runs = {llm: llm.chat(messages, sampling) for llm in pair}
            if runs[plain].tokens != runs[drafting].tokens:
                raise AssertionError(f"drafts changed a token: {question['turns'][0]!r}, seed {seed}")
            if len(runs[plain].tokens) < 8:
                continue
            drafts = runs[drafting].drafts
            measured.append(
                {
                    "category": question["category"],
                    "plain": _rate(runs[plain]),
                    "drafting": _rate(runs[drafting]),
                    "proposed": drafts.proposed,
                    "accepted": drafts.accepted,
                    "tokens": len(runs[plain].tokens),
                }
            )
    return measured


def _rate(run: Run) -> float:
    return (len(run.tokens) - 1) / run.timings.decode


def _summary(temperature: float, measured: list[dict[str, Any]]) -> dict[str, Any]:
    """Prints a table by category and returns its numbers."""
    groups = defaultdict(list)
    for each in measured:
        groups["all"].append(each)
        groups[each["category"]].append(each)
    print(f"temperature {temperature}: tokens/s without and with drafts, medians of {len(measured)} answers")
    rows = {}
    for name, group in groups.items():
        plain, drafting = (median(each[kind] for each in group) for kind in ("plain", "drafting"))
        rows[name] = {
            "plain": round(plain, 1),
            "drafting": round(drafting, 1),
            "of_medians": round(drafting / plain, 3),
            "median_ratio": round(median(each["drafting"] / each["plain"] for each in group), 3),
            "accepted": round(
                sum(each["accepted"] for each in group) / max(1, sum(each["proposed"] for each in group)), 3
            ),
            "by_drafts": round(
                sum(each["accepted"] for each in group) / sum(each["tokens"] for each in group), 3
            ),
        }
        row = rows[name]
        print(
            f"  {name:12} {plain:7.1f} {drafting:7.1f}   {row['of_medians']:.2f} times"
            f"  (median of ratios {row['median_ratio']:.2f}); {row['accepted']:.0%} of the drafts right,"
            f" {row['by_drafts']:.0%} of the tokens"
        )
    return rows


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("bench.drafting", description="One stream with and without drafts.")
    parser.add_argument("questions", help="a JSONL file in MT-bench's layout")
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.8])
    parser.add_argument("--tokens", type=int, default=128, help="of an answer, at most")
    parser.add_argument(
        "--draft", metavar="FILE", help="a drafter, or a draft model; by default what there is"
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the first question that is asked")
    parser.add_argument("--every", type=int, default=1, help="ask every n-th question")
    parser.add_argument("--count", type=int, default=80, help="questions, at most")
    parser.add_argument(
        "--keep", metavar="FILE", help="append the measurements to it, and summarize all of them"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
