"""The cost of recording: decoding with records, with records and the store, and with neither, in turns.

    python -m bench.recording [--rounds 7] [--tokens 128]

Without records, a stub chooses the same tokens with the same luck, row by row, and keeps only their ids.
The difference must be at most 2 %.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter

import numpy as np

from bench.statistics import ratio, summarize
from glassloop import LLM, Sampling, Store
from glassloop.decode.candidates import HEAD
from glassloop.decode.chosen import Chosen
from glassloop.decode.decoder import Decoder
from glassloop.decode.luck import luck_key
from glassloop.engine import loop
from glassloop.ops.native import rows as native
from glassloop.ops.quant import Float32
from glassloop.record.store import writer

_choose_rows = loop.choose_rows


def _bare(decoders: Sequence[Decoder], logits: Float32, places: Sequence[int]) -> list[Chosen | Exception]:
    found = []
    for decoder, place in zip(decoders, places, strict=True):
        step, row = decoder.step, logits[place]
        ids, highest = native.highest(row, HEAD)
        key = luck_key(step.seed, step.salt, step.position)
        token = native.chooser.race(key, ids, highest.astype(np.float64), row, 1.0)[0]
        found.append(Chosen(token.to_bytes(8, sys.byteorder)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=128)
    options = parser.parse_args()
    llm = LLM(draft=False)
    writer._LINGER = 0.0  # do not wait for more runs to write: waiting is not work
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for streams in (1, 16):
            store = Store(Path(folder) / f"{streams}.db")
            ways: dict[str, Callable[[], None]] = {
                "stubbed out": lambda: _set(llm, _bare, None),
                "recorded": lambda: _set(llm, _choose_rows, None),
                "recorded and stored": lambda store=store: _set(llm, _choose_rows, store),  # type: ignore[misc]
            }
            results[str(streams)] = _measure(llm, ways, streams, options.rounds, options.tokens)
    for streams, speeds in results.items():
        print(f"{streams} stream{'' if streams == '1' else 's'}")
        for way, values in speeds.items():
            found, share = summarize(values), ratio(values, speeds["stubbed out"])
            assert found is not None and share is not None
            print(f"  {way:20} {found.median:7.1f} ± {100 * found.spread:.0f} % tokens/s, ", end="")
            print(f"costs {100 * (1 - share):+.1f} %")
    print(json.dumps(results))


def _set(llm: LLM, choose: Callable[..., list[Chosen | Exception]], store: Store | None) -> None:
    loop.choose_rows = choose
    llm.store = store


def _measure(
    llm: LLM, ways: dict[str, Callable[[], None]], streams: int, rounds: int, tokens: int
) -> dict[str, list[float]]:
    """Returns tokens per second of each configuration; every round measures all of them."""
    speeds: dict[str, list[float]] = {way: [] for way in ways}
    options = {"max_tokens": tokens, "ignore_eos": True, "logprobs": 20}
    sampling = [Sampling.from_dict({**options, "seed": 7 + each}) for each in range(streams)]
    for number in range(rounds + 1):
        for way, prepare in ways.items():
            prepare()
            began = perf_counter()
            llm.generate([f"Story number {number} begins"] * streams, sampling)
            if llm.store is not None:
                llm.store.flush()
            if number:  # the first round warms up
                speeds[way].append(streams * tokens / (perf_counter() - began))
    return speeds


if __name__ == "__main__":
    main()
