"""`python -m bench.fp8`: what FP8 costs on a CPU, where each value of a matrix becomes BF16.

The matrices of the default model's layers are rounded to E4M3 with a scale for each 128 × 128, as FP8 files
have them, and those values to BF16, as the loader does. The Kullback–Leibler divergences over English text,
from the values of the file in float32 and from the weights before, are computed by the reference op set, so
that nothing else is rounded. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
from math import sqrt

import numpy as np

from bench.english import english, fingerprint
from glassloop.model.cache import Branches
from glassloop.model.loader import ModelFiles
from glassloop.model.registry import DEFAULT_MODEL, fetch
from glassloop.model.transformer import Transformer
from glassloop.ops.quant import BF16, F8_E4M3, Float32
from glassloop.ops.reference import ReferenceOps
from glassloop.ops.tensor import Tensor

_BLOCK = 128
_SIZES = np.array(F8_E4M3.table[:127], np.float32)  # ascending, without a sign
_MOST = _SIZES[-1]


def rounded_to_fp8(values: Float32) -> Float32:
    """Returns a matrix rounded to E4M3, each 128 × 128 with a scale of its own."""
    out, into = values.shape
    padded = np.pad(values, [(0, -out % _BLOCK), (0, -into % _BLOCK)])
    blocks = padded.reshape(padded.shape[0] // _BLOCK, _BLOCK, -1, _BLOCK)
    scale = np.maximum(np.abs(blocks).max(axis=(1, 3), keepdims=True) / _MOST, np.float32(1e-30))
    sizes = np.abs(blocks / scale)
    above = np.searchsorted(_SIZES, sizes).clip(1, len(_SIZES) - 1)
    nearest = np.where(sizes - _SIZES[above - 1] <= _SIZES[above] - sizes, _SIZES[above - 1], _SIZES[above])
    rounded = (np.copysign(nearest, blocks) * scale).astype(np.float32)
    return rounded.reshape(padded.shape)[:out, :into]


def log_probabilities(files: ModelFiles, weights: dict[str, Tensor], chunks: list[list[int]]) -> Float32:
    model = Transformer(files.config, weights, ReferenceOps())
    logits = [Branches(model, len(ids)).forward([(0, 0, ids)], every_logit=True) for ids in chunks]
    rows = np.concatenate(logits).astype(np.float64)
    rows -= rows.max(axis=1, keepdims=True)
    found: Float32 = (rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))).astype(np.float32)
    return found


def divergence(of: Float32, to: Float32) -> dict[str, float]:
    """Returns the mean divergence of `to` from `of` over the rows, and its standard error."""
    each = (np.exp(of.astype(np.float64)) * (of - to)).sum(axis=1)
    return {"kl": float(each.mean()), "error": float(each.std() / sqrt(len(each)))}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.fp8", description=__doc__)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--chunk", type=int, default=256)
    options = parser.parse_args()
    files, text = ModelFiles(fetch(DEFAULT_MODEL)), english()
    ids = files.tokenizer().encode(text)[: options.tokens]
    chunks = [ids[first : first + options.chunk] for first in range(0, len(ids), options.chunk)]
    before = {name: Tensor.of(name, tensor.float32()) for name, tensor in files.weights.items()}
    stored = {
        name: Tensor.of(name, rounded_to_fp8(tensor.float32()))
        if name.startswith("layers.") and len(tensor.shape) == 2
        else tensor
        for name, tensor in before.items()
    }
    loaded = {
        name: tensor if tensor is before[name] else tensor.stored_as(BF16) for name, tensor in stored.items()
    }
    print(f"{len(ids)} tokens of text {fingerprint(text)}")
    exact = log_probabilities(files, stored, chunks)
    costs = {
        "fp8": divergence(log_probabilities(files, before, chunks), exact),
        "bf16": divergence(exact, log_probabilities(files, loaded, chunks)),
    }
    for name, cost in costs.items():
        print(f"{name:6}{cost['kl']:.6f} ± {cost['error']:.6f}")
    print(json.dumps(costs))


if __name__ == "__main__":
    main()
