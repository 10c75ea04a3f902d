"""Planted errors: 10 % of the tokens of a paragraph are replaced by tokens that the model ranks 5th to 50th.
Which are found by surprise, how many does repair restore, and how many right ones does it harm?

    python -m bench.editing.planted run       # plants, measures and repairs
    python -m bench.editing.planted report    # the table and a last line of JSON

`left` knows only what comes before a token (a window of no tokens), `both` what follows as well.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from bench.editing.data import BOOKS, Results, add_spread, paired, paragraphs, part_of
from glassloop import LLM, Sampling
from glassloop.edit.repair import repair
from glassloop.edit.repair_by_surprise import measure
from glassloop.edit.work import EditWork

LENGTH, FIRST, SHARE = 120, 8, 0.1  # tokens of a text, the first that may be wrong, how many are
RANKS = (5, 50)
WINDOW, BUDGET = 8, 30  # tokens after a token that count, and the budget for each token of the text


def main() -> None:
    options = read_options()
    if options.phase == "run":
        run(options)
    else:
        report(options)


def run(options: argparse.Namespace) -> None:
    results = Results(options.out / "planted.jsonl")
    items = paragraphs(options.books, options.count, 700, 1200)
    llm = LLM(options.model, ops=options.ops, kv_memory=options.kv_memory)
    results.compute(
        part_of(range(len(items)), options.part),
        lambda item: one(llm, items[item]["text"], item),
        options.at_once,
    )


def spoil(llm: LLM, text: str, seed: int) -> tuple[list[int], list[int], set[int]]:
    """Returns the tokens of a text, the same with errors planted, and the places of these."""
    rng = np.random.default_rng(seed)
    clean = llm.tokenizer.encode_inside(text)[:LENGTH]
    places = np.sort(rng.choice(np.arange(FIRST, len(clean)), round(SHARE * len(clean)), replace=False))
    logits = llm.logits(clean, 0)
    spoilt = list(clean)
    for place in places.tolist():
        order = np.argsort(-logits[place - 1], kind="stable")
        others = [token for token in order[RANKS[0] - 1 : RANKS[1]].tolist() if token != clean[place]]
        spoilt[place] = int(rng.choice(others))
    return clean, spoilt, set(places.tolist())


def one(llm: LLM, text: str, seed: int) -> dict[str, Any]:
    clean, spoilt, wrong = spoil(llm, text, seed)
    work = EditWork(llm, seed)
    draft = work.text(spoilt[:1], spoilt[1:])
    made: dict[str, Any] = {"wrong": sorted(wrong), "tokens": len(clean)}
    positions = list(range(FIRST - 1, len(draft.tokens)))  # a token's place in the answer is one less
    measured = list(measure(work, draft, positions, WINDOW, 0))
    made["left"] = [each.left for each in measured]
    made["both"] = [each.both for each in measured]
    for name, window in (("left", 0), ("both", WINDOW)):
        edit = repair(
            llm,
            draft,
            window=window,
            budget=BUDGET * len(clean),
            sampling=Sampling(temperature=0.8, seed=seed),
        )
        after = [spoilt[0], *edit.token_ids]
        assert len(after) == len(clean)  # replacements are as long as what they replace
        made[f"repair_{name}"] = {
            "restored": sum(after[at] == clean[at] for at in wrong),
            "changed": sum(after[at] != spoilt[at] for at in wrong),
            "harmed": sum(after[at] != clean[at] for at in range(len(clean)) if at not in wrong),
            "edits": len(edit.accepted),
            "rows": edit.sampled + edit.scored,
        }
    return made


def auroc(right: np.ndarray, wrong: np.ndarray) -> float:
    """Returns the probability that a wrong token has the higher score of the two; ties count half."""
    return float((wrong[:, None] > right).mean() + (wrong[:, None] == right).mean() / 2)


def report(options: argparse.Namespace) -> None:
    rows = list(Results(options.out / "planted.jsonl").rows.values())
    made: dict[str, Any] = {"texts": len(rows), "planted": sum(len(row["wrong"]) for row in rows)}
    single: dict[str, list[float]] = {}
    for name in ("left", "both"):
        scores = [np.array(row[name]) for row in rows]
        is_wrong = [np.isin(np.arange(FIRST, row["tokens"]), row["wrong"]) for row in rows]
        single[name] = [auroc(s[~w], s[w]) for s, w in zip(scores, is_wrong, strict=True)]
        every, flags = np.concatenate(scores), np.concatenate(is_wrong)
        repaired = [row[f"repair_{name}"] for row in rows]
        totals = {key: sum(each[key] for each in repaired) for key in repaired[0]}
        right = sum(row["tokens"] for row in rows) - made["planted"]
        made[name] = {
            "auroc": auroc(every[~flags], every[flags]),
            **totals,
            "restored_share": totals["restored"] / made["planted"],
            "harmed_share": totals["harmed"] / right,
        }
        found = made[name]
        print(
            f"{name:5} AUROC {found['auroc']:.3f}; {totals['restored']} of {made['planted']} restored"
            f" ({found['restored_share']:.0%}), {totals['changed']} changed; {totals['harmed']} of {right}"
            f" right ones harmed ({found['harmed_share']:.1%}); {totals['edits']} edits"
        )
    made["both_minus_left"] = paired(single["both"], single["left"])
    found = made["both_minus_left"]
    error, p_value = found["standard_error"], found["p_t"]
    print(f"AUROC by text, both - left: {found['mean']:+.3f} ± {error:.3f}, p = {p_value:.2g}")
    print(json.dumps(made))


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("phase", choices=("run", "report"))
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--ops", default=None, help="the op set; torch runs on a GPU")
    parser.add_argument("--count", type=int, default=60, help="paragraphs")
    add_spread(parser)
    parser.add_argument("--books", type=Path, required=True, help=BOOKS)
    parser.add_argument("--out", type=Path, default=Path("build/editing"), help="folder of the results")
    return parser.parse_args()


if __name__ == "__main__":
    main()
