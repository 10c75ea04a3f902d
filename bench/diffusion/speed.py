"""Tokens a second by diffusion and from left to right, for one stream and for several.

python -m bench.diffusion.speed run [--ops torch]
"""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
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
        found = made["streams"][streams] = {}
        for name, settings in SETTINGS.items():
            times = [
                timed(llm, settings, streams, options.tokens, number) for number in range(options.count + 1)
            ]
            found[name] = streams * options.tokens / sorted(times[1:])[options.count // 2]
            print(f"{streams:3} streams  {name:30} {found[name]:9.1f} tokens/s", flush=True)
    finish(made)


def timed(llm: LLM, settings: dict[str, Any] | None, streams: int, tokens: int, number: int) -> float:
    """Returns the seconds in which all streams write their tokens."""

    def one(stream: int) -> None:
        sampling = Sampling(
            temperature=0.8, seed=1000 * number + stream, max_tokens=tokens, ignore_eos=True, logprobs=0
        )
        if settings is None:
            llm.generate(PROMPT, sampling)
        else:
            llm.diffuse(PROMPT, sampling, diffusion=settings)

    began = perf_counter()
    with ThreadPoolExecutor(streams) as pool:
        list(pool.map(one, range(streams)))
    return perf_counter() - began


if __name__ == "__main__":
    main()
