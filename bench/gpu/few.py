"""Times products of a few rows with packed matrices by the kernel made for them, few_rows.cu, and by Triton's
(which expand the matrix first), and compares their bits. Kernels are launched early, in a graph of several
products, as a program does."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import torch

from bench.gpu import tiles
from bench.gpu.shapes import SHAPES, random_packed
from bench.gpu.timing import graph_seconds
from glassloop.ops.torch import few_rows
from glassloop.ops.torch.launcher import Launcher
from glassloop.ops.torch.matrix import Packed

_SILU = 2
_ONE, _TWO, _THREE = ({4: each, 8: each} for each in (1, 2, 3))
# What `--sweep` tries: constants of few_rows.py.
_VARIANTS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "span 1": {"SPANS": _ONE, "DEPTHS": _ONE},
    "span 1, depth 2": {"SPANS": _ONE, "DEPTHS": _TWO, "LARGE_DEPTH": 2},
    "span 1, depth 2, x ahead": {"SPANS": _ONE, "DEPTHS": _TWO, "X_AHEAD": True},
    "span 1, depth 3": {"SPANS": _ONE, "DEPTHS": _THREE},
    "span 2": {"SPANS": _TWO, "DEPTHS": _ONE, "LARGE_SPAN": 2},
    "4 tiles": {"MOST_TILES": 4},
    "16 tiles": {"MOST_TILES": 16},
    "2 entries": {"ENTRIES": 2},
    "two blocks": {"BLOCKS": 2, "LEAST_SHARED": 0, "SPANS": _ONE, "DEPTHS": _ONE},
}


class Case(NamedTuple):
    """A product of a model with some rows, and the matrices of several layers."""

    name: str
    rows: int
    width: int
    gated: bool
    weights: list[Packed]

    @property
    def columns(self) -> int:
        return self.weights[0].shape[1]

    @property
    def bytes(self) -> int:
        weight = self.weights[0]
        return sum(part.nbytes for part in (weight.codes, weight.scale, weight.minimum) if part is not None)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shape", default="8b", choices=SHAPES)
    parser.add_argument("--rows", default="1,4,8,16")
    parser.add_argument("--weights", default="q4,q8")
    parser.add_argument("--names", default="qkv,o,gate-up,down,head")
    parser.add_argument("--sweep", action="store_true", help="time other divisions of the kernel's work")
    parser.add_argument("--replays", type=int, default=200, help="of each graph, compared with the first")


def main(given: argparse.Namespace) -> None:
    launcher = Launcher()
    launcher._early = True
    for kind in given.weights.split(","):
        for name, (width, columns, gated) in tiles.matrices(given.shape).items():
            if name not in given.names.split(","):
                continue
            weights = _weights(kind, 2 * width if gated else width, columns)
            for rows in [int(each) for each in given.rows.split(",")]:
                case = Case(name, rows, width, gated, weights)
                (_sweep if given.sweep else _compare)(launcher, kind, case, given.replays)
            del weights


def _compare(launcher: Launcher, kind: str, case: Case, replays: int) -> None:
    """Prints times and bits of a product."""
    with _tried(f"{kind:5} {case.rows:3} rows {case.name:8}") as say:
        before, expected = _measured(launcher, case, _by_triton(launcher, case), 0)
        say(f"{before * 1e6:7.1f} µs")
        now, found = _measured(launcher, case, _by_few_rows(launcher, case), replays)
        say(f"by few_rows.cu {now * 1e6:7.1f} µs ({case.bytes / now / 1e12:.2f} TB/s)")
        same = torch.equal(expected.view(torch.uint8), found.view(torch.uint8))
        say("the same bits" if same else "OTHER BITS")


def _sweep(launcher: Launcher, kind: str, case: Case, replays: int) -> None:
    """Prints the times of a product with other constants of few_rows.py, and whether its bits change."""
    expected = None
    for about, limits in _VARIANTS.items():
        with _tried(f"{kind:3} {case.rows:3} rows {case.name:8}") as say, _limits(**limits):
            seconds, found = _measured(launcher, case, _by_few_rows(launcher, case), replays)
            expected = found if expected is None else expected
            say(f"{seconds * 1e6:7.1f} µs ({case.bytes / seconds / 1e12:.2f} TB/s) {about}")
            if not torch.equal(expected.view(torch.uint8), found.view(torch.uint8)):
                say("OTHER BITS")


@contextmanager
def _tried(about: str) -> Iterator[Callable[[str], None]]:
    """Gives a function that adds words to a line, which is printed at the end, with the error if there is
    one."""
    words = [about]
    try:
        yield words.append
    except Exception as error:
        words.append(f"FAILED: {type(error).__name__}: {str(error)[:300]}")
    print(", ".join(words), flush=True)


@contextmanager
def _limits(**limits: Any) -> Iterator[None]:
    """Sets constants of few_rows.py for a while."""
    before = {name: getattr(few_rows, name) for name in limits}
    try:
        for name, value in limits.items():
            setattr(few_rows, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(few_rows, name, value)


@cache
def _inputs(
    name: str, rows: int, width: int, columns: int, gated: bool
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """Returns x, the residual stream where a model adds it, and an array for the outputs."""
    x = torch.randn(rows, columns, device="cuda", generator=torch.Generator("cuda").manual_seed(rows))
    residual = torch.randn(rows, width, device="cuda") if name in ("o", "down") else None
    kind = torch.bfloat16 if gated else torch.float32
    return x.bfloat16(), residual, torch.zeros(rows, width, device="cuda", dtype=kind)


def _product(case: Case, layer: int) -> few_rows.MatrixProduct:
    x, residual, out = _inputs(case.name, case.rows, case.width, case.columns, case.gated)
    return few_rows.MatrixProduct(case.rows, out, x, residual, case.weights[layer], None, case.gated, _SILU)


def _by_few_rows(launcher: Launcher, case: Case) -> Callable[[int], torch.Tensor]:
    def compute(layer: int) -> torch.Tensor:
        product = _product(case, layer)
        product.launch(launcher._products.processors, early=True)
        return product.out

    return compute


def _by_triton(launcher: Launcher, case: Case) -> Callable[[int], torch.Tensor]:
    """Returns what computes a product by Triton's kernels; of a packed matrix, for the first layer, with the
    expanded one, then with one that is expanded each time."""
    expanded, product = case.weights[0].expanded(), _product(case, 0)

    def compute(layer: int) -> torch.Tensor:
        weight = expanded if layer == 0 else case.weights[layer]
        linear = launcher.method("linear")
        with _limits(MOST_ROWS=0):
            linear(
                None, case.rows, product.out, product.x, product.added,
                weight=weight, bias=None, gated=case.gated, activation=_SILU,
            )  # fmt: skip
        return product.out

    return compute


def _measured(
    launcher: Launcher, case: Case, compute: Callable[[int], torch.Tensor], replays: int
) -> tuple[float, torch.Tensor]:
    """Returns the time of a product, in a graph of one for each layer but the first, and the output for the
    first. Raises if the outputs of the last layer are not always the same."""
    found = compute(0).clone()
    compute(1)
    torch.cuda.synchronize()
    graph, layers = torch.cuda.CUDAGraph(), range(1, len(case.weights))
    with torch.cuda.graph(graph):
        for layer in layers:
            out = compute(layer)
    seconds = graph_seconds(graph, 7) / len(layers)
    first = out.clone()
    differing = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(replays):
        graph.replay()
        differing += (out.view(torch.uint8) != first.view(torch.uint8)).any()
    if count := int(differing):
        raise RuntimeError(f"{count} of {replays} replays differ")
    return seconds, found


def _weights(kind: str, width: int, columns: int) -> list[Packed]:
    """Returns several random matrices, which together do not fit the cache."""
    bits = {"q4": 4, "q8": 8}[kind]
    copies = max(3, min(17, 400_000_000 // (width * columns * bits // 8)))
    return [random_packed(width, columns, columns**-0.5, bits) for _ in range(copies)]
