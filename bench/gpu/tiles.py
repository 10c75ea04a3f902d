"""Times tiles of the matrix product for the shapes of a model; prints the fastest for each number of rows.

With `--compile N`, N processes compile all kernels first, which needs processors more than a GPU. With
`--save`, the fastest are kept for this GPU, and all programs use them from then on; `--forget` keeps those of
an H200 instead, which are used by default."""

from __future__ import annotations

import argparse
import itertools
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from multiprocessing import get_context
from typing import NamedTuple

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from bench.gpu.shapes import SHAPES
from bench.gpu.timing import graph_seconds
from glassloop.ops.torch.device import default_device
from glassloop.ops.torch.kernels.linear import linear_kernel, wide_linear_kernel
from glassloop.ops.torch.tiles import (
    ANY,
    H200,
    WIDE,
    Table,
    Tile,
    Tiles,
)


class Product(NamedTuple):
    """A product of some rows with one of a model's matrices."""

    rows: int
    name: str
    width: int
    columns: int
    gated: bool

    @property
    def weights(self) -> tuple[int, int]:
        """The shape of the matrix; a gated one has the rows of gate and up in turn."""
        return self.width * (2 if self.gated else 1), self.columns

    @property
    def added(self) -> bool:
        """Whether the product is added to the residual stream."""
        return self.name in ("o", "down")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shape", default="8b", choices=SHAPES)
    parser.add_argument("--rows", default="1,16,64,128,256,512,2048")
    parser.add_argument("--names", default="qkv,o,gate-up,down,head")
    parser.add_argument("--compile", type=int, default=0, metavar="N")
    parser.add_argument("--compile-only", action="store_true")
    parser.add_argument("--save", action="store_true", help="keep the fastest tiles for this GPU")
    parser.add_argument("--forget", action="store_true", help="use the tiles of an H200 again")


def main(given: argparse.Namespace) -> None:
    if given.forget:
        _save(H200)
        return
    products = [
        Product(rows, name, *sizes)
        for rows in [int(each) for each in given.rows.split(",")]
        for name, sizes in matrices(given.shape).items()
        if name in given.names.split(",") and not (name == "head" and rows > 256)
    ]
    if given.compile:
        # Products that differ in their sizes alone have the same kernels.
        work = {
            (_is_wide(product), product.gated, product.added, tile): (product, tile)
            for product in products
            for tile in candidates(product)
        }
        with get_context("spawn").Pool(given.compile) as pool:
            pool.starmap(_compile, work.values(), chunksize=2)
        print(f"{len(work)} kernels compiled", flush=True)
    timings: dict[tuple[Product, Tile], float] = {}
    for product in () if given.compile_only else products:
        found = []
        for tile in candidates(product):
            try:
                found.append((seconds(product, tile), tile))
            except Exception as error:  # what does not fit the device is no candidate
                if "out of resource" not in str(error):
                    print("failed:", tile, str(error)[:100])
        timings |= {(product, tile): each for each, tile in found}
        found.sort(key=lambda each: each[0])
        now = seconds(product, tile_now(product))
        bytes_read = 2 * product.weights[0] * product.columns
        best = found[0][0]
        print(
            f"{product.rows:5} {product.name:8} now {now * 1e6:7.1f} µs, best {best * 1e6:7.1f} µs"
            f" {bytes_read / best / 1e12:.2f} TB/s {product.rows * bytes_read / best / 1e12:.0f} TFLOP/s",
            *[f"{each * 1e6:.1f}:{tuple(tile)}" for each, tile in found[:4]],
            flush=True,
        )
    if given.save:
        _save(fastest(timings, default_device().tma_processors > 0))


def fastest(timings: Mapping[tuple[Product, Tile], float], has_descriptors: bool) -> Table:
    """Returns a table with the tiles that take the least time for all products with about as many rows of x
    and of the matrix, and those of an H200 where none were timed."""
    made = {
        name: {(most, limit): tile for most, by_width in tiles for limit, tile in by_width}
        for name, tiles in H200._asdict().items()
    }
    sums: dict[tuple[str, int, int], dict[Tile, list[float]]] = defaultdict(lambda: defaultdict(list))
    for (product, tile), seconds in timings.items():
        name = "plain"
        if product.rows >= WIDE and has_descriptors:
            name = "gated" if product.gated else "wide"
        key = name, _limit(product.rows, _ROWS), _limit(product.weights[0], _WIDTHS)
        sums[key][tile].append(seconds)
    for (name, most, limit), tiles in sums.items():
        complete = max(map(len, tiles.values()))  # a tile may not have fitted one of the products
        made[name][most, limit] = min(
            (tile for tile, each in tiles.items() if len(each) == complete), key=lambda tile: sum(tiles[tile])
        )
    return Table(**{name: _nested(found) for name, found in made.items()})


_ROWS, _WIDTHS = (16, 32, 64, 128, 256, ANY), (5120, 8192, ANY)  # up to which products have the same tile


def _limit(number: int, limits: tuple[int, ...]) -> int:
    return next(limit for limit in limits if number <= limit)


def _nested(found: Mapping[tuple[int, int], Tile]) -> Tiles:
    """Returns tiles by their limits of rows and of rows of the matrix. The last one of each is for all that
    is larger."""
    table = []
    for most in sorted({most for most, _ in found}):
        widths = sorted((limit, tile) for (rows, limit), tile in found.items() if rows == most)
        if widths[-1][0] != ANY:
            widths.append((ANY, widths[-1][1]))
        table.append((most, tuple(widths)))
    if table[-1][0] != ANY:
        table.append((ANY, table[-1][1]))
    return tuple(table)


