"""Writes data for an adapter: `python -m bench.gcd FOLDER`. Questions are those of reasoning-gym's `gcd` with
two numbers; the answers for training write out Euclid's steps. No pair of the test is in the training
data."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

_LARGEST = 200


def steps(a: int, b: int) -> str:
    """Returns Euclid's algorithm in writing, with the result at the end."""
    a, b = max(a, b), min(a, b)
    lines = []
    while b:
        lines.append(f"{a} = {a // b} × {b} + {a % b}")
        a, b = b, a % b
    return "\n".join(lines) + f"\nThe answer is {a}."


def main() -> None:
    import reasoning_gym

    parser = argparse.ArgumentParser(prog="python -m bench.gcd", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--train", type=int, default=15_000)
    parser.add_argument("--test", type=int, default=500)
    given = parser.parse_args()
    options = {"min_numbers": 2, "max_numbers": 2, "min_value": 2, "max_value": _LARGEST}
    given.folder.mkdir(parents=True, exist_ok=True)
    held: set[tuple[int, ...]] = set()
    with (given.folder / "test.jsonl").open("w", encoding="utf-8") as file:
        for item in reasoning_gym.create_dataset("gcd", size=given.test, seed=1_000_003, **options):
            held.add(tuple(sorted(item["metadata"]["numbers"])))
            file.write(json.dumps({"prompt": item["question"], "answer": item["answer"]}) + "\n")
    kept = 0
    with (given.folder / "train.jsonl").open("w", encoding="utf-8") as file:
        for item in reasoning_gym.create_dataset("gcd", size=given.train, seed=1, **options):
            numbers = item["metadata"]["numbers"]
            if tuple(sorted(numbers)) in held:
                continue
            roles = ("user", item["question"]), ("assistant", steps(*numbers))
            file.write(json.dumps({"messages": [{"role": r, "content": c} for r, c in roles]}) + "\n")
            kept += 1
    print(f"{given.folder}: {kept} lines for training, {given.test} for the test")


if __name__ == "__main__":
    main()
