"""`python -m bench.quantized`: files that llama.cpp's quantizer makes of the default model, one for each
type, read by Glassloop and by llama.cpp. It compares the perplexity over some thousand tokens of English, and
the likeliest token wherever llama.cpp's leads clearly.

The rows of SmolLM2 135M have 576 values, which blocks of 256 do not divide, so the quantizer would take other
types. The model is therefore made wider first: zeros are added until all rows have 768 values, and the norms
are scaled, which changes no result. Types below four bits ruin so small a model, so that no token leads
clearly; there only `ffn_down` gets the type, and all else Q8_0. llama.cpp runs in an interpreter with
`llama-cpp-python` (`--llama-python`). The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np

from bench.english import english, fingerprint
from glassloop.model.cache import Branches
from glassloop.model.gguf import GGUFFile
from glassloop.model.loader import ModelFiles
from glassloop.model.registry import DEFAULT_MODEL, fetch
from glassloop.ops.native.library import wanted_threads
from glassloop.ops.native.ops import NativeOps
from glassloop.ops.quant import F16, FORMATS
from glassloop.ops.tensor import Tensor
from glassloop.train.gguf_file import write_tensors

TYPES = (
    *("F16", "Q8_0", "Q6_K", "Q5_K_M", "Q5_1", "Q5_0", "Q4_K_M", "Q4_1", "Q4_0", "IQ4_NL", "IQ4_XS"),
    *("MXFP4_MOE", "NVFP4", "Q3_K_M", "IQ3_S", "IQ3_XXS", "Q2_K", "IQ2_S", "IQ2_XS", "IQ2_XXS"),
    *("IQ1_M", "IQ1_S", "TQ2_0", "TQ1_0", "Q2_0", "Q1_0"),
)
_SMALL = {  # below four bits, with GGUF's numbers
    name: FORMATS[name.removesuffix("_M") if name.startswith("Q3") else name].gguf_id
    for name in TYPES[TYPES.index("Q3_K_M") :]
}
# The likeliest token must be the same where it leads by this much in logits, for files that work; both
# engines round activations to 8 bits, each in its own way.
CLEAR = 1.0
_HEADS, _KV_HEADS, _DIM = 12, 4, 768
_PEER = Path(__file__).parent / "peers" / "llama_cpp_quantize.py"


def widen(source: Path, target: Path) -> dict[str, int]:
    """Writes a llama with zeros added to its width, in F16. Returns the width of the rows of each matrix."""
    file = GGUFFile(source)
    dim = int(file.metadata["llama.embedding_length"])
    head = dim // int(file.metadata["llama.attention.head_count"])
    wider = {dim: _DIM, int(file.metadata["llama.attention.head_count_kv"]) * head: _KV_HEADS * head}
    tensors = []
    for name, tensor in file.tensors.items():
        values = tensor.float32()
        sizes = [
            size if name.startswith("token_embd") and axis == 0 else wider.get(size, size)
            for axis, size in enumerate(tensor.shape)
        ]
        padded = np.pad(values, [(0, new - old) for new, old in zip(sizes, tensor.shape, strict=True)])
        if "_norm" in name:  # the mean of the squares is over more numbers now
            padded *= np.float32(sqrt(dim / _DIM))
        widened = Tensor.of(name, padded)
        tensors.append(widened if padded.ndim == 1 else widened.stored_as(F16))
    eps = "llama.attention.layer_norm_rms_epsilon"
    metadata = dict(file.metadata) | {
        "llama.embedding_length": _DIM,
        "llama.attention.head_count": _HEADS,
        "llama.attention.head_count_kv": _KV_HEADS,
        eps: float(file.metadata[eps]) * dim / _DIM,
    }
    write_tensors(target, metadata, tensors)
    return {tensor.name: tensor.shape[1] for tensor in tensors if len(tensor.shape) == 2}


class Peer:
    """llama.cpp in a process of its own."""

    def __init__(self, python: str) -> None:
        self._child = subprocess.Popen(
            [python, "-P", str(_PEER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, **job: Any) -> str:
        """Returns the reason if llama.cpp cannot do the job, else an empty text."""
        assert self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.write(json.dumps(job) + "\n")
        self._child.stdin.flush()
        return str(json.loads(self._child.stdout.readline()).get("error", ""))

    def close(self) -> None:
        self._child.kill()
        self._child.wait()


def score(path: Path, chunks: list[list[int]]) -> dict[str, Any]:
    """Returns what the peer's `score` does, computed by the native op set."""
    model = ModelFiles(path).transformer(NativeOps())
    losses, likeliest = [], []
    for ids in chunks:
        logits = Branches(model, len(ids)).forward([(0, 0, ids)], every_logit=True)[:-1].astype(np.float64)
        highest = logits.max(axis=1, keepdims=True)
        log_sum = highest[:, 0] + np.log(np.exp(logits - highest).sum(axis=1))
        losses.append(log_sum - logits[np.arange(len(ids) - 1), ids[1:]])
        likeliest.append(logits.argmax(axis=1))
    return {"losses": np.concatenate(losses), "likeliest": np.concatenate(likeliest)}


