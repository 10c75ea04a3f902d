"""llama.cpp's quantizer and its log-probabilities, for `bench/quantized.py`. Each line of standard input is a
JSON object, and so is each answer:

    {"quantize": PATH, "to": PATH, "type": NAME, "weights": …}    every matrix of a GGUF file in one type
    {"score": PATH, "chunks": [[ids], …], "to": PATH, …}          writes an .npz file

The file has for each row of the chunks, one after the other, the negative log-probability of the next token,
the likeliest token, and by how much it leads.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

import llama_cpp
import numpy as np

_EMBEDDING_TYPE = 8  # Q8_0: the quantizers of one and two bits are not meant for embeddings


def quantize(source: str, target: str, name: str, weights: dict[str, int], only: dict[str, int]) -> None:
    """Quantizes with an importance matrix of ones: the types of one and two bits need some matrix. The
    matrices whose names match a pattern of `only` get the type with that number."""
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{name}")
    kinds = [llama_cpp.llama_model_tensor_override(pattern.encode(), kind) for pattern, kind in only.items()]
    kinds.append(llama_cpp.llama_model_tensor_override(None, 0))
    overrides = (llama_cpp.llama_model_tensor_override * len(kinds))(*kinds)
    params.tt_overrides = ctypes.cast(overrides, ctypes.POINTER(llama_cpp.llama_model_tensor_override))
    params.pure = True
    params.output_tensor_type = params.token_embedding_type = _EMBEDDING_TYPE
    rows = {name: (ctypes.c_float * width)(*[1.0] * width) for name, width in weights.items()}
    entries = [llama_cpp.llama_model_imatrix_data(name.encode(), row, len(row)) for name, row in rows.items()]
    entries.append(llama_cpp.llama_model_imatrix_data(None, None, 0))
    table = (llama_cpp.llama_model_imatrix_data * len(entries))(*entries)
    params.imatrix = ctypes.cast(table, ctypes.POINTER(llama_cpp.llama_model_imatrix_data))
    if llama_cpp.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params)):
        raise RuntimeError(f"llama.cpp cannot quantize to {name}")


def score(path: str, chunks: list[list[int]], threads: int) -> dict[str, Any]:
    size = max(map(len, chunks))
    llm = llama_cpp.Llama(
        path,
        n_ctx=size,
        n_batch=size,
        n_threads=threads,
        n_threads_batch=threads,
        logits_all=True,
        verbose=False,
    )
    losses, likeliest, leads = [], [], []
    for ids in chunks:
        llm.reset()
        llm.eval(ids)
        logits = np.array(llm.scores[: len(ids) - 1], np.float64)
        highest = logits.max(axis=1, keepdims=True)
        log_sum = highest[:, 0] + np.log(np.exp(logits - highest).sum(axis=1))
        losses.append(log_sum - logits[np.arange(len(ids) - 1), ids[1:]])
        best = np.partition(logits, -2, axis=1)[:, -2:]
        likeliest.append(logits.argmax(axis=1))
        leads.append(best[:, 1] - best[:, 0])
    return {
        "losses": np.concatenate(losses),
        "likeliest": np.concatenate(likeliest),
        "leads": np.concatenate(leads),
    }


def main() -> None:
    silent = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(silent, None)
    for line in sys.stdin:
        job = json.loads(line)
        try:
            if "quantize" in job:
                quantize(job["quantize"], job["to"], job["type"], job["weights"], job.get("only", {}))
            else:
                np.savez(job["to"], **score(job["score"], job["chunks"], job["threads"]))
            print(json.dumps({"done": True, "version": llama_cpp.__version__}), flush=True)
        except RuntimeError as error:
            print(json.dumps({"error": str(error)}), flush=True)


if __name__ == "__main__":
    main()
