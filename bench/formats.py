"""`python -m bench.formats`: prefill and decode of a model of a given shape with random weights, once for
each type of GGUF, against llama.cpp on the same file.

llama.cpp runs in an interpreter that has the package `xllamacpp` (`--llama-python`); without one, only our
own times are measured. Rounds are taken in turn. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from glassloop.model.cache import Branches
from glassloop.model.loader import ModelFiles
from glassloop.ops.native.library import wanted_threads
from glassloop.ops.native.ops import NativeOps
from glassloop.ops.quant import FORMATS
from glassloop.ops.tensor import Tensor
from glassloop.train.gguf_file import write_tensors

TYPES = ("Q4_K", "Q2_K", "Q3_K", "IQ4_XS", "IQ3_S", "IQ2_XS", "MXFP4")
PROMPT, STEPS = 512, 48
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


class Ours:
    def __init__(self, path: Path) -> None:
        began = perf_counter()
        self.model = ModelFiles(path).transformer(NativeOps())
        self.load = perf_counter() - began

    def measure(self) -> tuple[float, float, float]:
        """Returns the tokens per second of a prompt, of one stream and of eight."""
        ids = np.random.default_rng(1).integers(300, _VOCABULARY, PROMPT).tolist()
        cache = Branches(self.model, PROMPT + STEPS + 1)
        began = perf_counter()
        cache.forward([(0, 0, ids)])
        prefill = PROMPT / (perf_counter() - began)
        rates = []
        for streams in (1, 8):
            cache = Branches(self.model, 16 + STEPS + 1, branches=streams)
            cache.forward([(stream, 0, ids[:16]) for stream in range(streams)])
            began = perf_counter()
            for step in range(STEPS):
                cache.forward([(stream, 16 + step, [ids[step]]) for stream in range(streams)])
            rates.append(STEPS * streams / (perf_counter() - began))
        return prefill, rates[0], rates[1]


_LLAMA = """
import json, random, sys
import xllamacpp
path, threads, prompt, steps = sys.argv[1], *map(int, sys.argv[2:5])
params = xllamacpp.CommonParams()
params.model.path = path
params.n_ctx = 1024
params.n_parallel = 1
params.n_gpu_layers = 0
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
params.verbosity = -1
params.cache_prompt = False
server = xllamacpp.Server(params)
print("ready", flush=True)
random.seed(1)
for _ in sys.stdin:
    ids = [random.randrange(300, 32000) for _ in range(prompt)]
    ask = {"prompt": ids, "n_predict": 1, "ignore_eos": True, "temperature": 0, "cache_prompt": False}
    first = server.handle_completions(ask)
    second = server.handle_completions(ask | {"prompt": ids[:16], "n_predict": steps})
    read = [json.loads(each) if isinstance(each, (str, bytes)) else each for each in (first, second)]
    prefill, decode = read[0]["timings"]["prompt_per_second"], read[1]["timings"]["predicted_per_second"]
    print(json.dumps([prefill, decode]), flush=True)
"""


class Llama:
    def __init__(self, python: str, path: Path, threads: int) -> None:
        command = [python, "-c", _LLAMA, str(path), str(threads), str(PROMPT), str(STEPS)]
        self.child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._answer("ready")

    def _answer(self, beginning: str) -> str:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            if line.startswith(beginning):
                return line
        raise RuntimeError("llama.cpp has ended")

    def measure(self) -> tuple[float, float]:
        assert self.child.stdin is not None
        self.child.stdin.write("measure\n")
        self.child.stdin.flush()
        prefill, decode = json.loads(self._answer("["))
        return prefill, decode

    def close(self) -> None:
        self.child.kill()
        self.child.wait()


def compare(name: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    path = folder / f"{name}.gguf"
    write_model(path, name, options.layers, options.dim, options.ffn, options.heads, options.kv_heads)
    ours, theirs = Ours(path), None
    if options.llama_python:
        theirs = Llama(options.llama_python, path, wanted_threads())
    own: list[tuple[float, float, float]] = []
    other: list[tuple[float, float]] = []
    for _ in range(options.rounds):
        own.append(ours.measure())
        if theirs:
            other.append(theirs.measure())
    found: dict[str, Any] = {"type": name, "load": round(ours.load, 2)}
    for place, what in enumerate(("prefill", "decode", "decode_8")):
        found[what] = round(median(each[place] for each in own), 1)
    if theirs:
        theirs.close()
        for place, what in enumerate(("prefill", "decode")):
            ratios = sorted(mine[place] / each[place] for mine, each in zip(own, other, strict=True))
            found[f"{what}_llama"] = round(median(each[place] for each in other), 1)
            found[f"{what}_ratio"] = [round(ratio, 2) for ratio in (ratios[0], median(ratios), ratios[-1])]
    path.unlink()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.formats", description=__doc__)
    parser.add_argument("--types", nargs="+", choices=list(FORMATS), default=list(TYPES))
    parser.add_argument("--llama-python", help="an interpreter with the package xllamacpp")
    parser.add_argument("--rounds", type=int, default=5)
    # The shape of Llama 3.2 1B.
    for name, value in (("layers", 16), ("dim", 2048), ("ffn", 8192), ("heads", 32), ("kv-heads", 8)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.types:
            rows.append(compare(name, options, Path(folder)))
            print(*[f"{key} {value}" for key, value in rows[-1].items()], sep="  ", file=sys.stderr)
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
