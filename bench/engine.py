"""`python -m bench.engine`: the costs and gains of the loop around the forward pass, on one model.

Every comparison alternates within one run. Prints tables and a last line of JSON.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from itertools import count, islice
from statistics import median
from time import perf_counter
from typing import Any

from bench.english import english
from glassloop import LLM, Sampling
from glassloop.model.cache import Branches

# Texts whose continuation mostly repeats earlier text: an edit of code, records, quoting.
REPEATING = {
    "code edit": "def area(width, height):\n    return width * height\n\ndef volume(width, height, depth):\n"
    "    return width * height * depth\n\n# The same two functions again, without any change:\n",
    "records": '{"name": "Ann", "age": 31, "city": "Oslo"}\n{"name": "Ben", "age": 42, "city": "Bern"}\n'
    '{"name": "Cleo", "age": 27, "city": "Rome"}\n',
    "quoting": "The fox said: the night is long and the road is longer, so let us sing while we walk.\n"
    "What did the fox say? The fox said:",
}
FREE = (
    "Once upon a time there was a",
    "The most surprising thing about the sea is",
    "I have often wondered why",
)


def reuse(llm: LLM, lengths: list[int]) -> dict[str, Any]:
    """Measures the seconds for n tokens after a short prompt, with and without a KV cache."""
    prompt = llm.tokenizer.encode(english())[:16]
    found = {}
    print("tokens   kept, s   computed anew, s")
    for length in lengths:
        run, kept = _timed(lambda n=length: llm.generate(prompt, _greedy(n)))  # type: ignore[misc]
        began = perf_counter()
        tokens = list(prompt)
        for _ in range(length):
            logits = Branches(llm.transformer, len(tokens)).forward([(0, 0, tokens)])
            tokens.append(int(logits[0].argmax()))
        anew = perf_counter() - began
        assert tokens[len(prompt) :] == run.token_ids
        found[str(length)] = {"kept": round(kept, 4), "anew": round(anew, 4)}
        print(f"{length:6}{kept:10.3f}{anew:14.3f}")
    return found


def first_token(llm: LLM, rounds: int) -> dict[str, Any]:
    """Measures the time to the first token of a prompt of 1,016, with its first 1,000 cached or not."""
    ids = llm.tokenizer.encode(english())
    cold, cached = [], []
    for number in range(rounds):
        prompt = ids[1016 * number : 1016 * (number + 1)]
        cold.append(_timed(lambda prompt=prompt: llm.generate(prompt[:1000], _greedy(1)))[1])  # type: ignore[misc]
        cached.append(_timed(lambda prompt=prompt: llm.generate(prompt, _greedy(1)))[1])  # type: ignore[misc]
        cached.append(_timed(lambda prompt=prompt: llm.generate(prompt, _greedy(1)))[1])  # type: ignore[misc]
    known, unknown = median(cached[1::2]), median(cold)
    print(f"first token: cold {1000 * unknown:.1f} ms, cached {1000 * known:.1f} ms: {unknown / known:.0f}×")
    print(f"             16 new tokens after 1,000 cached: {1000 * median(cached[::2]):.1f} ms")
    return {"cold_ms": 1000 * unknown, "cached_ms": 1000 * known, "ratio": unknown / known}


def overhead(llm: LLM, streams: list[int], rounds: int) -> dict[str, Any]:
    """Measures the share of a step outside the forward pass, for requests without a common prefix."""
    loop, ids = llm.engine.loop, llm.tokenizer.encode(english())
    prompts = (ids[at : at + 16] for at in count(0, 50))
    requests = {"greedy": _greedy(64), "temperature": Sampling(seed=1, max_tokens=64, ignore_eos=True)}
    shares: dict[str, list[float]] = {}
    for _ in range(rounds):
        for together in streams:
            for name, sampling in requests.items():
                before = loop.counters.step_seconds, loop.counters.forward_seconds
                llm.generate(list(islice(prompts, together)), sampling, progress=False)
                step = loop.counters.step_seconds - before[0]
                forward = loop.counters.forward_seconds - before[1]
                shares.setdefault(f"{name}, {together}", []).append(1 - forward / step)
    for name, found in shares.items():
        print(f"outside the forward pass: {name:18}{median(found):7.1%}")
    return {name: round(median(found), 4) for name, found in shares.items()}


def drafts(plain: LLM, drafting: LLM, rounds: int) -> dict[str, Any]:
    """Measures tokens per second of one stream with n-gram drafts, relative to the same without drafts."""
    found: dict[str, list[float]] = {}
    for number in range(rounds):
        for name, prompt in [*REPEATING.items(), *(("free text", text) for text in FREE)]:
            sampling = Sampling(temperature=0, max_tokens=96, ignore_eos=True)
            if name == "free text":
                sampling = Sampling(temperature=1, seed=number, max_tokens=96, ignore_eos=True)
            first, seconds = _timed(lambda p=prompt, s=sampling: plain.generate(p, s))  # type: ignore[misc]
            second, drafted = _timed(lambda p=prompt, s=sampling: drafting.generate(p, s))  # type: ignore[misc]
            assert first.token_ids == second.token_ids, "drafting changed a token"
            found.setdefault(name, []).append(seconds / drafted)
    for name, ratios in found.items():
        print(f"drafts: {name:14}{median(ratios):6.2f} times as fast")
    return {name: round(median(ratios), 3) for name, ratios in found.items()}


def _greedy(tokens: int) -> Sampling:
    return Sampling(temperature=0, max_tokens=tokens, ignore_eos=True)


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    began = perf_counter()
    made = work()
    return made, perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser("bench.engine", description="The loop around the forward pass.")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lengths", type=int, nargs="+", default=[32, 64, 128, 256])
    options = parser.parse_args()
    with LLM(options.model, draft=False) as plain, LLM(options.model) as drafting:
        plain.generate("Warm", _greedy(8))
        drafting.generate("Warm", _greedy(8))
        print(
            json.dumps(
                {
                    "first_token": first_token(plain, options.rounds),
                    "overhead": overhead(plain, [1, 16], options.rounds),
                    "drafts": drafts(plain, drafting, options.rounds),
                    "reuse": reuse(plain, options.lengths),
                }
            )
        )


if __name__ == "__main__":
    main()
