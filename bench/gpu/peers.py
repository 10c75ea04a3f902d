"""Times the same shape in plain torch: one stream, launched kernel by kernel, as a CUDA graph, and compiled
as gpt-fast does it; and cuBLAS beside the products of the op set."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from bench.gpu import tiles
from bench.gpu.shapes import SHAPES
from bench.gpu.timing import graph_seconds
from glassloop.ops.torch.device import shared_memory
from glassloop.ops.torch.tiles import tile_for

Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shape", default="8b", choices=SHAPES)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--rows", default="1,16,64,256,2048", help="of the products beside cuBLAS")
    parser.add_argument("--compile", action="store_true", help="compile as gpt-fast does; takes a minute")


def main(given: argparse.Namespace) -> None:
    with torch.inference_mode():
        _products(given.shape, [int(each) for each in given.rows.split(",") if each])
        step = Llama(given.shape, 2 * given.context)
        token = torch.zeros(1, dtype=torch.int64, device="cuda")
        position = torch.full((1,), given.context, dtype=torch.int64, device="cuda")
        _report("eager", _eager_seconds(step, token, position))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step(token, position)
        _report("as a CUDA graph", graph_seconds(graph, 20))
        if given.compile:
            compiled = torch.compile(step.__call__, mode="reduce-overhead", fullgraph=True)
            _report("compiled", _eager_seconds(compiled, token, position))


def _report(how: str, seconds: float) -> None:
    print(f"plain torch, one stream, {how}: {seconds * 1e3:.3f} ms = {1 / seconds:,.0f} tok/s", flush=True)


class Llama:
    """A decoder of one token with random weights: torch's own operations over a cache of fixed size."""

    def __init__(self, shape: str, length: int) -> None:
        self.layers, dim, self.heads, self.kv_heads, self.head_dim, hidden, vocabulary = SHAPES[shape]

        def matrix(out: int, into: int) -> torch.Tensor:
            return torch.empty(out, into, device="cuda", dtype=torch.bfloat16).normal_(0.0, into**-0.5)

        width = (self.heads + 2 * self.kv_heads) * self.head_dim
        self.table, self.head = matrix(vocabulary, dim), matrix(vocabulary, dim)
        self.weights = [
            (
                matrix(width, dim),
                matrix(dim, self.heads * self.head_dim),
                matrix(2 * hidden, dim),
                matrix(dim, hidden),
            )
            for _ in range(self.layers)
        ]
        self.norm = torch.ones(dim, device="cuda", dtype=torch.bfloat16)
        cache = (self.layers, 2, 1, self.kv_heads, length, self.head_dim)
        self.cache = torch.zeros(cache, device="cuda", dtype=torch.bfloat16)
        turns = torch.arange(length, device="cuda")[:, None] * 500000.0 ** -(
            torch.arange(0, self.head_dim, 2, device="cuda") / self.head_dim
        )
        self.cosines, self.sines = turns.cos().to(torch.bfloat16), turns.sin().to(torch.bfloat16)
        self.places = torch.arange(length, device="cuda")

    def __call__(self, token: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """Returns the next token."""
        x = self.table[token]
        mask = (self.places <= position)[None, None, None]
        for layer, (qkv, out, gate_up, down) in enumerate(self.weights):
            h = F.linear(F.rms_norm(x, self.norm.shape, self.norm, 1e-5), qkv)
            counts = [self.heads, self.kv_heads, self.kv_heads]
            q, k, v = h.view(1, -1, 1, self.head_dim).split(counts, 1)
            keys, values = self.cache[layer]
            keys.index_copy_(2, position, self._rotated(k, position))
            values.index_copy_(2, position, v)
            q = self._rotated(q, position)
            mixed = F.scaled_dot_product_attention(q, keys, values, mask, enable_gqa=True)
            x = x + F.linear(mixed.reshape(1, -1), out)
            gate, up = F.linear(F.rms_norm(x, self.norm.shape, self.norm, 1e-5), gate_up).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, down)
        return F.linear(F.rms_norm(x, self.norm.shape, self.norm, 1e-5), self.head).argmax(-1)

    def _rotated(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, -1)
        cosine, sine = self.cosines[position], self.sines[position]
        return torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1)


def _eager_seconds(step: Step, token: torch.Tensor, position: torch.Tensor, rounds: int = 20) -> float:
    for _ in range(3):
        step(token, position)
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(rounds):
        step(token, position)
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / rounds


def _products(shape: str, rows: list[int]) -> None:
    """Prints the time of each product of a layer, by the op set and by cuBLAS."""
    for count in rows:
        for name, (width, columns, gated) in tiles.products(shape).items():
            if name == "head" and count > 256:
                continue
            ours = tiles.seconds(count, width, columns, gated, tile_for(count, width, gated, shared_memory()))
            theirs = _cublas_seconds(count, width * (2 if gated else 1), columns)
            print(
                f"{count:5} {name:8} {ours * 1e6:7.1f} µs, cuBLAS {theirs * 1e6:7.1f} µs"
                f"{' without the gate' if gated else ''}",
                flush=True,
            )


def _cublas_seconds(rows: int, width: int, columns: int) -> float:
    weights = tiles.random_weights(width, columns)
    x = torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16)
    F.linear(x, weights[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for weight in weights:
            F.linear(x, weight)
    return graph_seconds(graph, 5) / len(weights)
