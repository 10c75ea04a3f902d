"""Adapters: what the low-rank matrices of a row's adapter add to a product. A tile is some rows with the same
adapter, anywhere in the batch. As in `linear.py`, sums run over the columns in ascending steps of 16."""

from __future__ import annotations

import triton
import triton.language as tl

from glassloop.ops.torch.kernels.pointwise import let_next_start, wait_for_previous


@triton.jit
def low_rank_kernel(
    x,
    weight,
    scales,
    out,
    ids,
    places,
    order,
    tile_row,
    tile_count,
    width,
    columns,
    x_stride,
    out_stride,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    STEP: tl.constexpr,
    UP: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Computes x @ matrix.T with the matrix of the adapter `ids[row]` of each row, which is
    `weight[places[id]]`, of [width, columns]. A place of -1 means that the adapter leaves this product as it
    is. The result is written to `out` or, if UP, times the adapter's scale added to it."""
    let_next_start(EARLY)
    wait_for_previous(EARLY)
    tile = tl.program_id(0)
    at = tl.load(tile_row + tile) + tl.arange(0, ROWS)
    count = tl.load(tile_count + tile)
    inside = tl.arange(0, ROWS) < count
    row = tl.load(order + at, mask=inside, other=0).to(tl.int64)
    place = tl.load(places + tl.load(ids + tl.load(order + tl.load(tile_row + tile)))).to(tl.int64)
    if (place >= 0) & (count > 0):
        output = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
        output_in = output < width
        step = tl.arange(0, STEP)
        x_at = x + (row * x_stride)[:, None] + step[None, :]
        weight_at = weight + ((place * width + output) * columns)[:, None] + step[None, :]
        total = tl.zeros([ROWS, WIDTH], tl.float32)
        for start in range(0, columns, STEP):
            within = (start + step < columns)[None, :]
            a = tl.load(x_at, mask=inside[:, None] & within, other=0.0)
            b = tl.load(weight_at, mask=output_in[:, None] & within, other=0.0)
            total = tl.dot(a, b.T, total)
            x_at += STEP
            weight_at += STEP
        to = out + (row * out_stride)[:, None] + output[None, :]
        both = inside[:, None] & output_in[None, :]
        if UP:
            total = tl.load(to, mask=both, other=0.0) + total * tl.load(scales + place)
        tl.store(to, total.to(out.dtype.element_ty), mask=both)