def _save(table: Table) -> None:
    print(
        "kept" if default_device().remember_tiles(table) else "not kept: Triton's cache cannot be written",
        flush=True,
    )


def matrices(shape: str) -> dict[str, tuple[int, int, bool]]:
    """Returns the outputs and inputs of each product of a model, and whether it has a gate."""
    _, dim, heads, kv_heads, head_dim, hidden, vocabulary = SHAPES[shape]
    return {
        "qkv": ((heads + 2 * kv_heads) * head_dim, dim, False),
        "o": (dim, heads * head_dim, False),
        "gate-up": (hidden, dim, True),
        "down": (dim, hidden, False),
        "head": (vocabulary, dim, False),
    }


def _is_wide(product: Product) -> bool:
    """Returns whether tiles are copied by descriptors."""
    return product.rows >= WIDE and default_device().tma_processors > 0


def tile_now(product: Product) -> Tile:
    """Returns the tile that programs take."""
    tiles, shared_memory = default_device().tiles, default_device().shared_memory
    if _is_wide(product):
        return tiles.wide(product.rows, product.weights[0], product.gated, shared_memory)
    return tiles.plain(product.rows, product.weights[0], shared_memory)


def candidates(product: Product) -> list[Tile]:
    """Returns the tiles to try: those that fit into the shared memory."""
    rows = product.rows
    if rows <= 16:
        found = [
            Tile(16, width, step, swapped, warps, stages)
            for width, step, swapped, warps, stages in itertools.product(
                (16, 32, 64, 128), (64, 128, 256, 512), (False, True), (1, 2, 4, 8), (2, 3, 4, 5, 6)
            )
            if swapped == (width >= 64) and warps <= max(2, width // 8) and step * stages >= 512
        ]
    elif rows <= 128:
        sizes = [(r, w) for r in (32, 64, 128) for w in (32, 64, 128) if r <= max(rows, 32)]
        found = [
            Tile(r, w, step, False, warps, stages)
            for (r, w), step, warps, stages in itertools.product(sizes, (64, 128, 256), (4, 8), (3, 4, 5))
        ]
    else:
        sizes = [(64, 128), (64, 256), (128, 64), (128, 128), (128, 256), (256, 64), (256, 128)]
        found = [
            Tile(r, w, step, False, warps, stages, pieces)
            for (r, w), step, warps, stages, pieces in itertools.product(
                sizes, (64, 128), (4, 8), (2, 3, 4, 5), (1, 2, 4)
            )
            if r * w <= 4096 * warps
        ]
    return [tile for tile in found if _bytes(product, tile) < default_device().shared_memory - 1024]


def _bytes(product: Product, tile: Tile) -> int:
    """Returns the shared memory of a tile: its stages and, of many rows, a piece of its outputs."""
    outputs = tile.width // (2 if product.gated else 1) // tile.pieces if _is_wide(product) else 0
    return 2 * tile.step * tile.stages * (tile.rows + tile.width) + 4 * tile.rows * outputs


def _launch(
    product: Product, tile: Tile, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, warm: bool = False
) -> None:
    """Launches a product as a program does; if `warm`, compiles its kernel only."""
    rows, _, width, columns, gated = product
    residual = torch.empty(0, device="cuda") if warm else _residual(rows, width)
    tiles = triton.cdiv(rows, tile.rows) * triton.cdiv(product.weights[0], tile.width)
    settings = {
        "ROWS": tile.rows, "WIDTH": tile.width, "STEP": tile.step, "BIASED": False,
        "ADDED": product.added, "GATED": gated, "ACTIVATION": 2,
        "num_warps": tile.warps, "num_stages": tile.stages,
        "enable_fp_fusion": False,
    }  # fmt: skip
    sizes = weight, residual, out, rows, width, columns, width, width
    if _is_wide(product):
        kernel, grid = wide_linear_kernel, (min(tiles, default_device().tma_processors),)
        arguments = (
            TensorDescriptor(x, [rows, columns], [columns, 1], [tile.rows, tile.step]),
            TensorDescriptor(weight, list(product.weights), [columns, 1], [tile.width, tile.step]),
            *sizes,
        )
        settings["PIECES"] = tile.pieces
    else:
        kernel, grid, arguments = linear_kernel, (tiles,), (x, weight, *sizes, columns)
        settings |= {"SWAPPED": tile.swapped, "EVEN": columns % tile.step == 0, "EARLY": False}
    if warm:
        kernel.warmup(*arguments, grid=grid, **settings)
    else:
        kernel[grid](*arguments, **settings)


def _compile(product: Product, tile: Tile) -> None:
    """Compiles the kernel of a product, so that it is in Triton's cache."""
    any_array = torch.empty(64, device="cuda", dtype=torch.bfloat16)  # it is not read
    out = torch.empty(64, device="cuda", dtype=_out_type(product))
    _launch(product, tile, any_array, any_array, out, warm=True)


def _out_type(product: Product) -> torch.dtype:
    return torch.bfloat16 if product.gated else torch.float32


@cache
def _residual(rows: int, width: int) -> torch.Tensor:
    return torch.randn(rows, width, device="cuda")


def seconds(product: Product, tile: Tile) -> float:
    """Returns the median time of a product, by a graph of several with weights that do not fit the cache."""
    weights = random_weights(*product.weights)
    x = torch.randn(product.rows, product.columns, device="cuda", dtype=torch.bfloat16)
    out = torch.empty(product.rows, product.width, device="cuda", dtype=_out_type(product))
    _launch(product, tile, x, weights[0], out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for weight in weights:
            _launch(product, tile, x, weight, out)
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
