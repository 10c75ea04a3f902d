"""`python -m bench.thinking.cost`: the wall time of n paths beside that of one, and the search's own share.

Rounds of one path and of n paths alternate, so that a busy machine slows both; medians are compared. Every
path has the same number of tokens. The search's own work is the time in `Running.next_round`: extracting,
deciding, and preparing requests. The processor time of the process is told too: it says what a machine
without other work would need.
"""

from __future__ import annotations

import argparse
import json
from statistics import median
from time import perf_counter, process_time
from typing import Any

from glassloop import LLM, Sampling
from glassloop.model.registry import DEFAULT_MODEL
from glassloop.search.running import Running
from glassloop.search.solve import solve

QUESTION = (
    "Natalia sold clips to 48 friends in April, and half as many in May. How many did she sell altogether?"
)


def main() -> None:
    options = _options()
    with LLM(options.model, options.ops, draft=False) as llm:
        _measure(llm, 1, options.tokens)  # warm: the chat template's process, the caches
        rounds = [
            {n: _measure(llm, n, options.tokens) for n in (1, options.n)} for _ in range(options.rounds)
        ]
    print(f"{options.model}, {options.tokens} tokens a path, {options.rounds} rounds, medians")
    made: dict[str, Any] = {"model": options.model, "n": options.n}
    for name, what in (("seconds", "wall time"), ("processor", "processor time")):
        one, many = (median(each[n][name] for each in rounds) for n in (1, options.n))
        ratio = median(each[options.n][name] / each[1][name] for each in rounds)
        print(f"{what}: one path {one:.2f} s, {options.n} paths {many:.2f} s, {ratio:.2f} times")
        made[f"{name}_ratio"] = ratio
    share = median(each[options.n]["own"] / each[options.n]["seconds"] for each in rounds)
    print(f"the search's own work: {share:.2%} of the wall time")
    print(json.dumps({**made, "own_share": share, "rounds": rounds}))


def _measure(llm: LLM, n: int, tokens: int) -> dict[str, Any]:
    sampling = Sampling(temperature=0.7, max_tokens=tokens, ignore_eos=True, seed=1)
    own = 0.0
    plain = Running.next_round

    def timed(running: Running) -> Any:
        nonlocal own
        began = perf_counter()
        try:
            return plain(running)
        finally:
            own += perf_counter() - began

    Running.next_round = timed  # type: ignore[method-assign]
    try:
        began, used = perf_counter(), process_time()
        solution = solve(llm, QUESTION, method="vote", n=n, sampling=sampling, extract="number")
        seconds, used = perf_counter() - began, process_time() - used
    finally:
        Running.next_round = plain  # type: ignore[method-assign]
    assert solution.usage.tokens == n * tokens
    return {"seconds": seconds, "processor": used, "own": own, "tokens": solution.usage.tokens}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--ops")
    parser.add_argument("--n", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


if __name__ == "__main__":
    main()
