"""Times products of a few rows with packed matrices by the kernel made for them, packed_linear.cu, and by
Triton's (which expand the matrix first), and compares their bits. Kernels are launched early, in a graph of
several products, as a program does. `--sweep` times other divisions of the kernel's work."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple
from unittest.mock import patch

import torch

from bench.gpu import tiles
from bench.gpu.shapes import SHAPES, random_packed
from bench.gpu.timing import graph_seconds
from glassloop.ops.torch import packed_linear
from glassloop.ops.torch.device import default_device
from glassloop.ops.torch.launcher import Launcher
from glassloop.ops.torch.matrix import MatrixProduct, TorchMatrix
from glassloop.ops.torch.packed import PackedMatrix
from glassloop.ops.torch.packed_linear import Division

_SILU = 2
_LEAST_BYTES = 200_000_000  # of all matrices of a graph, several times the L2 cache
_DIVISIONS = [
    Division(tiles, span, stages, blocks, True)
    for tiles, span, stages, blocks in (
        *((1, 4, 2, 2), (1, 2, 3, 2), (1, 2, 3, 3), (1, 4, 1, 3), (1, 2, 2, 1)),
        *((2, 2, 3, 1), (2, 2, 2, 2), (2, 4, 2, 1), (2, 1, 2, 1), (4, 2, 2, 1)),
    )
]


class Case(NamedTuple):
    """A product of a model with some rows, and the matrices of several layers."""

    name: str
    rows: int
    width: int
    gated: bool
    weights: list[PackedMatrix]

    def products(self) -> list[MatrixProduct]:
        """Returns the product for each layer, with the same inputs and output."""
        columns = self.weights[0].shape[1]
        x = torch.randn(self.rows, columns, device="cuda", generator=torch.Generator("cuda").manual_seed(1))
        added = torch.ones(self.rows, self.width, device="cuda") if self.name in ("o", "down") else None
        kind = torch.bfloat16 if self.gated else torch.float32
        out = torch.zeros(self.rows, self.width, device="cuda", dtype=kind)
        return [
            MatrixProduct(self.rows, out, x.bfloat16(), added, weight, None, self.gated, _SILU)
            for weight in self.weights
        ]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shape", default="8b", choices=SHAPES)
    parser.add_argument("--rows", default="1,2,8,16,32")
    parser.add_argument("--weights", default="q4,q8")
    parser.add_argument("--names", default="qkv,o,gate-up,down,head")
    parser.add_argument("--sweep", action="store_true", help="time other divisions of the kernel's work")
    parser.add_argument("--replays", type=int, default=200, help="of each graph, compared with the first")


def main(given: argparse.Namespace) -> None:
    for kind in given.weights.split(","):
        for name, (width, columns, gated) in tiles.matrices(given.shape).items():
            if name not in given.names.split(","):
                continue
            weights = _weights(kind, width, columns, gated)
            for rows in [int(each) for each in given.rows.split(",")]:
                (_sweep if given.sweep else _compare)(
                    kind, Case(name, rows, width, gated, weights), given.replays
                )
            del weights


def _launch_packed(product: MatrixProduct) -> None:
    packed_linear.launch(product, default_device(), early=True)


def _compare(kind: str, case: Case, replays: int) -> None:
    """Prints times and bits of a product."""
    launcher, size = Launcher(default_device()), case.weights[0].data.nbytes
    products = case.products()
    with _line(f"{kind} {case.rows:3} rows {case.name:8}") as say:
        with patch.object(packed_linear, "MOST_ROWS", 0):
            before, expected = _measured(
                products, lambda each: launcher._products.launch(each, launcher._launch, False), 0
            )
        say(f"expanded first {before * 1e6:7.1f} µs")
        now, found = _measured(products, _launch_packed, replays)
        say(f"by packed_linear.cu {now * 1e6:7.1f} µs ({size / now / 1e12:.2f} TB/s)")
        same = torch.equal(expected.view(torch.uint8), found.view(torch.uint8))
        say("the same bits" if same else "OTHER BITS")


def _sweep(kind: str, case: Case, replays: int) -> None:
    """Prints the times of a product with other divisions, and whether its bits change."""
    expected, size, products = None, case.weights[0].data.nbytes, case.products()
    for division in _DIVISIONS:
        with (
            _line(f"{kind} {case.rows:3} rows {case.name:8}") as say,
            patch.multiple(packed_linear, ONE=(division,), SOME=(division,), MANY=(division,), SMALL=()),
        ):
            seconds, found = _measured(products, _launch_packed, replays)
            expected = found if expected is None else expected
            say(f"{seconds * 1e6:7.1f} µs ({size / seconds / 1e12:.2f} TB/s), {tuple(division)}")
            if not torch.equal(expected.view(torch.uint8), found.view(torch.uint8)):
                say("OTHER BITS")


@contextmanager
def _line(about: str) -> Iterator[Callable[[str], None]]:
    """Gives a function that adds words to a line, which is printed at the end, with the error if there is
    one."""
    words = [about]
    try:
        yield words.append
    except Exception as error:
        words.append(f"FAILED: {type(error).__name__}: {str(error)[:300]}")
    print(", ".join(words), flush=True)


def _measured(
    products: list[MatrixProduct], launch: Callable[[MatrixProduct], None], replays: int
) -> tuple[float, torch.Tensor]:
    """Returns the time of a product, in a graph of all of them, and the output of the last. Raises if it is
    not always the same."""
    launch(products[0])
    torch.cuda.synchronize()
    graph, out = torch.cuda.CUDAGraph(), products[-1].out
    with torch.cuda.graph(graph):
        for each in products:
            launch(each)
    graph.replay()
    found = out.clone()
    for number in range(replays):
        out.zero_()
        graph.replay()
        if not torch.equal(out.view(torch.uint8), found.view(torch.uint8)):
            raise RuntimeError(f"replay {number} has other bits")
    return graph_seconds(graph, 30) / len(products), found


def _weights(kind: str, width: int, columns: int, gated: bool) -> list[PackedMatrix]:
    """Returns random matrices, so many that the caches do not help."""

    def random() -> PackedMatrix:
        bits, scale = 4 if kind == "q4" else 8, columns**-0.5
        if not gated:
            return random_packed(width, columns, scale, bits)
        parts = [
            TorchMatrix.of(random_packed(width, columns, scale, bits), default_device()) for _ in range(2)
        ]
        joined = TorchMatrix.joined(parts, in_turn=True)
        assert isinstance(joined, PackedMatrix)
        return joined

    first = random()
    return [first, *[random() for _ in range(max(1, _LEAST_BYTES // first.data.nbytes))]]
