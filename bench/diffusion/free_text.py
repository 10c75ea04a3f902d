"""Free text: how likely another model (Gemma 3 270M) finds what diffusion writes, over passes per token,
against text that is written from left to right.

    python -m bench.diffusion.free_text generate --books standardebooks-17.jsonl.xz
    python -m bench.diffusion.free_text judge
    python -m bench.diffusion.free_text report

Each item is the beginning of a paragraph, continued with 96 tokens. Text that repeats itself is likely, so
the methods are compared at equal entropy of unigrams: the left-to-right perplexity at the entropy of a method
is interpolated between temperatures.
"""

from __future__ import annotations

import argparse
from collections import Counter
from math import exp, log
from typing import Any

import numpy as np

from bench.diffusion.data import finish, load, options_of
from bench.editing.data import Results, paragraphs
from glassloop import LLM, Sampling
from glassloop.edit.proposal import Work, bits

PROMPT, LENGTH = 32, 96
TEMPERATURES = (0.6, 0.8, 1.0)
BLOCK = 8
# By name: options of diffusion. `most` tokens a pass; `revise` takes a quarter of each block back.
SETTINGS: dict[str, dict[str, Any]] = {
    "1 a pass": {"block": BLOCK, "threshold": None, "most": 1},
    "2 a pass": {"block": BLOCK, "threshold": None, "most": 2},
    "4 a pass": {"block": BLOCK, "threshold": None, "most": 4},
    "surer than 0.9": {"block": BLOCK, "threshold": 0.9},
    "1 a pass, revised once": {"block": BLOCK, "threshold": None, "most": 1, "revise": 1},
    "1 a pass, revised 4 times": {"block": BLOCK, "threshold": None, "most": 1, "revise": 4},
    "1 a pass, revised by likelihood": {
        "block": BLOCK, "threshold": None, "most": 1, "revise": 2, "revise_by": "likelihood",
    },
}  # fmt: skip


def main() -> None:
    phases = {"generate": generate, "judge": judge, "report": report}
    options = options_of(__doc__, tuple(phases), 24, judge="gemma-3-270m", temperature=0.8)
    phases[options.phase](options)


def generate(options: argparse.Namespace) -> None:
    results = Results(options.out / "free_text.jsonl")
    items = paragraphs(options.books, options.count, 700, 1200)
    llm = load(options)
    for item in results.missing(range(len(items))):
        ids = llm.tokenizer.encode_inside(items[item]["text"])[:PROMPT]
        results.add({"item": item, "prompt": llm.tokenizer.decode(ids), **write(llm, ids, item, options)})


def write(llm: LLM, ids: list[int], seed: int, options: argparse.Namespace) -> dict[str, Any]:
    texts, tokens, passes = {}, {}, {}
    common = {"seed": seed, "max_tokens": LENGTH, "ignore_eos": True}
    for temperature in TEMPERATURES:
        name = f"left, T {temperature}"
        run = llm.generate(ids, Sampling(temperature=temperature, **common))
        texts[name], tokens[name], passes[name] = run.text, run.token_ids, len(run.token_ids)
    for name, settings in SETTINGS.items():
        run = llm.diffuse(ids, Sampling(temperature=options.temperature, **common), diffusion=settings)
        texts[name], tokens[name], passes[name] = run.text, run.token_ids, len(run.passes)
    return {"texts": texts, "tokens": tokens, "passes": passes}


def judge(options: argparse.Namespace) -> None:
    written, judged = Results(options.out / "free_text.jsonl"), Results(options.out / "free_judged.jsonl")
    llm = LLM(options.judge, ops=options.ops, kv_memory=options.kv_memory)
    for item in judged.missing(sorted(written.rows)):
        row = written.rows[item]
        work, requests, lengths = Work(llm, 0), {}, {}
        for name, text in row["texts"].items():
            ids = llm.tokenizer.encode_inside(text)
            draft = llm.new_run(
                llm.tokenizer.encode(row["prompt"]), Sampling(), 0, salt=0, prompt=None, sample=0
            )
            requests[name], lengths[name] = work.branch(draft, 0, ids), len(ids)
        work.complete(list(requests.values()))
        found = {
            name: [bits(each.runs[0], 0, lengths[name]), lengths[name]] for name, each in requests.items()
        }
        judged.add({"item": item, "bits": found})


def entropy(ids: list[int]) -> float:
    """Returns the entropy of the unigrams of a text, in nats."""
    counts = np.array(list(Counter(ids).values()), float)
    shares = counts / counts.sum()
    return -float((shares * np.log(shares)).sum())


def report(options: argparse.Namespace) -> None:
    written, judged = Results(options.out / "free_text.jsonl"), Results(options.out / "free_judged.jsonl")
    items = sorted(judged.rows)
    made: dict[str, Any] = {"items": len(items), "tokens": LENGTH, "methods": {}}
    for name in judged.rows[items[0]]["bits"]:
        pairs = [judged.rows[item]["bits"][name] for item in items]
        nats = [bits_ * log(2) / max(1, count) for bits_, count in pairs]
        rng = np.random.default_rng(0)
        means = np.array(nats)[rng.integers(0, len(nats), (2000, len(nats)))].mean(1)
        made["methods"][name] = {
            "perplexity": exp(sum(nats) / len(nats)),
            "low": exp(float(np.quantile(means, 0.025))),
            "high": exp(float(np.quantile(means, 0.975))),
            "entropy": float(np.mean([entropy(written.rows[item]["tokens"][name]) for item in items])),
            "passes_per_token": float(np.mean([written.rows[item]["passes"][name] for item in items]))
            / LENGTH,
        }
    plain = sorted(
        (each["entropy"], log(each["perplexity"]))
        for name, each in made["methods"].items()
        if name.startswith("left")
    )
    print(f"{len(items)} texts of {LENGTH} tokens, judged by {options.judge}")
    print(
        f"{'method':32} {'perplexity':>10} {'interval':>16} {'entropy':>8} {'passes/token':>13} {'ratio':>6}"
    )
    for name, each in made["methods"].items():
        equal = exp(float(np.interp(each["entropy"], [x for x, _ in plain], [y for _, y in plain])))
        each["ratio_at_equal_entropy"] = each["perplexity"] / equal
        interval = f"{each['low']:.1f} to {each['high']:.1f}"
        print(
            f"{name:32} {each['perplexity']:10.1f} {interval:>16} {each['entropy']:8.3f}"
            f" {each['passes_per_token']:13.2f} {each['ratio_at_equal_entropy']:6.2f}"
        )
    finish(made)


if __name__ == "__main__":
    main()
