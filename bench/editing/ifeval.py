"""IFEval: does repair with the checker reach the rate of best-of-8 with at most half of its tokens?

    python -m bench.editing.ifeval run       # 8 answers to each prompt, and the first of them repaired
    python -m bench.editing.ifeval report    # the table and a last line of JSON

`best` draws 8 answers and passes if one of them does. `repair` has the first of the 8, and draws its end anew
from random places until the checker is content or half of the tokens of the 8 are used. `sequence` is
what best-of-8 would cost if it stopped at the first answer that passes: a checker allows that, too.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.editing.data import Results, paired
from glassloop import LLM, Sampling, evaluate
from glassloop.edit.repair import repair

DATA = Path(evaluate.__file__).parent / "data" / "ifeval.jsonl"
ANSWERS = 8


def main() -> None:
    options = read_options()
    if options.phase == "run":
        run(options)
    else:
        report(options)


def run(options: argparse.Namespace) -> None:
    results = Results(options.out / "ifeval.jsonl")
    items = [json.loads(line) for line in options.data.read_text(encoding="utf-8").splitlines()]
    llm = LLM(options.model, ops=options.ops)
    missing = results.missing(range(min(len(items), options.count)))
    with ThreadPoolExecutor(options.at_once) as pool:  # the engine computes what they ask for in one batch
        for item, made in pool.map(
            lambda item: (item, one(llm, items[item], item, options.max_tokens)), missing
        ):
            results.add({"item": item, **made})


def one(llm: LLM, row: dict[str, Any], seed: int, most: int) -> dict[str, Any]:
    from glassloop.search.verify.ifeval import IFEval

    check = IFEval.of(row)
    sampling = Sampling(temperature=0.7, seed=seed, n=ANSWERS, max_tokens=most, logprobs=0)
    runs = llm.chat([{"role": "user", "content": row["prompt"]}], sampling).samples
    passed = [check(run.text).passed for run in runs]
    lengths = [len(run.tokens) for run in runs]
    first = runs[0]
    budget = max(0, sum(lengths) // 2 - lengths[0])
    edit = repair(llm, first, check=check, budget=budget, candidates=1)
    until = passed.index(True) + 1 if True in passed else ANSWERS
    return {
        "passed": passed,
        "lengths": lengths,
        "sequence_tokens": sum(lengths[:until]),
        "repaired": check(edit.text).passed,
        "repair_tokens": lengths[0] + edit.sampled,
        "proposals": len(edit.proposals),
        "accepted": len(edit.accepted),
    }


def report(options: argparse.Namespace) -> None:
    rows = list(Results(options.out / "ifeval.jsonl").rows.values())
    count = len(rows)
    rates = {
        "one": [float(row["passed"][0]) for row in rows],
        "best": [float(any(row["passed"])) for row in rows],
        "repair": [float(row["repaired"]) for row in rows],
    }
    tokens = {
        "one": sum(row["lengths"][0] for row in rows),
        "best": sum(sum(row["lengths"]) for row in rows),
        "sequence": sum(row["sequence_tokens"] for row in rows),
        "repair": sum(row["repair_tokens"] for row in rows),
    }
    for name, values in rates.items():
        share = tokens[name] / tokens["best"]
        passing = sum(values) / count
        print(
            f"{name:7} {passing:6.1%} of {count} pass, with {share:5.1%} of the tokens of best-of-{ANSWERS}"
        )
    print(f"sequence as best, with {tokens['sequence'] / tokens['best']:.1%} of its tokens")
    found = paired(rates["repair"], rates["best"])
    print(f"repair - best: {found['mean']:+.1%} ({found['low']:+.1%} to {found['high']:+.1%})")
    means = {name: sum(values) / count for name, values in rates.items()}
    print(json.dumps({"items": count, "rates": means, "tokens": tokens, "repair_minus_best": found}))


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("phase", choices=("run", "report"))
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--ops", default=None, help="the op set; torch runs on a GPU")
    parser.add_argument("--count", type=int, default=541, help="prompts")
    parser.add_argument("--at-once", type=int, default=4, help="prompts that are answered at the same time")
    parser.add_argument("--max-tokens", type=int, default=400)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--out", type=Path, default=Path("build/editing"), help="folder of the results")
    return parser.parse_args()


if __name__ == "__main__":
    main()
