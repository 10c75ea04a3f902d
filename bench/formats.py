"""`python -m bench.formats`: prefill, decode, eight streams, time to load and memory for each type of GGUF,
against llama.cpp on the same file: a model of the shape of Llama 3.2 1B with random weights, and the default
model, quantized by llama.cpp.

llama.cpp runs in an interpreter that has `llama-cpp-python` (`--llama-python`); without one, only our own
figures are measured. The engines take turns within a round, and ratios are those of rounds. The last line is
JSON.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench.catalog import ROOT
from bench.process import environment
from bench.quantized import Peer, widen
from glassloop.model.loader import ModelFiles
from glassloop.model.registry import DEFAULT_MODEL, fetch
from glassloop.ops.native.library import wanted_threads
from glassloop.ops.native.packer import packed_bytes
from glassloop.ops.quant import FORMATS
from glassloop.ops.tensor import Tensor
from glassloop.train.gguf_file import write_tensors

# GGUF's type of the matrices, and what llama.cpp's quantizer calls it.
TYPES = {
    "Q2_K": "Q2_K",
    "Q3_K": "Q3_K_M",
    "IQ4_XS": "IQ4_XS",
    "IQ3_S": "IQ3_S",
    "IQ2_XS": "IQ2_XS",
    "MXFP4": "MXFP4_MOE",
    "Q4_K": "Q4_K_M",
    "Q4_0": "Q4_0",
    "Q8_0": "Q8_0",
}
_ASKED = tuple(TYPES)[:6]
_PROMPT, _STEPS, _FEW_STEPS, _STREAMS = 256, 24, 12, 8
_VOCABULARY = 32_000


def write_model(path: Path, name: str, layers: int, dim: int, ffn: int, heads: int, kv_heads: int) -> None:
    """Writes a llama whose matrices are random bytes of a type. Small bytes, so that no scale is infinite:
    what is computed means nothing, and takes as long as if it did."""
    rng = np.random.default_rng(0)
    head = dim // heads

    def matrix(tensor: str, out: int, into: int, kind: str = name) -> Tensor:
        format = FORMATS[kind]
        return Tensor(tensor, (out, into), format, rng.integers(0, 40, format.size_of(out * into), np.uint8))

    def vector(tensor: str) -> Tensor:
        return Tensor.of(tensor, np.ones(dim, np.float32))

    tensors = [matrix("token_embd.weight", _VOCABULARY, dim, "Q4_K"), vector("output_norm.weight")]
    tensors.append(matrix("output.weight", _VOCABULARY, dim, "Q6_K"))
    for layer in range(layers):
        at = f"blk.{layer}."
        tensors += [vector(at + "attn_norm.weight"), vector(at + "ffn_norm.weight")]
        tensors += [matrix(at + "attn_q.weight", dim, dim), matrix(at + "attn_output.weight", dim, dim)]
        tensors += [matrix(f"{at}attn_{kind}.weight", kv_heads * head, dim) for kind in "kv"]
        tensors += [matrix(f"{at}ffn_{kind}.weight", ffn, dim) for kind in ("gate", "up")]
        tensors.append(matrix(at + "ffn_down.weight", dim, ffn))
    tokens = [chr(0x100 + byte) for byte in range(256)] + [
        f"t{number}" for number in range(_VOCABULARY - 256)
    ]
    metadata: dict[str, Any] = {
        "general.architecture": "llama",
        "llama.block_count": layers,
        "llama.embedding_length": dim,
        "llama.feed_forward_length": ffn,
        "llama.context_length": 4096,
        "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": kv_heads,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "llama.rope.dimension_count": head,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * _VOCABULARY,
        "tokenizer.ggml.merges": ["t 1"],
        "tokenizer.ggml.eos_token_id": 0,
    }
    write_tensors(path, metadata, tensors)


class Engine:
    """An adapter of `bench/peers` in a process of its own, with a model loaded."""

    def __init__(self, python: str, module: str, model: Path, threads: int) -> None:
        self._child = subprocess.Popen(
            [python, "-m", f"bench.peers.{module}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment(threads),
            cwd=ROOT,
            text=True,
        )
        loading = self._ask(do="load", model=str(model), threads=threads)["load_seconds"]
        # A mapped file is only read when it is used first.
        self.load = loading + self._ask(do="prefill", ids=[300])["seconds"]

    def _ask(self, **question: Any) -> dict[str, Any]:
        assert self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.write(json.dumps(question) + "\n")
        self._child.stdin.flush()
        answer: dict[str, Any] = json.loads(self._child.stdout.readline())
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def measure(self, ids: list[int]) -> dict[str, float]:
        """Returns the tokens per second of a prompt, of one stream and of eight."""
        one, many = [ids[:16]], [ids[number : number + 16] for number in range(_STREAMS)]
        prefill = self._ask(do="prefill", ids=ids)["seconds"]
        decode = self._ask(do="decode", prompts=one, steps=_STEPS)["seconds"]
        streams = self._ask(do="decode", prompts=many, steps=_FEW_STEPS)["seconds"]
        rates = len(ids) / prefill, _STEPS / decode, _STREAMS * _FEW_STEPS / streams
        return dict(zip(("prefill", "decode", "streams_8"), rates, strict=True))

    def close(self) -> None:
        self._child.kill()
        self._child.wait()


def bits(path: Path) -> dict[str, float]:
    """Returns the bits of a weight of the layers' matrices, in the file and in memory."""
    matrices = [
        tensor
        for name, tensor in ModelFiles(path).weights.items()
        if name.startswith("layers.") and len(tensor.shape) == 2
    ]
    count = sum(tensor.size for tensor in matrices)
    memory = sum(packed_bytes(tensor.shape, tensor.format) for tensor in matrices)
    stored = sum(tensor.format.size_of(tensor.size) for tensor in matrices)
    return {"file_bits": round(8 * stored / count, 2), "memory_bits": round(8 * memory / count, 2)}


