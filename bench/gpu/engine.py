"""Times the whole engine with random weights, through `LLM` with its record: streams that decode together,
requests that come at once, and the engine's own share of a step."""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.gpu.shapes import SHAPES, WEIGHTS, random_model
from glassloop.api.llm import LLM
from glassloop.decode.sampling import Sampling
from glassloop.engine.loading import LoadedModel
from glassloop.engine.local import LocalModel
from glassloop.engine.loop import Loop
from glassloop.model.transformer import Transformer
from glassloop.record.run import Run
from glassloop.text.pieces import Pieces

# The options that people use. The logits of random weights are flat; at a temperature of 0.25 their entropy
# is about that of a model's.
_OPTIONS = {
    "greedy": {"temperature": 0.0},
    "drawing": {},
    "top-p": {"top_p": 0.9},
    "min-p": {"min_p": 0.05},
    "top-k": {"top_k": 500},
    "typical-p": {"typical_p": 0.9},
    "xtc": {"xtc_probability": 0.5},
    "penalty": {"top_p": 0.95, "repetition_penalty": 1.1},
    "all": {"top_p": 0.95, "min_p": 0.001, "repetition_penalty": 1.1, "presence_penalty": 0.2, "logprobs": 5},
}


class _Tokenizer:
    """A vocabulary of made-up words: random weights have no text."""

    name = "random"
    eos_ids: tuple[int, ...] = ()
    missing_ids: tuple[int, ...] = ()
    special_ids: tuple[int, ...] = ()
    bos_id = None

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def token_bytes(self, token: int) -> bytes:
        return b" w%d" % token

    def piece(self, token: int) -> str:
        return f" w{token}"


class RandomLLM(LLM):
    """An `LLM` around a model that is in memory already, with a vocabulary of made-up words."""

    model_hash = "random"  # type: ignore[assignment]

    def __init__(self, model: Transformer, kv_memory: int, most_running: int) -> None:
        tokenizer: Any = _Tokenizer(model.config.vocab_size)
        pieces = Pieces(tokenizer)
        loop = Loop(model, tokenizer, pieces.__getitem__, kv_memory, most_running)
        loaded = LoadedModel(model.config.family, loop, drafter=None, pieces=pieces)
        LocalModel.__init__(self, loaded, most_waiting=10**6)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shape", default="8b", choices=SHAPES)
    parser.add_argument("--weights", default="bf16", choices=WEIGHTS)
    parser.add_argument("--streams", default="1,64,256")
    parser.add_argument("--options", default="greedy,drawing,top-p,min-p,penalty", help=", ".join(_OPTIONS))
    parser.add_argument("--temperatures", default="0.25,1", help="of all but greedy")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--kv-memory", type=int, default=40 << 30)
    parser.add_argument("--serving", type=int, default=256, help="requests of 100 to 1,024 tokens at once")


def main(given: argparse.Namespace) -> None:
    streams = [int(each) for each in given.streams.split(",") if each]
    model, rng = random_model(given.shape, weights=given.weights), np.random.default_rng(1)
    llm = RandomLLM(model, given.kv_memory, max([256, *streams]))
    names = [name for name in given.options.split(",") if name]
    temperatures = [float(each) for each in given.temperatures.split(",")]
    for count in streams:
        greedy = 0.0
        for name, temperature in itertools.product(names, temperatures):
            if name == "greedy" and temperature != temperatures[0]:
                continue
            sampling = Sampling(**{"seed": 1, "temperature": temperature, **_OPTIONS[name]})
            rounds = [
                _decode(llm, rng, count, given.context, given.tokens, sampling) for _ in range(given.rounds)
            ]
            rate, step, device = (statistics.median(each) for each in zip(*rounds, strict=True))
            if name == "greedy":
                greedy = rate
            title = name if name == "greedy" else f"{name} at T {temperature:g}"
            share = f", {rate / greedy:.1%} of greedy" if greedy else ""
            print(
                f"{count:4} streams, context {given.context}, {title}: {rate:,.0f} tok/s{share}, a step"
                f" {step * 1e3:.2f} ms, outside the device {1 - device / step:.1%}",
                flush=True,
            )
    if given.serving:
        for _ in range(2):  # the first time, kernels are compiled
            _serve(llm, rng, given.serving)
    llm.close()


def _decode(
    llm: LLM, rng: np.random.Generator, count: int, context: int, tokens: int, sampling: Sampling
) -> tuple[float, float, float]:
    """Returns tokens per second while all streams decode, the seconds of a step, and the device's part."""
    size = llm.config.vocab_size
    prompts = [rng.integers(0, size, context - tokens // 2).tolist() for _ in range(count)]
    options = sampling.changed({"max_tokens": tokens, "ignore_eos": True})
    llm.generate(
        prompts, options.changed({"max_tokens": 1}), progress=False
    )  # their pages are in the tree now
    counters = llm.engine.loop.counters
    before = counters.steps, counters.step_seconds, counters.forward_seconds
    runs = llm.generate(prompts, options, progress=False)
    steps, step_seconds, device = (
        now - then
        for now, then in zip(
            (counters.steps, counters.step_seconds, counters.forward_seconds), before, strict=True
        )
    )
    return _rate(runs), step_seconds / steps, device / steps


def _rate(runs: Sequence[Run]) -> float:
    """Returns the tokens per second between the last first token and the first last one."""
    begin = max(run.tokens[0].seconds for run in runs)
    end = min(run.tokens[-1].seconds for run in runs)
    return sum(begin < token.seconds <= end for run in runs for token in run.tokens) / (end - begin)


def _serve(llm: LLM, rng: np.random.Generator, count: int) -> None:
    size = llm.config.vocab_size
    prompts = [rng.integers(0, size, rng.integers(100, 1025)).tolist() for _ in range(count)]
    began = time.perf_counter()
    runs = llm.generate(prompts, Sampling(seed=1, max_tokens=256, ignore_eos=True), progress=False)
    seconds = time.perf_counter() - began
    made = sum(len(run.tokens) for run in runs)
    print(
        f"{count} requests of 100 to 1,024 tokens, 256 out: {made / seconds:,.0f} output tok/s,"
        f" {sum(map(len, prompts)) / seconds:,.0f} prompt tok/s, {seconds:.2f} s",
        flush=True,
    )
