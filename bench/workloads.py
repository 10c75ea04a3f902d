"""The workloads: the request to an adapter for each, and how its seconds become the number that is shown.
All engines get the same token ids, and no ids are used twice, so that no cache helps unintentionally.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

PREFIX, REST = 1000, 16  # tokens of the cached prefix of a prompt, and of the rest
PROMPT = 16  # tokens before decoding
USER_PROMPT, USER_ANSWER = 512, 128  # the session for which memory is measured

Ids = Callable[[int], list[int]]  # returns this many unused token ids


@dataclass(frozen=True)
class Workload:
    name: str
    title: str
    unit: str  # tokens/s, ms or MB
    question: Callable[[Ids], dict[str, Any]] | None = None  # None: not a request to a loaded engine
    tokens: int = 0  # computed in the measured time

    @property
    def more_is_better(self) -> bool:
        return self.unit == "tokens/s"

    def value(self, seconds: float) -> float:
        return self.tokens / seconds if self.more_is_better else seconds * 1000


def _prefill(tokens: int) -> Workload:
    return Workload(
        f"prefill-{tokens}",
        f"prefill of {tokens}",
        "tokens/s",
        lambda ids: {"do": "prefill", "ids": ids(tokens)},
        tokens,
    )


def _decode(streams: int, steps: int) -> Workload:
    return Workload(
        f"decode-{streams}",
        f"decode, {streams} streams" if streams > 1 else "decode alone",
        "tokens/s",
        lambda ids: {"do": "decode", "prompts": [ids(PROMPT) for _ in range(streams)], "steps": steps},
        streams * steps,
    )


def _first_token(name: str, title: str, cached: bool) -> Workload:
    return Workload(
        name,
        title,
        "ms",
        lambda ids: {"do": "first_token", "prefix": ids(PREFIX), "rest": ids(REST), "cached": cached},
    )


WORKLOADS = {
    workload.name: workload
    for workload in (
        _prefill(128),
        _prefill(512),
        _prefill(2048),
        _decode(1, 128),
        _decode(8, 48),
        _decode(16, 48),
        _first_token("first-cold", "first token, none cached", cached=False),
        _first_token("first-cached", f"first token, {PREFIX} cached", cached=True),
        Workload("cold-start", "cold start to first token", "ms"),
        Workload("memory", "peak memory", "MB"),
    )
}
ACCURACY = "accuracy"  # selected by the same option, but reported in a table of its own
