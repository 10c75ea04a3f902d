"""One token in the middle of 256, guessed from the left alone and from both sides.

python -m bench.diffusion.one_token run --books standardebooks-17.jsonl.xz
python -m bench.diffusion.one_token report
"""

from __future__ import annotations

import argparse
import json
import lzma
from typing import Any

import numpy as np

from bench.diffusion.data import finish, load, log_softmax, masked_logits, options_of, share
from bench.editing.data import Results, paired
from glassloop import LLM

LENGTH = 256
CHARACTERS = 2400  # enough for that many tokens


def main() -> None:
    options = options_of(__doc__, ("run", "report"), 200)
    (run if options.phase == "run" else report)(options)


def run(options: argparse.Namespace) -> None:
    results = Results(options.out / "one_token.jsonl")
    texts = windows(options)
    llm = load(options)
    for item in results.missing(range(len(texts))):
        results.add({"item": item, **one(llm, texts[item])})


def windows(options: argparse.Namespace) -> list[str]:
    """Returns pieces of all books in turn, at places that depend on nothing but their number."""
    with lzma.open(options.books, "rt", encoding="utf-8") as file:
        books = [json.loads(line)["text"] for line in file]
    rng = np.random.default_rng(0)
    made = []
    for item in range(options.count):
        book = books[item % len(books)]
        start = int(rng.integers(len(book) - CHARACTERS))
        start = book.find(" ", start) + 1
        made.append(book[start : start + CHARACTERS])
    return made


def one(llm: LLM, text: str) -> dict[str, Any]:
    ids = llm.tokenizer.encode_inside(text)[:LENGTH]
    place = len(ids) // 2
    right = ids[place]
    left = log_softmax(llm.logits(ids[:place], place - 1)[-1])
    both = log_softmax(masked_logits(llm, ids[:place], 1, ids[place + 1 :])[0])
    return {
        name: {"right": bool(row.argmax() == right), "nats": -float(row[right])}
        for name, row in (("left", left), ("both", both))
    }


def report(options: argparse.Namespace) -> None:
    rows = list(Results(options.out / "one_token.jsonl").rows.values())
    made: dict[str, Any] = {"items": len(rows)}
    for name in ("left", "both"):
        right = share([float(row[name]["right"]) for row in rows])
        nats = share([row[name]["nats"] for row in rows])
        made[name] = {"right": right, "nats": nats}
        print(
            f"{name:5} {right['mean']:6.1%} right ({right['low']:.1%} to {right['high']:.1%}),"
            f" {nats['mean']:.2f} nats"
        )
    sides = ([float(row[name]["right"]) for row in rows] for name in ("both", "left"))
    gain = made["both_minus_left"] = paired(*sides)
    print(f"both - left: {gain['mean']:+.1%} ({gain['low']:+.1%} to {gain['high']:+.1%}), {len(rows)} tokens")
    finish(made)


if __name__ == "__main__":
    main()
