"""The adapter of Glassloop: the forward pass over branches with separate pages; decoding is greedy. `ops`
in the load request names another op set; "reference" is the baseline for accuracy.
"""

from __future__ import annotations

import os
from time import perf_counter
from typing import Any

from bench.peers.serve import CONTEXT, Adapter, serve


class Ours(Adapter):
    def load(self, model: str, threads: int, ops: str | None = None, **_: Any) -> dict[str, Any]:
        os.environ["GLASSLOOP_THREADS"] = str(threads)
        from importlib.metadata import version
        from pathlib import Path

        from glassloop.model.loader import ModelFiles
        from glassloop.ops import choose_ops

        chosen = choose_ops(ops)
        began = perf_counter()
        self.model = ModelFiles(Path(model)).transformer(chosen)
        loaded = perf_counter() - began
        self._caches: dict[int, Any] = {}
        return {
            "version": version("glassloop"),
            "details": f"{chosen.name} ops",
            "load_seconds": loaded,
            "isa": getattr(chosen, "instructions", None),
        }

    def prefill(self, ids: list[int]) -> float:
        began = perf_counter()
        self._compute([ids], 0)
        return perf_counter() - began

    def decode(self, prompts: list[list[int]], steps: int) -> float:
        known = len(prompts[0])
        chosen = self._compute(prompts, 0)
        began = perf_counter()
        for step in range(steps):
            chosen = self._compute([[token] for token in chosen], known + step)
        return perf_counter() - began

    def first_token(self, prefix: list[int], rest: list[int], cached: bool) -> float:
        if not cached:
            return self.prefill(prefix + rest)
        self._compute([prefix], 0)
        began = perf_counter()
        self._compute([rest], len(prefix))
        return perf_counter() - began

    def logits(self, ids: list[int], first: int, file: str) -> int:
        self._cache(1).forward([(0, first, ids)], every_logit=True).tofile(file)
        return len(ids)

    def _compute(self, streams: list[list[int]], first: int) -> list[int]:
        """Computes tokens at positions from `first` on; returns the most likely next token per stream."""
        cache, rows = self._cache(len(streams)), 512
        length = len(streams[0])
        for start in range(0, length, rows):
            work = [(branch, first + start, ids[start : start + rows]) for branch, ids in enumerate(streams)]
            logits = cache.forward(work)
        return logits.argmax(axis=1).tolist()

    def _cache(self, streams: int) -> Any:
        from glassloop.model.cache import Branches

        if streams not in self._caches:
            self._caches[streams] = Branches(self.model, CONTEXT if streams == 1 else 256, streams)
        return self._caches[streams]


if __name__ == "__main__":
    serve(Ours())