def compare(path: Path, python: str | None, rounds: int) -> dict[str, Any]:
    threads = wanted_threads()
    ours = Engine(sys.executable, "ours", path, threads)
    theirs = Engine(python, "llama_cpp", path, threads) if python else None
    own: list[dict[str, float]] = []
    other: list[dict[str, float]] = []
    rng = np.random.default_rng(1)
    for _ in range(rounds):
        ids = rng.integers(300, _VOCABULARY, _PROMPT).tolist()
        own.append(ours.measure(ids))
        if theirs:
            other.append(theirs.measure(ids))
    row: dict[str, Any] = {**bits(path), "load": round(ours.load, 2)}
    ours.close()
    if theirs:
        row["load_llama"] = round(theirs.load, 2)
        theirs.close()
    for what in own[0]:
        row[what] = round(median(each[what] for each in own), 1)
        if other:
            ratios = sorted(mine[what] / each[what] for mine, each in zip(own, other, strict=True))
            row[f"{what}_llama"] = round(median(each[what] for each in other), 1)
            row[f"{what}_ratio"] = [round(ratio, 2) for ratio in (ratios[0], median(ratios), ratios[-1])]
    return row


def models(options: argparse.Namespace, folder: Path) -> Iterator[tuple[str, str, Path]]:
    """Yields the model, the type and the file of each comparison."""
    for name in options.types if "1b" in options.models else ():
        path = folder / f"{name}.gguf"
        write_model(path, name, options.layers, options.dim, options.ffn, options.heads, options.kv_heads)
        yield "1b", name, path
        path.unlink()
    if "default" in options.models and options.llama_python:
        wide, peer = folder / "wide.gguf", Peer(options.llama_python)
        widths = widen(fetch(DEFAULT_MODEL), wide)
        for name in options.types:
            path = folder / f"{name}.gguf"
            problem = peer.ask(quantize=str(wide), to=str(path), type=TYPES[name], weights=widths)
            if problem:
                raise RuntimeError(problem)
            yield "default", name, path
            path.unlink()
        peer.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.formats", description=__doc__)
    parser.add_argument("--types", nargs="+", choices=list(TYPES), default=list(_ASKED))
    parser.add_argument("--models", nargs="+", choices=["1b", "default"], default=["1b", "default"])
    parser.add_argument("--llama-python", help="an interpreter with the package llama-cpp-python")
    parser.add_argument("--rounds", type=int, default=3)
    # The shape of Llama 3.2 1B.
    for name, value in (("layers", 16), ("dim", 2048), ("ffn", 8192), ("heads", 32), ("kv-heads", 8)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for model, name, path in models(options, Path(folder)):
            rows.append({"model": model, "type": name, **compare(path, options.llama_python, options.rounds)})
            print(*[f"{key} {value}" for key, value in rows[-1].items()], sep="  ", file=sys.stderr)
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
