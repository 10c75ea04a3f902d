"""Free text: how likely another model (Gemma 3 270M) finds what diffusion writes, over passes per token,
against text that is written from left to right.

    python -m bench.diffusion.free_text generate --books standardebooks-17.jsonl.xz
    python -m bench.diffusion.free_text judge
    python -m bench.diffusion.free_text report

Each item is the beginning of a paragraph, continued with 64 tokens. Text that repeats itself is likely, so
the methods are compared at equal entropy of unigrams: the left-to-right perplexity at the entropy of a method
is interpolated between temperatures, on a line beyond them. `--only` names the methods to write, separated by
semicolons.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from math import exp, log
from typing import Any

import numpy as np

from bench.diffusion.data import finish, load, options_of
from bench.editing.data import Results, paragraphs
from glassloop import LLM, Sampling
from glassloop.edit.proposal import bits
from glassloop.edit.work import EditWork

PROMPT, LENGTH = 32, 64
LEFT = {"left to right, T 0.6": 0.6, "left to right, T 0.8": 0.8, "left to right, T 1.0": 1.0}
BLOCK = 8


def _settings(most: int, **more: Any) -> dict[str, Any]:
    """Returns options of diffusion that fill `most` masks of a block in each pass."""
    return {"block": BLOCK, "threshold": None, "most": most, **more}


# By name: options of diffusion. `revise` takes a quarter of each block back.
SETTINGS: dict[str, dict[str, Any]] = {
    "1 a pass": _settings(1),
    "2 a pass": _settings(2),
    "4 a pass": _settings(4),
    "1 a pass, from the left": _settings(1, order="left"),
    "2 a pass, from the left": _settings(2, order="left"),
    "4 a pass, from the left": _settings(4, order="left"),
    "entropy 0.5": {"block": BLOCK, "entropy": 0.5, "order": "entropy"},
    "surer than 0.9": {"block": BLOCK, "threshold": 0.9},
    "2 a pass, revised once": _settings(2, revise=1),
    "2 a pass, revised 4 times": _settings(2, revise=4),
    "2 a pass, revised once by likelihood": _settings(2, revise=1, revise_by="likelihood"),
    "2 a pass, revised twice by likelihood": _settings(2, revise=2, revise_by="likelihood"),
    "2 a pass, revised 4 times by likelihood": _settings(2, revise=4, revise_by="likelihood"),
}


def main() -> None:
    phases = {"generate": generate, "judge": judge, "report": report}
    more = {"judge": "gemma-3-270m", "temperature": 0.8, "at_once": 12, "only": ""}
    options = options_of(__doc__, tuple(phases), 24, **more)
    phases[options.phase](options)


def methods(options: argparse.Namespace) -> list[str]:
    every = [*LEFT, *SETTINGS]
    return [name for name in every if not options.only or name in options.only.split(";")]


def results_of(options: argparse.Namespace, folder: str, method: str) -> Results:
    return Results(options.out / folder / f"{method.replace(' ', '-').replace(',', '')}.jsonl")


def generate(options: argparse.Namespace) -> None:
    items = paragraphs(options.books, options.count, 700, 1200)
    llm = load(options)
    for method in methods(options):

        def one(item: int, method: str = method) -> dict[str, Any]:
            ids = llm.tokenizer.encode_inside(items[item]["text"])[:PROMPT]
            return {"prompt": llm.tokenizer.decode(ids), **write(llm, ids, item, method, options)}

        results_of(options, "written", method).compute(range(len(items)), one, options.at_once)
        print(method, flush=True)


def write(llm: LLM, ids: list[int], seed: int, method: str, options: argparse.Namespace) -> dict[str, Any]:
    """Continues a prompt with a method."""
    temperature = LEFT.get(method, options.temperature)
    sampling = Sampling(temperature=temperature, seed=seed, max_tokens=LENGTH, ignore_eos=True)
    if method in LEFT:
        run = llm.generate(ids, sampling)
    else:
        run = llm.diffuse(ids, sampling, diffusion=SETTINGS[method])
    return {"text": run.text, "tokens": run.token_ids, "passes": len(run.passes) or len(run.tokens)}


def judge(options: argparse.Namespace) -> None:
    llm = LLM(options.judge, ops=options.ops, kv_memory=options.kv_memory)
    for method in methods(options):
        written = results_of(options, "written", method)

        def one(item: int, written: Results = written) -> dict[str, Any]:
            row = written.rows[item]
            ids = llm.tokenizer.encode_inside(row["text"])
            work = EditWork(llm, 0)
            run = work.text(llm.tokenizer.encode(row["prompt"]), ids)
            return {"bits": bits(run, 0, len(ids)), "count": len(ids)}

        results_of(options, "judged", method).compute(sorted(written.rows), one, options.at_once)
        print(method, flush=True)


def entropy(ids: Sequence[int]) -> float:
    """Returns the entropy of the unigrams of a text, in nats."""
    counts = np.array(list(Counter(ids).values()), float)
    shares = counts / counts.sum()
    return -float((shares * np.log(shares)).sum())


def at_entropy(wanted: float, known: Sequence[tuple[float, float]]) -> float:
    """Returns the logarithm of the perplexity at an entropy: a line through the known ones."""
    slope, constant = np.polyfit([x for x, _ in known], [y for _, y in known], 1)
    return float(slope * wanted + constant)


def report(options: argparse.Namespace) -> None:
    """Prints perplexity, entropy and the ratio at equal entropy, with intervals by bootstrap of the texts."""
    nats, entropies, passes = dict[str, Any](), dict[str, Any](), dict[str, float]()
    common: set[int] | None = None
    for name in methods(options):
        judged = results_of(options, "judged", name).rows
        if judged:
            common = set(judged) if common is None else common & set(judged)
    items = sorted(common or ())
    for name in methods(options):
        judged, written = (results_of(options, each, name).rows for each in ("judged", "written"))
        if judged:
            nats[name] = np.array([judged[at]["bits"] * log(2) / judged[at]["count"] for at in items])
            entropies[name] = np.array([entropy(written[at]["tokens"]) for at in items])
            passes[name] = float(np.mean([written[at]["passes"] for at in items])) / LENGTH
    drawn = np.random.default_rng(0).integers(0, len(items), (2000, len(items)))
    made: dict[str, Any] = {"items": len(items), "tokens": LENGTH, "methods": {}}
    print(f"{len(items)} texts of {LENGTH} tokens, judged by {options.judge}")
    print(f"{'method':40} {'perplexity':>10} {'interval':>14} {'entropy':>8} {'passes/token':>13} ratio")
    for name in nats:
        logs = np.array([_ratio(name, nats, entropies, each) for each in [np.arange(len(items)), *drawn]])
        low, high = np.quantile(nats[name][drawn].mean(1), [0.025, 0.975])
        ratio_low, ratio_high = np.quantile(logs[1:], [0.025, 0.975])
        found = made["methods"][name] = {
            "perplexity": exp(nats[name].mean()),
            "low": exp(low),
            "high": exp(high),
            "entropy": float(entropies[name].mean()),
            "passes_per_token": passes[name],
            "ratio": exp(logs[0]),
            "ratio_low": exp(ratio_low),
            "ratio_high": exp(ratio_high),
        }
        print(
            f"{name:40} {found['perplexity']:10.1f} {found['low']:6.1f} to {found['high']:<5.1f}"
            f" {found['entropy']:8.3f} {found['passes_per_token']:13.2f}"
            f" {found['ratio']:.2f} ({found['ratio_low']:.2f} to {found['ratio_high']:.2f})"
        )
    finish(made)


def _ratio(name: str, nats: dict[str, Any], entropies: dict[str, Any], chosen: Any) -> float:
    """Returns the logarithm of a method's perplexity over the left-to-right one at its entropy."""
    known = [(float(entropies[left][chosen].mean()), float(nats[left][chosen].mean())) for left in LEFT]
    return float(nats[name][chosen].mean()) - at_entropy(float(entropies[name][chosen].mean()), known)


if __name__ == "__main__":
    main()
