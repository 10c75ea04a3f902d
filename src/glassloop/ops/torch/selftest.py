"""The self-test of the torch op set: whether the GPU adds up a product in the same order in every tile.

The promise of one answer stands on it, and NVIDIA does not document it. So it is tested on the first use of
an architecture and a version of Triton, and the result is kept in Triton's cache. The kernels are those that
any model needs, so that compiling them is no extra work.
"""

from __future__ import annotations

import logging
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from glassloop.ops.torch import nvrtc, packed, packed_linear, products
from glassloop.ops.torch.device import Device
from glassloop.ops.torch.kernels import linear
from glassloop.ops.torch.kernels import packed as packed_kernels
from glassloop.ops.torch.matrix import MatrixProduct
from glassloop.ops.torch.packed import PackedMatrix
from glassloop.ops.torch.tiles import WIDE, table_text

_LOG = logging.getLogger(__name__)
_ROWS = (1, 8, 17, 64, 100, 256, 300)  # one of each kind of tile, the last two by descriptors too
_WIDTH, _COLUMNS = 1024, 2048
_FILE = "glassloop-selftest"
# What it tests.
_FILES = (
    *(str(each.__file__) for each in (linear, packed_kernels, packed, products, packed_linear)),
    __file__,
    str(packed_linear.SOURCE),
)


@cache
def exact(device: Device) -> bool:
    """Returns whether a row has the same bits in every tile on a GPU. If not, says so in the log."""
    if device.interpreted:
        return True
    depends_on = _depends_on(device)
    before = device.remembered(_FILE, depends_on)
    passed = before == "passed" if before else rows_differing(device) == 0
    if not before:
        device.remember(_FILE, "passed" if passed else "failed", depends_on)
    if not passed:
        _LOG.warning(
            "on this GPU (%s) a product has other bits in other batches, so that one request may have several"
            " answers. The op set native keeps the promise; records name this one with the word inexact",
            device.description,
        )
    return passed


def rows_differing(device: Device, product: Any = None) -> int:
    """Returns how many rows differ from those of a product of one row each. `product` computes one (for a
    test): it is given the rows, the weights, the residual stream and whether to copy by descriptors."""
    is_own = product is None
    product = product or partial(_product, device)
    at, half = device.torch, device.half
    generator = torch.Generator(at).manual_seed(1)
    most = max(_ROWS)
    # Values of very different size, so that every order of a sum has other bits.
    size = torch.randn(most, _COLUMNS, generator=generator, device=at).exp()
    x = (torch.randn(most, _COLUMNS, generator=generator, device=at) * size).to(half)
    weight = torch.randn(_WIDTH, _COLUMNS, generator=generator, device=at).to(half)
    added = torch.randn(most, _WIDTH, generator=generator, device=at)
    some = range(0, most, 7)
    alone = torch.cat([product(x[row : row + 1], weight, added[row : row + 1], False) for row in some])
    differing = 0
    for rows in _ROWS[1:]:
        kept = [row for row in some if row < rows]
        for wide in (False, True) if rows >= WIDE and device.tma_processors else (False,):
            result = product(x[:rows], weight, added[:rows], wide)[kept]
            differing += int((result != alone[: len(kept)]).any(1).sum())
    if is_own and nvrtc.is_available():
        most = packed_linear.MOST_ROWS + 1
        differing += _packed_rows_differing(device, x[:most], added[:most])
    return differing


def _packed_rows_differing(device: Device, x: torch.Tensor, added: torch.Tensor) -> int:
    """Returns how many rows of products with a packed matrix differ between Triton's kernels, which compute
    all rows, and the one for few rows."""
    codes = torch.arange(_WIDTH * _COLUMNS, device=x.device).view(_WIDTH, -1).mul(2654435761) >> 7
    scale = codes[:, : _COLUMNS // 32].remainder(61).add(1).div(64).half()
    weight = PackedMatrix.of((codes & 15).to(torch.int8) - 8, scale, scale / 3, 4)
    launcher, differing = products.Products(device), 0
    sizes = [
        MatrixProduct(rows, torch.empty_like(added[:rows]), x, added, weight) for rows in (len(x), 1, 2, 9)
    ]
    for each in sizes:
        launcher.launch(each, _launch, early=False)
        differing += int((each.out != sizes[0].out[: each.rows]).any(1).sum())
    return differing


def _launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **settings: Any) -> None:
    if "EARLY" in kernel.arg_names:
        settings["EARLY"] = False
    kernel[grid](*arguments, enable_fp_fusion=False, **settings)


def _product(
    device: Device, x: torch.Tensor, weight: torch.Tensor, added: torch.Tensor, wide: bool
) -> torch.Tensor:
    """Returns x @ weight.T + added, computed as by a program with so many rows."""
    rows, out = len(x), torch.empty_like(added)
    if wide:
        tile = device.tiles.wide(rows, _WIDTH, False, device.shared_memory)
    else:
        tile = device.tiles.plain(rows, _WIDTH, device.shared_memory)
    tiles = triton.cdiv(rows, tile.rows) * triton.cdiv(_WIDTH, tile.width)
    sizes = (weight, added, out, rows, _WIDTH, _COLUMNS, _WIDTH, _WIDTH)
    settings = {
        "ROWS": tile.rows, "WIDTH": tile.width, "STEP": tile.step, "BIASED": False, "ADDED": True,
        "GATED": False, "ACTIVATION": 0, "num_warps": tile.warps, "num_stages": tile.stages,
        "enable_fp_fusion": False,
    }  # fmt: skip
    if wide:
        read = TensorDescriptor(x, [rows, _COLUMNS], [_COLUMNS, 1], [tile.rows, tile.step])
        weights = TensorDescriptor(weight, [_WIDTH, _COLUMNS], [_COLUMNS, 1], [tile.width, tile.step])
        linear.wide_linear_kernel[(min(tiles, device.tma_processors),)](
            read, weights, *sizes, PIECES=tile.pieces, **settings
        )
    else:
        more = {"SWAPPED": tile.swapped, "EVEN": _COLUMNS % tile.step == 0, "EARLY": False}
        linear.linear_kernel[(tiles,)](x, weight, *sizes, _COLUMNS, **settings, **more)
    return out


def _depends_on(device: Device) -> list[str]:
    """Returns what the result depends on, besides the GPU: versions, the driver, the tiles, the kernels."""
    driver = getattr(torch._C, "_cuda_getDriverVersion", lambda: "")()
    about = [str(driver), torch.__version__, table_text(device.tiles.table)]
    return [*about, *[Path(file).read_text() for file in _FILES]]
