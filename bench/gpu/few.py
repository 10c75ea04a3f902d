"""Times products of a few rows with packed matrices by the kernel made for them and by the others, and
compares their bits."""

from __future__ import annotations

import argparse

import torch

from bench.gpu import tiles
from bench.gpu.shapes import SHAPES, random_packed
from bench.gpu.timing import graph_seconds
from glassloop.ops.torch import few_rows
from glassloop.ops.torch.launcher import Launcher
from glassloop.ops.torch.matrix import Packed


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shape", default="8b", choices=SHAPES)
    parser.add_argument("--rows", default="1,2,4,8,16")
    parser.add_argument("--weights", default="q8,q4")


def main(given: argparse.Namespace) -> None:
    launcher = Launcher()
    launcher._early = True
    for kind in given.weights.split(","):
        for name, (width, columns, gated) in tiles.matrices(given.shape).items():
            weights = _weights(kind, 2 * width if gated else width, columns)
            size = _bytes(weights[0])
            for rows in [int(each) for each in given.rows.split(",")]:
                x = torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16)
                # The residual stream is added where a model adds it.
                residual = torch.randn(rows, width, device="cuda") if name in ("o", "down") else None
                made, times = [], []
                for few in (False, True):
                    out = torch.empty(
                        rows, width, device="cuda", dtype=torch.bfloat16 if gated else torch.float32
                    )
                    times.append(_seconds(launcher, few, rows, out, x, residual, weights, gated))
                    made.append(out)
                same = torch.equal(made[0].view(torch.uint8), made[1].view(torch.uint8))
                before, now = times
                bits = "the same bits" if same else "OTHER BITS"
                print(
                    f"{kind:5} {rows:3} rows {name:8} {before * 1e6:7.1f} µs,"
                    f" by few_rows.cu {now * 1e6:7.1f} µs ({size / now / 1e12:.2f} TB/s), {bits}",
                    flush=True,
                )


def _weights(kind: str, width: int, columns: int) -> list[Packed]:
    """Returns several random matrices, which together do not fit the cache."""
    bits = 8 if kind == "q8" else 4
    copies = max(2, min(16, 400_000_000 // (width * columns * bits // 8)))
    return [random_packed(width, columns, columns**-0.5, bits) for _ in range(copies)]


def _bytes(weight: Packed) -> int:
    parts = [weight.codes, weight.scale, weight.minimum]
    return sum(part.nbytes for part in parts if part is not None)


def _seconds(
    launcher: Launcher,
    few: bool,
    rows: int,
    out: torch.Tensor,
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weights: list[Packed],
    gated: bool,
) -> float:
    most = few_rows.MOST_ROWS
    few_rows.MOST_ROWS = most if few else 0
    try:
        silu, linear = 2, launcher.method("linear")

        def compute(weight: Packed) -> None:
            linear(None, rows, out, x, residual, weight=weight, bias=None, gated=gated, activation=silu)

        compute(weights[0])
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for weight in weights:
                compute(weight)
        return graph_seconds(graph, 7) / len(weights)
    finally:
        few_rows.MOST_ROWS = most
