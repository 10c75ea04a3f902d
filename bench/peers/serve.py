"""The peer's side of the protocol: each request and each reply is one JSON object on a line.
`bench/process.py` is the other side. An adapter implements the requests below; all times are measured
inside the peer's process, around the work only.

    {"do": "load", "model": ..., "threads": 2}          -> {"version", "details", "isa", …}
    {"do": "prefill", "ids": [...]}                     -> {"seconds": ...}
    {"do": "decode", "prompts": [[...], ...], "steps"}  -> {"seconds": ...}
    {"do": "first_token", "prefix", "rest", "cached"}   -> {"seconds": ...}
    {"do": "one_user", "ids": [...], "steps": ...}      -> {"peak_bytes": ...}
    {"do": "logits", "ids", "first", "file"}            -> {"rows": ...}
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

CONTEXT = 2048 + 64  # the context length, in every engine


class Adapter:
    """An engine in the benchmark. A request that it does not implement is shown as a dash."""

    def load(self, model: str, threads: int, **options: Any) -> dict[str, Any]:
        raise NotImplementedError

    def prefill(self, ids: list[int]) -> float:
        """Returns the seconds from an uncached prompt to the choice of its first token."""
        raise NotImplementedError

    def decode(self, prompts: list[list[int]], steps: int) -> float:
        """Returns the seconds for `steps` more tokens in each of the streams, prefill not counted."""
        raise NotImplementedError

    def first_token(self, prefix: list[int], rest: list[int], cached: bool) -> float:
        """Like prefill of prefix + rest; with `cached`, the prefix is computed beforehand and not counted."""
        raise NotImplementedError

    def one_user(self, ids: list[int], steps: int) -> None:
        """Computes one prompt and its answer, for the measurement of peak memory."""
        self.prefill(ids)
        self.decode([ids], steps)

    def logits(self, ids: list[int], first: int, file: str) -> int:
        """Writes float32 logits, [len(ids), vocabulary], of tokens at positions from `first` on."""
        raise NotImplementedError


def answer(adapter: Adapter, question: dict[str, Any]) -> dict[str, Any]:
    what = question.pop("do")
    try:
        if what == "load":
            return adapter.load(**question)
        if what in ("prefill", "decode", "first_token"):
            return {"seconds": getattr(adapter, what)(**question)}
        if what == "one_user":
            adapter.one_user(**question)
            return {"peak_bytes": peak_bytes()}
        if what == "logits":
            return {"rows": adapter.logits(**question)}
        return {"error": f"do is {what!r}, which no adapter answers"}
    except NotImplementedError:
        return {"absent": True}
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        return {"error": f"{type(error).__name__}: {lines[-1]}"[:300]}


def peak_bytes() -> int:
    """Returns the peak resident memory of this process, pages of mapped files included."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise NotImplementedError


def serve(adapter: Adapter) -> None:
    # Engines print to stdout; their output must not mix with the replies.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        print(json.dumps(answer(adapter, json.loads(line))), file=answers, flush=True)
