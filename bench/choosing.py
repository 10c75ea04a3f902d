"""`python -m bench.choosing`: the cost of choosing a token and recording it, compared with the forward pass
that computed the logits. The steps of one text are chosen by several requests in turn, a few consecutive
steps each, so that noise on the machine affects all alike. Prints a table and a last line of JSON.
"""

from __future__ import annotations

import argparse
import json
from statistics import median
from time import perf_counter

from bench.__main__ import MODELS
from bench.english import english
from glassloop.decode.chosen import Chosen
from glassloop.decode.decoder import Decoder, choose_rows
from glassloop.decode.sampling import Sampling
from glassloop.model.cache import Branches
from glassloop.model.loader import ModelFiles
from glassloop.model.registry import fetch
from glassloop.ops import choose_ops

PROMPT = 64
TURN = 8  # consecutive steps of one request
REQUESTS = {
    "greedy": Sampling(temperature=0),
    "temperature 0.8": Sampling(temperature=0.8),
    "top-p 0.9": Sampling(temperature=0.8, top_p=0.9),
    "penalties, top-k, top-p, min-p": Sampling(
        temperature=0.8,
        top_k=50,
        top_p=0.9,
        min_p=0.05,
        repetition_penalty=1.1,
        presence_penalty=0.2,
        frequency_penalty=0.1,
    ),
}
Times = dict[str, list[float]]  # seconds per step


def measure(model: str, rows: int, steps: int) -> tuple[Times, list[float]]:
    """Returns the seconds spent on choosing, by request, and those of the forward passes."""
    files = ModelFiles(fetch(model))
    ops = choose_ops()
    cache = Branches(files.transformer(ops), PROMPT + steps, rows)
    ids = files.tokenizer().encode(english())
    prompts = [ids[PROMPT * row : PROMPT * (row + 1)] for row in range(rows)]
    width, functions = files.config.vocab_size, ops.rows
    branches = {
        name: [Decoder(sampling, width, 7, prompt, row, ops=functions) for row, prompt in enumerate(prompts)]
        for name, sampling in REQUESTS.items()
    }
    logits = cache.forward([(row, 0, prompt) for row, prompt in enumerate(prompts)])
    choosing: Times = {name: [] for name in REQUESTS}
    forward: list[float] = []
    for step in range(steps):
        name = list(REQUESTS)[step // TURN % len(REQUESTS)]
        began = perf_counter()
        chosen = [made.id for made in choose_rows(branches[name], logits) if isinstance(made, Chosen)]
        for decoder, token in zip(branches[name], chosen, strict=True):
            decoder.commit(token)
        choosing[name].append(perf_counter() - began)
        for other in branches.keys() - {name}:
            for decoder, token in zip(branches[other], chosen, strict=True):
                decoder.commit(token)
        began = perf_counter()
        logits = cache.forward([(row, PROMPT + step, [token]) for row, token in enumerate(chosen)])
        forward.append(perf_counter() - began)
    return choosing, forward


def main() -> None:
    parser = argparse.ArgumentParser("bench.choosing", description="Choosing beside the forward pass.")
    parser.add_argument("--steps", type=int, default=400, help="steps per model and number of rows (400)")
    parser.add_argument("--models", nargs="+", default=list(MODELS), help=" ".join(MODELS))
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16], help="branches in a step (1 16)")
    options = parser.parse_args()
    found = []
    print("median milliseconds of a step, and the share of choosing in it")
    for model in options.models:
        for rows in options.rows:
            choosing, forward = measure(model, rows, options.steps)
            passing = median(forward)
            print(f"\n{model}, {rows} {'row' if rows == 1 else 'rows'}: forward {1000 * passing:.2f}")
            for name, seconds in choosing.items():
                spent = median(seconds)
                share = spent / (spent + passing)
                print(f"  {name:32}{1000 * spent:8.3f}{1000 * spent / rows:8.3f} a row{share:8.1%}")
                found.append(
                    {
                        "model": model,
                        "rows": rows,
                        "request": name,
                        "forward_ms": round(1000 * passing, 3),
                        "choosing_ms": round(1000 * spent, 4),
                        "share": round(share, 4),
                    }
                )
    print(json.dumps({"choosing": found}))


if __name__ == "__main__":
    main()
