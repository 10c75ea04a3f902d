"""The adapter of llama.cpp, with the low-level batch API of llama-cpp-python: the input is a batch of
tokens with positions and sequences, the output is logits; decoding is greedy. Several streams have their
own context, with one part of the cache per stream, which is the fastest way in llama.cpp.
"""

from __future__ import annotations

import ctypes
from time import perf_counter
from typing import Any

import llama_cpp as llama
import numpy as np

from bench.peers.serve import CONTEXT, Adapter, serve

_BATCH = 2048  # tokens per call; llama.cpp computes them 512 at a time


class LlamaCpp(Adapter):
    def load(self, model: str, threads: int, extra_buffers: bool = True, **_: Any) -> dict[str, Any]:
        said: list[str] = []

        @llama.llama_log_callback
        def listen(_level: int, text: bytes, _data: Any) -> None:
            said.append(text.decode(errors="replace"))

        self._listen = listen  # C keeps a pointer to it
        llama.llama_log_set(listen, ctypes.c_void_p(0))
        llama.llama_backend_init()
        self.threads = threads
        wanted = llama.llama_model_default_params()
        wanted.use_extra_bufts = extra_buffers  # weights repacked for AMX or for wide registers
        began = perf_counter()
        self.model = llama.llama_model_load_from_file(model.encode(), wanted)
        loaded = perf_counter() - began
        if not self.model:
            raise RuntimeError("".join(said[-3:]).strip() or "the model does not load")
        self.vocabulary = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self.model))
        self.batch = llama.llama_batch_init(_BATCH, 0, 1)
        self._contexts: dict[int, Any] = {}
        found = _instructions()
        buffers = [line.split()[1] for line in said if "model buffer size" in line]
        return {
            "version": llama.__version__,
            "load_seconds": loaded,
            "details": f"compiled for {', '.join(found)}; weights in {' + '.join(buffers) or 'CPU'}",
            "isa": next(n for n in ("AVX512", "AVX_VNNI", "AVX2", "NEON", "portable") if n in found).lower(),
        }

    def prefill(self, ids: list[int]) -> float:
        context = self._cleared(1)
        began = perf_counter()
        self._compute(context, [ids], 0)
        return perf_counter() - began

    def decode(self, prompts: list[list[int]], steps: int) -> float:
        context = self._cleared(len(prompts))
        known = len(prompts[0])
        chosen = self._compute(context, prompts, 0)
        began = perf_counter()
        for step in range(steps):
            chosen = self._compute(context, [[token] for token in chosen], known + step)
        return perf_counter() - began

    def first_token(self, prefix: list[int], rest: list[int], cached: bool) -> float:
        if not cached:
            return self.prefill(prefix + rest)
        context = self._cleared(1)
        self._compute(context, [prefix], 0)
        began = perf_counter()
        self._compute(context, [rest], len(prefix))
        return perf_counter() - began

    def logits(self, ids: list[int], first: int, file: str) -> int:
        context = self._context(1) if first else self._cleared(1)
        self._decode(context, [ids], first, every_logit=True)
        self._logits(context, len(ids)).tofile(file)
        return len(ids)

    def _compute(self, context: Any, streams: list[list[int]], first: int) -> list[int]:
        length, at_once = len(streams[0]), _BATCH // len(streams)
        for start in range(0, length, at_once):
            self._decode(context, [ids[start : start + at_once] for ids in streams], first + start)
        return self._logits(context, len(streams)).argmax(axis=1).tolist()

    def _decode(self, context: Any, streams: list[list[int]], first: int, every_logit: bool = False) -> None:
        batch, row = self.batch, 0
        for sequence, ids in enumerate(streams):
            for index, token in enumerate(ids):
                batch.token[row] = token
                batch.pos[row] = first + index
                batch.n_seq_id[row] = 1
                batch.seq_id[row][0] = sequence
                batch.logits[row] = every_logit or index == len(ids) - 1
                row += 1
        batch.n_tokens = row
        if code := llama.llama_decode(context, batch):
            raise RuntimeError(f"llama_decode answers {code}")

    def _logits(self, context: Any, rows: int) -> np.ndarray:
        # Logits of the rows that want them, in the order of the batch; waits until they are computed.
        return np.ctypeslib.as_array(llama.llama_get_logits(context), (rows, self.vocabulary))

    def _cleared(self, streams: int) -> Any:
        context = self._context(streams)
        llama.llama_memory_clear(llama.llama_get_memory(context), False)
        return context

    def _context(self, streams: int) -> Any:
        if streams not in self._contexts:
            wanted = llama.llama_context_default_params()
            wanted.n_ctx = CONTEXT if streams == 1 else 256 * streams
            wanted.n_seq_max = streams
            wanted.n_threads = wanted.n_threads_batch = self.threads
            if hasattr(wanted, "n_outputs_max_per_seq"):
                wanted.n_outputs_max_per_seq = 128  # accuracy needs the logits of 128 rows at a time
            context = llama.llama_init_from_model(self.model, wanted)
            if not context:
                raise RuntimeError(f"no context for {streams} streams")
            self._contexts[streams] = context
        return self._contexts[streams]


def _instructions() -> list[str]:
    """Returns the instruction sets that the library was compiled for, only the widest few."""
    parts = llama.llama_print_system_info().decode().split("|")
    have = [part.split("=")[0].split(":")[-1].strip() for part in parts if part.strip().endswith("= 1")]
    names = ("AMX_INT8", "AVX512_BF16", "AVX512_VNNI", "AVX512", "AVX_VNNI", "AVX2", "NEON")
    return [name for name in names if name in have][:4] or ["portable"]


if __name__ == "__main__":
    serve(LlamaCpp())
