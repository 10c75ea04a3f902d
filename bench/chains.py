"""`python -m bench.chains`: what one choice costs on one thread, by stage and by shape of the row of logits.
Prints a table and a last line of JSON; `--before` reads that line of another build and shows both.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np

from bench.english import english
from glassloop.decode.decoder import Decoder
from glassloop.decode.sampling import Sampling
from glassloop.model.cache import Branches
from glassloop.model.loader import ModelFiles
from glassloop.model.registry import fetch
from glassloop.ops import choose_ops
from glassloop.ops.quant import Float32

MODEL = "smollm2-135m-instruct"
WIDTHS = (49_152, 128_256)
PROMPT = 64
_CUTS = {
    "typical_p": 0.99,
    "top_p": 0.99,
    "min_p": 1e-4,
    "top_n_sigma": 4.0,
    "xtc_probability": 1.0,
    "xtc_threshold": 1e-4,
    "epsilon_cutoff": 1e-7,
    "eta_cutoff": 1e-7,
}
_PENALTIES = {"repetition_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": 0.1}
CHAINS: dict[str, dict[str, float]] = {
    "temperature alone": {},
    "top_k 50": {"top_k": 50},
    "top_k 1000": {"top_k": 1000},
    "top_k 20000": {"top_k": 20_000},
    "top_p 0.95": {"top_p": 0.95},
    "min_p 0.001": {"min_p": 0.001},
    "typical_p 0.95": {"typical_p": 0.95},
    "top_n_sigma 3": {"top_n_sigma": 3.0},
    "xtc 0.00001": {"xtc_probability": 1.0, "xtc_threshold": 1e-5},
    "epsilon 0.000001": {"epsilon_cutoff": 1e-6},
    "eta 0.000001": {"eta_cutoff": 1e-6},
    "all cuts": _CUTS,
    "all cuts, penalties": _CUTS | _PENALTIES,
}
Found = dict[str, int | str | float]


def model_row() -> Float32:
    """Returns the logits of a model after a prompt."""
    files = ModelFiles(fetch(MODEL))
    ids = files.tokenizer().encode(english())[:PROMPT]
    cache = Branches(files.transformer(choose_ops("native")), PROMPT)
    logits: Float32 = cache.forward([(0, 0, ids)])[0].copy()
    return logits


def rows_of(width: int, real: Float32) -> dict[str, tuple[Float32, float]]:
    """Returns rows of logits with the temperatures at which tokens are chosen from them."""
    rng = np.random.default_rng(0)
    flat = rng.normal(0, 2, width).astype(np.float32)
    peaked = flat.copy()
    peaked[rng.integers(0, width, 20)] += rng.exponential(8, 20).astype(np.float32)
    if width != len(real):  # as many logits, distributed as those of the model
        real = np.quantile(real, rng.random(width)).astype(np.float32)
    return {"peaked": (peaked, 1.0), "model": (real, 1.0), "flat, T=2": (flat, 2.0), "flat, T=5": (flat, 5.0)}


def milliseconds(logits: Float32, sampling: Sampling, seconds: float) -> float:
    """Returns the median time of a choice, its record included."""
    prompt = list(range(PROMPT))
    decoder = Decoder(sampling, len(logits), 7, prompt, ops=choose_ops("native").rows)
    spent: list[float] = []
    while len(spent) < 9 or (sum(spent) < seconds and len(spent) < 2000):
        began = perf_counter()
        chosen = decoder.choose(logits)
        spent.append(perf_counter() - began)
        decoder.commit(chosen.id)
        if len(spent) % 50 == 0:  # penalties are measured with a history of a few tokens
            decoder.rewind(0)
    return 1000 * median(spent)


def main() -> None:
    parser = argparse.ArgumentParser("bench.chains", description="The cost of a choice, by stage and row.")
    parser.add_argument("--seconds", type=float, default=0.2, help="for each cell of the table (0.2)")
    parser.add_argument("--before", type=Path, help="what this command printed with another build")
    options = parser.parse_args()
    if os.environ.get("GLASSLOOP_THREADS") != "1":
        parser.error("set GLASSLOOP_THREADS=1: these are times of one thread")
    before = {}
    if options.before:
        lines = json.loads(options.before.read_text().strip().splitlines()[-1])["chains"]
        before = {(each["width"], each["row"], each["chain"]): each["ms"] for each in lines}
    found: list[Found] = []
    real = model_row()
    print("median milliseconds of one choice" + (", before → after" if before else ""))
    for width in WIDTHS:
        rows = rows_of(width, real)
        print(f"\n| {width:,} logits | " + " | ".join(rows) + " |")
        print("|---" * (1 + len(rows)) + "|")
        for chain, wanted in CHAINS.items():
            cells = []
            for name, (logits, temperature) in rows.items():
                sampling = Sampling.from_dict({"temperature": temperature, **wanted})
                spent = milliseconds(logits, sampling, options.seconds)
                found.append({"width": width, "row": name, "chain": chain, "ms": round(spent, 4)})
                earlier = before.get((width, name, chain))
                cells.append(f"{spent:.3f}" if earlier is None else f"{earlier:.2f} → {spent:.3f}")
            print(f"| {chain} | " + " | ".join(cells) + " |", flush=True)
    print(json.dumps({"chains": found}))


if __name__ == "__main__":
    main()
