"""Times tiles of the matrix product for the shapes of a model; prints the fastest for each number of rows."""

from __future__ import annotations

import argparse
import itertools

import torch
import triton

from bench.gpu.shapes import SHAPES
from bench.gpu.timing import graph_seconds
from glassloop.ops.torch.device import shared_memory
from glassloop.ops.torch.kernels.linear import linear_kernel
from glassloop.ops.torch.tiles import Tile, tile_for


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shape", default="8b", choices=SHAPES)
    parser.add_argument("--rows", default="1,16,64,128,256,512,2048")


def main(given: argparse.Namespace) -> None:
    linears = products(given.shape)
    for rows in [int(each) for each in given.rows.split(",")]:
        for name, (width, columns, gated) in linears.items():
            if name == "head" and rows > 256:
                continue
            found = []
            for tile in candidates(rows, gated):
                try:
                    found.append((seconds(rows, width, columns, gated, tile), tile))
                except Exception as error:  # what does not fit the device is no candidate
                    if "out of resource" not in str(error):
                        print("failed:", tile, str(error)[:100])
            found.sort(key=lambda each: each[0])
            now = seconds(rows, width, columns, gated, tile_for(rows, width, gated, shared_memory()))
            weights = width * columns * 2 * (2 if gated else 1)
            best = found[0][0]
            print(
                f"{rows:5} {name:8} now {now * 1e6:7.1f} µs, best {best * 1e6:7.1f} µs"
                f" {weights / best / 1e12:.2f} TB/s {rows * weights / best / 1e12:.0f} TFLOP/s",
                *[f"{each * 1e6:.1f}:{tuple(tile)}" for each, tile in found[:3]],
                flush=True,
            )


def products(shape: str) -> dict[str, tuple[int, int, bool]]:
    """Returns the outputs and inputs of each product of a model, and whether it has a gate."""
    _, dim, heads, kv_heads, head_dim, hidden, vocabulary = SHAPES[shape]
    return {
        "qkv": ((heads + 2 * kv_heads) * head_dim, dim, False),
        "o": (dim, heads * head_dim, False),
        "gate-up": (hidden, dim, True),
        "down": (dim, hidden, False),
        "head": (vocabulary, dim, False),
    }


def candidates(rows: int, gated: bool) -> list[Tile]:
    if rows <= 16:
        return [
            Tile(16, width, step, swapped, warps, stages)
            for width, step, swapped, warps, stages in itertools.product(
                (16, 32, 64), (128, 256, 512), (False, True), (2, 4), (3, 5)
            )
            if width * step * stages * 2 * (2 if gated else 1) <= 200_000 and not (swapped and width < 64)
        ]
    if rows <= 128:
        sizes = [(r, w) for r in (32, 64, 128) for w in (32, 64, 128) if r <= max(rows, 32)]
        return [
            Tile(r, w, step, False, warps, stages)
            for (r, w), step, warps, stages in itertools.product(sizes, (64, 128), (4, 8), (3, 4))
        ]
    return [
        Tile(r, w, 64, False, warps, stages)
        for (r, w), warps, stages in itertools.product(
            [(64, 128), (128, 64), (128, 128), (128, 256), (256, 128)], (4, 8), (3, 4)
        )
        if not (gated and r * w > 16384 and warps == 4)
    ]


def seconds(rows: int, width: int, columns: int, gated: bool, tile: Tile) -> float:
    """Returns the median time of a product, by a graph of several with weights that do not fit the cache."""
    weights = random_weights(width * (2 if gated else 1), columns)
    x = torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16)
    out = torch.empty(rows, width, device="cuda", dtype=torch.bfloat16)
    grid = (triton.cdiv(rows, tile.rows) * triton.cdiv(width, tile.width),)

    def run(weight: torch.Tensor) -> None:
        linear_kernel[grid](
            x, weight, weight, out, out, rows, width, columns, width, width, columns,
            ROWS=tile.rows, WIDTH=tile.width, STEP=tile.step, SWAPPED=tile.swapped,
            EVEN=columns % tile.step == 0, BIASED=False, ADDED=False, GATED=gated, ACTIVATION=2,
            num_warps=tile.warps, num_stages=tile.stages, enable_fp_fusion=False, EARLY=False,
        )  # fmt: skip

    run(weights[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for weight in weights:
            run(weight)
    return graph_seconds(graph, 5) / len(weights)


def random_weights(width: int, columns: int) -> list[torch.Tensor]:
    """Returns several random matrices, which together do not fit the cache."""
    key = (width, columns)
    if key not in _WEIGHTS:
        _WEIGHTS.clear()
        copies = max(2, min(16, 400_000_000 // (width * columns * 2)))
        _WEIGHTS[key] = [
            torch.randn(width, columns, device="cuda", dtype=torch.bfloat16) for _ in range(copies)
        ]
    return _WEIGHTS[key]


_WEIGHTS: dict[tuple[int, int], list[torch.Tensor]] = {}  # the last ones, by shape
