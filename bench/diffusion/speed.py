"""Tokens a second by diffusion and from left to right, for one stream and for several.

python -m bench.diffusion.speed run [--ops torch]

The settings take turns in each round. Beside the clock there is the time of the processor, which says more on
a machine that does other work too; the ratios are of the latter, but for a GPU.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from time import perf_counter, process_time
from typing import Any

from bench.diffusion.data import finish, load, options_of
from glassloop import LLM, Sampling

PROMPT = "Once upon a time, in a small village by the sea,"
SETTINGS: dict[str, dict[str, Any] | None] = {
    "left to right": None,
    "blocks of 8, 1 a pass": {"block": 8, "threshold": None, "most": 1},
    "blocks of 8, 2 a pass": {"block": 8, "threshold": None, "most": 2},
    "blocks of 8, 4 a pass": {"block": 8, "threshold": None, "most": 4},
    "blocks of 16, surer than 0.9": {"block": 16, "threshold": 0.9},
}


def main() -> None:
    run(options_of(__doc__, ("run",), 3, tokens=64, streams="1 16"))


def run(options: argparse.Namespace) -> None:
    llm = load(options)
    made: dict[str, Any] = {"ops": llm.transformer.ops.description, "tokens": options.tokens, "streams": {}}
    for streams in map(int, options.streams.split()):
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in SETTINGS}
        for number in range(options.count + 1):
            for name, settings in SETTINGS.items():
                times[name].append(timed(llm, settings, streams, options.tokens, number))
        found = made["streams"][streams] = {}
        tokens, clock = streams * options.tokens, 0 if options.ops == "torch" else 1
        plain = times["left to right"][1:]
        for name, all_of_them in times.items():
            kept = all_of_them[1:]  # the first round warms up
            ratio = median(left[clock] / each[clock] for left, each in zip(plain, kept, strict=True))
            wall, busy = (tokens / median(each[which] for each in kept) for which in (0, 1))
            found[name] = {"tokens_per_s": wall, "tokens_per_processor_s": busy, "ratio": ratio}
            print(
                f"{streams:3} streams  {name:30} {wall:8.1f} tokens/s, {busy:8.1f} by the processor's time,"
                f" {ratio:.2f} of left to right",
                flush=True,
            )
    finish(made)


def timed(
    llm: LLM, settings: dict[str, Any] | None, streams: int, tokens: int, number: int
) -> tuple[float, float]:
    """Returns the seconds in which all streams write their tokens, by the clock and of the processor."""

    def one(stream: int) -> None:
        sampling = Sampling(
            temperature=0.8, seed=1000 * number + stream, max_tokens=tokens, ignore_eos=True, logprobs=0
        )
        if settings is None:
            llm.generate(PROMPT, sampling)
        else:
            llm.diffuse(PROMPT, sampling, diffusion=settings)

    began, busy = perf_counter(), process_time()
    with ThreadPoolExecutor(streams) as pool:
        list(pool.map(one, range(streams)))
    return perf_counter() - began, process_time() - busy


if __name__ == "__main__":
    main()
