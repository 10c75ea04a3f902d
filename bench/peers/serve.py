"""The peer's end of the protocol: one JSON object a line comes in, one goes out. `bench/process.py` is the
other end. An adapter answers the questions below; every number of seconds is taken inside the peer's
process, around the work alone.

    {"do": "load", "model": ..., "threads": 2}          -> {"version": ..., "details": ..., "isa": ...}
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

CONTEXT = 2048 + 64  # tokens that one branch has room for, in every engine


class Adapter:
    """An engine as the bench sees it. A question that it does not answer is shown as a dash."""

    def load(self, model: str, threads: int, **options: Any) -> dict[str, Any]:
        raise NotImplementedError

    def prefill(self, ids: list[int]) -> float:
        """Seconds from a prompt that nothing is known of to the choice of its first token."""
        raise NotImplementedError

    def decode(self, prompts: list[list[int]], steps: int) -> float:
        """Seconds for so many further tokens in each stream, all streams together. Prefill not counted."""
        raise NotImplementedError

    def first_token(self, prefix: list[int], rest: list[int], cached: bool) -> float:
        """As prefill of prefix + rest; with `cached` the prefix has been computed before, not counted."""
        raise NotImplementedError

    def one_user(self, ids: list[int], steps: int) -> None:
        """A prompt and its answer, alone: what the peak of memory is taken of."""
        self.prefill(ids)
        self.decode([ids], steps)

    def logits(self, ids: list[int], first: int, file: str) -> int:
        """Write logits [len(ids), vocabulary] of tokens at positions from `first` on, float32, to a file."""
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
    """The most memory that this process ever had resident, pages of mapped files included."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise NotImplementedError


def serve(adapter: Adapter) -> None:
    # Engines print; what they print on stdout must not get between the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        print(json.dumps(answer(adapter, json.loads(line))), file=answers, flush=True)
