"""Planted errors, as in `bench.editing.planted`, found and repaired by masked rows.

    python -m bench.diffusion.planted run --books standardebooks-17.jsonl.xz
    python -m bench.diffusion.planted report

`left` is the surprise of a token given what comes before it, `masked` its surprise to the masked model, which
sees both sides, and `sum` the two together. `--first` skips paragraphs: the weights of the
evidence were chosen on those from 100 on, and its limit after the first five.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.diffusion.data import finish, load, options_of
from bench.editing.data import Results, paired, paragraphs
from bench.editing.planted import FIRST, auroc, spoil
from glassloop import LLM
from glassloop.edit.masks import masked_bits
from glassloop.edit.repair_by_masks import evidence
from glassloop.edit.repair_by_surprise import left_bits
from glassloop.edit.work import EditWork


def main() -> None:
    options = options_of(__doc__, ("run", "report"), 48, first=0, least_gain=4.0)
    (run if options.phase == "run" else report)(options)


def run(options: argparse.Namespace) -> None:
    results = Results(options.out / "planted.jsonl")
    items = paragraphs(options.books, options.first + options.count, 700, 1200)
    llm = load(options)
    for item in results.missing(range(options.first, len(items))):
        results.add({"item": item, **one(llm, items[item]["text"], item, options.least_gain)})


def one(llm: LLM, text: str, seed: int, least_gain: float) -> dict[str, Any]:
    clean, spoilt, wrong = spoil(llm, text, seed)
    work = EditWork(llm, seed)
    draft = work.text(spoilt[:1], spoilt[1:])
    made: dict[str, Any] = {"wrong": sorted(wrong), "tokens": len(clean)}
    made["left"], made["masked"] = left_bits(draft)[FIRST - 1 :], masked_bits(work, draft)[FIRST - 1 :]
    edit = llm.repair(draft, proposer="diffusion", least_gain=least_gain)
    after = [spoilt[0], *edit.token_ids]
    assert len(after) == len(clean)  # replacements are as long as what they replace
    made["repair"] = {
        "restored": sum(after[at] == clean[at] for at in wrong),
        "changed": sum(after[at] != spoilt[at] for at in wrong),
        "harmed": sum(after[at] != clean[at] for at in range(len(clean)) if at not in wrong),
        "edits": len(edit.accepted),
        "rows": edit.sampled + edit.scored,
    }
    made["accepted"] = [
        {
            "at": each.start + 1,
            "evidence": evidence(each),
            "restores": clean[each.start + 1] == each.ids[0],
            "harms": each.start + 1 not in wrong,
        }
        for each in edit.accepted
    ]
    return made


def report(options: argparse.Namespace) -> None:
    rows = list(Results(options.out / "planted.jsonl").rows.values())
    planted = sum(len(row["wrong"]) for row in rows)
    right = sum(row["tokens"] for row in rows) - planted
    made: dict[str, Any] = {"texts": len(rows), "planted": planted, "right": right, "auroc": {}}
    is_wrong = [np.isin(np.arange(FIRST, row["tokens"]), row["wrong"]) for row in rows]
    scores = {name: [np.array(row[name]) for row in rows] for name in ("left", "masked")}
    scores["sum"] = [a + b for a, b in zip(scores["left"], scores["masked"], strict=True)]
    single = {}
    for name, values in scores.items():
        every, flags = np.concatenate(values), np.concatenate(is_wrong)
        made["auroc"][name] = auroc(every[~flags], every[flags])
        single[name] = [auroc(s[~w], s[w]) for s, w in zip(values, is_wrong, strict=True)]
        print(f"{name:7} AUROC {made['auroc'][name]:.3f}")
    for name in ("masked", "sum"):
        gain = made[f"{name}_minus_left"] = paired(single[name], single["left"])
        print(f"{name} - left, by text: {gain['mean']:+.3f} ({gain['low']:+.3f} to {gain['high']:+.3f})")
    totals = {key: sum(row["repair"][key] for row in rows) for key in rows[0]["repair"]}
    wrong_ones = [len(row["wrong"]) for row in rows]
    right_ones = [row["tokens"] - len(row["wrong"]) for row in rows]
    parts = {"restored": wrong_ones, "changed": wrong_ones, "harmed": right_ones}
    shares = {key: ratio([row["repair"][key] for row in rows], of) for key, of in parts.items()}
    made["repair"] = {**totals, "shares": shares}
    for key, found in shares.items():
        print(f"repair: {totals[key]} {key}, {found['mean']:.1%} ({found['low']:.1%} to {found['high']:.1%})")
    print(f"{totals['edits']} edits, {totals['rows'] / (planted + right):.0f} rows for each token")
    finish(made)


def ratio(parts: Sequence[int], wholes: Sequence[int]) -> dict[str, float]:
    """Returns the sum of parts over the sum of wholes, with an interval of 95 % by bootstrap of texts."""
    part, whole = np.array(parts, float), np.array(wholes, float)
    drawn = np.random.default_rng(0).integers(0, len(part), (10_000, len(part)))
    low, high = np.quantile(part[drawn].sum(1) / whole[drawn].sum(1), [0.025, 0.975])
    return {"mean": float(part.sum() / whole.sum()), "low": float(low), "high": float(high)}


if __name__ == "__main__":
    main()
