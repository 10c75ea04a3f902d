"""Times the products of a model by the op set and by cuBLAS."""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F

from bench.gpu import tiles
from bench.gpu.shapes import SHAPES
from bench.gpu.timing import graph_seconds


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shape", default="8b", choices=SHAPES)
    parser.add_argument("--rows", default="1,16,64,256,2048")


def main(given: argparse.Namespace) -> None:
    for rows in [int(each) for each in given.rows.split(",") if each]:
        for name, (width, columns, gated) in tiles.matrices(given.shape).items():
            if name == "head" and rows > 256:
                continue
            product = tiles.Product(rows, name, width, columns, gated)
            ours = tiles.seconds(product, tiles.tile_now(product))
            theirs = _cublas_seconds(rows, *product.weights)
            print(
                f"{rows:5} {name:8} {ours * 1e6:7.1f} µs, cuBLAS {theirs * 1e6:7.1f} µs"
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
