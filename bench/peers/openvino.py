"""The adapter of OpenVINO GenAI, which reads the same GGUF. It has two implementations of attention, and
each gets the work for which it is faster: the paged one (its default, with a prefix cache) computes
prompts, the stateful one decodes. Times are from its own performance metrics.
"""

from __future__ import annotations

import os
from time import perf_counter
from typing import Any

import numpy as np
import openvino
import openvino_genai

from bench.peers.serve import Adapter, serve


class OpenVINO(Adapter):
    def load(self, model: str, threads: int, precision: str | None = None, **_: Any) -> dict[str, Any]:
        self.model = model
        self.options: dict[str, Any] = {"INFERENCE_NUM_THREADS": threads}
        if precision is not None:
            self.options["INFERENCE_PRECISION_HINT"] = precision
        self._pipelines: dict[str, Any] = {}
        hint = openvino.Core().get_property("CPU", "INFERENCE_PRECISION_HINT")
        return {
            "version": openvino_genai.__version__.split("-")[0],
            "details": f"computes in {precision or hint.get_type_name()}",
            "isa": os.environ.get("ONEDNN_MAX_CPU_ISA", "").lower(),  # it reports none itself
        }

    def prefill(self, ids: list[int]) -> float:
        return self._generate("PA", [ids], 1)[0]

    def decode(self, prompts: list[list[int]], steps: int) -> float:
        first, whole = self._generate("SDPA", prompts, steps + 1)
        return whole - first

    def first_token(self, prefix: list[int], rest: list[int], cached: bool) -> float:
        if cached:  # the cache keeps whole blocks of earlier prompts, so the prefix is found again
            self._generate("PA", [prefix], 1)
        return self._generate("PA", [prefix + rest], 1)[0]

    def one_user(self, ids: list[int], steps: int) -> None:
        self._generate("SDPA", [ids], steps)

    def _generate(self, backend: str, prompts: list[list[int]], tokens: int) -> tuple[float, float]:
        """Returns the seconds to the first token and to the last one."""
        pipeline = self._pipeline(backend)
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = tokens, True, False
        ids = openvino.Tensor(np.array(prompts, np.int64))
        began = perf_counter()
        result = pipeline.generate(ids, config)
        whole = perf_counter() - began
        return result.perf_metrics.raw_metrics.m_times_to_first_token[0] / 1e6, whole

    def _pipeline(self, backend: str) -> Any:
        if backend not in self._pipelines:
            self._pipelines[backend] = openvino_genai.LLMPipeline(
                self.model, "CPU", ATTENTION_BACKEND=backend, **self.options
            )
        return self._pipelines[backend]


if __name__ == "__main__":
    serve(OpenVINO())