def compare(name: str, path: Path, chunks: list[list[int]], peer: Peer) -> dict[str, Any]:
    scores = path.with_suffix(".npz")
    problem = peer.ask(score=str(path), chunks=chunks, to=str(scores), threads=wanted_threads())
    if problem:
        return {"type": name, "problem": problem}
    ours, theirs = score(path, chunks), np.load(scores)
    difference = ours["losses"] - theirs["losses"]
    other = ours["likeliest"] != theirs["likeliest"]
    clear = theirs["leads"] > CLEAR
    row = {
        "type": name,
        "perplexity": round(float(np.exp(ours["losses"].mean())), 4),
        "perplexity_llama": round(float(np.exp(theirs["losses"].mean())), 4),
        # Of the mean loss: how far the two are apart, and the standard error of the loss itself.
        "difference": round(float(difference.mean()), 5),
        "difference_error": round(float(difference.std() / sqrt(len(difference))), 5),
        "error": round(float(theirs["losses"].std() / sqrt(len(difference))), 5),
        "rows": len(difference),
        "clear": int(clear.sum()),
        "other_where_clear": int((other & clear).sum()),
        "other": int(other.sum()),
    }
    scores.unlink()
    return row


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.quantized", description=__doc__)
    parser.add_argument("--llama-python", required=True, help="an interpreter with llama-cpp-python")
    parser.add_argument("--types", nargs="+", choices=TYPES, default=TYPES)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--chunk", type=int, default=512)
    options = parser.parse_args()
    source = fetch(DEFAULT_MODEL)
    text = english()
    ids = ModelFiles(source).tokenizer().encode(text)[: options.tokens]
    chunks = [ids[first : first + options.chunk] for first in range(0, len(ids), options.chunk)]
    print(f"{len(ids)} tokens of text {fingerprint(text)}", file=sys.stderr)
    peer, rows = Peer(options.llama_python), []
    with tempfile.TemporaryDirectory() as folder:
        wide = Path(folder) / "F16.gguf"
        weights = widen(source, wide)
        for name in options.types:
            path = wide
            if name != "F16":
                path = Path(folder) / f"{name}.gguf"
                whole, only = (name, {}) if name not in _SMALL else ("Q8_0", {"ffn_down": _SMALL[name]})
                problem = peer.ask(quantize=str(wide), to=str(path), type=whole, weights=weights, only=only)
                if problem:
                    rows.append({"type": name, "problem": problem})
                    continue
            rows.append(compare(name, path, chunks, peer))
            print(*[f"{key} {value}" for key, value in rows[-1].items()], sep="  ", file=sys.stderr)
            if path is not wide:
                path.unlink()
    peer.close()
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
