"""The adapter of transformers: the same GGUF with its weights dequantized to float32, plain forward calls
with a KV cache; decoding is greedy.
"""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import transformers

from bench.peers.serve import Adapter, serve


class Transformers(Adapter):
    def load(self, model: str, threads: int, **_: Any) -> dict[str, Any]:
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        path = Path(model)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.float32
        ).eval()
        return {
            "version": transformers.__version__,
            "details": f"torch {torch.__version__}, float32",
            "isa": torch.backends.cpu.get_cpu_capability().lower(),
            "bytes_per_token": sum(weight.numel() * 4 for weight in self.model.parameters()),
        }

    def prefill(self, ids: list[int]) -> float:
        began = perf_counter()
        self._compute([ids])
        return perf_counter() - began

    def decode(self, prompts: list[list[int]], steps: int) -> float:
        chosen, cache = self._compute(prompts)
        began = perf_counter()
        for _ in range(steps):
            chosen, cache = self._compute([[token] for token in chosen], cache)
        return perf_counter() - began

    def first_token(self, prefix: list[int], rest: list[int], cached: bool) -> float:
        if not cached:
            return self.prefill(prefix + rest)
        _, cache = self._compute([prefix])
        began = perf_counter()
        self._compute([rest], cache)
        return perf_counter() - began

    def _compute(self, streams: list[list[int]], cache: Any = None) -> tuple[list[int], Any]:
        out = self.model(
            torch.tensor(streams), past_key_values=cache, use_cache=True, logits_to_keep=1
        )  # logits: [streams, 1, vocabulary]
        return out.logits[:, -1].argmax(dim=-1).tolist(), out.past_key_values


if __name__ == "__main__":
    serve(Transformers())
