"""Matrix products. Each sum runs over the columns in ascending steps of 16 in one float32 accumulator (of a
packed matrix, in one for each slice), so its bits depend neither on the tile nor on the number of rows."""

from __future__ import annotations

import triton
import triton.language as tl

from glassloop.ops.torch.kernels.pointwise import activated, let_next_start, settled, wait_for_previous


@triton.jit
def tile_at(number, row_tiles, tiles):
    """Returns the place of a tile by its number: along the rows of x and along those of the matrix. Eight
    tiles of rows in turn use the same weights, which are then in the L2 cache."""
    group = number // (8 * tiles)
    together = tl.minimum(row_tiles - group * 8, 8)
    within = number % (8 * tiles)
    return group * 8 + within % together, within // together


@triton.jit
def added_product(a, b, total, SWAPPED: tl.constexpr):
    """Returns total + a @ b.T or, if SWAPPED, total + b @ a.T."""
    if SWAPPED:
        return tl.dot(b, a.T, total)
    else:
        return tl.dot(a, b.T, total)


@triton.jit
def gated(total, ROWS: tl.constexpr, WIDTH: tl.constexpr, ACTIVATION: tl.constexpr):
    """Returns activated(gate) * up for the products with the rows of gate and up in turn."""
    gate, up = tl.split(tl.reshape(total, [ROWS, WIDTH // 2, 2]))
    return activated(gate, ACTIVATION) * up


@triton.jit
def store_outputs(
    total, row, output, rows, width, residual, residual_stride, out, out_stride, ADDED: tl.constexpr
):
    """Writes outputs of some rows, plus the residual if ADDED."""
    inside = (row < rows)[:, None] & (output < width)[None, :]
    if ADDED:
        place = residual + (row.to(tl.int64) * residual_stride)[:, None] + output[None, :]
        total = tl.load(place, mask=inside, other=0.0).to(tl.float32) + total
    place = out + (row.to(tl.int64) * out_stride)[:, None] + output[None, :]
    tl.store(place, total.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def linear_kernel(
    x,
    weight,
    bias,
    residual,
    out,
    rows,
    width,
    columns,
    residual_stride,
    out_stride,
    x_stride,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    STEP: tl.constexpr,
    SWAPPED: tl.constexpr,
    EVEN: tl.constexpr,
    BIASED: tl.constexpr,
    ADDED: tl.constexpr,
    GATED: tl.constexpr,
    ACTIVATION: tl.constexpr,
    EARLY: tl.constexpr,
    AHEAD: tl.constexpr = False,
    SLICES: tl.constexpr = 1,
):
    """Computes x @ weight.T + bias + residual or, if GATED, activated(x @ gate.T) * (x @ up.T) for a weight
    that has the rows of gate and of up in turn. A tile has ROWS rows of x and WIDTH of the weight and reads
    STEP columns at a time (EVEN: STEP divides the number of columns). If SWAPPED, the transpose is computed,
    in which the rows of the weight fill the larger side of a tensor core instruction. `width` is the number
    of outputs. AHEAD (with EVEN): the first weights are read before the previous kernel has ended. With
    SLICES, the columns are divided into as many slices, each of whole chunks of 128 columns and with an
    accumulator of its own; then the slices are added (STEP divides 128)."""
    let_next_start(EARLY)
    weight_rows = width * 2 if GATED else width
    tiles = tl.cdiv(weight_rows, WIDTH)
    row_tiles = tl.cdiv(rows, ROWS)
    at_row, at_width = tile_at(tl.program_id(0), row_tiles, tiles)
    row = at_row * ROWS + tl.arange(0, ROWS)
    output = at_width * WIDTH + tl.arange(0, WIDTH)
    step = tl.arange(0, STEP)
    row_in, output_in = row < rows, output < weight_rows
    x_at = x + (row.to(tl.int64) * x_stride)[:, None] + step[None, :]
    weight_at = weight + (output.to(tl.int64) * columns)[:, None] + step[None, :]
    if SWAPPED:
        total = tl.zeros([WIDTH, ROWS], tl.float32)
    else:
        total = tl.zeros([ROWS, WIDTH], tl.float32)
    first = 0
    if AHEAD:
        # The weights do not depend on the previous kernel: the first ones are read while it still runs.
        b = tl.load(weight_at, mask=output_in[:, None], other=0.0)
        wait_for_previous(EARLY)
        total = added_product(tl.load(x_at, mask=row_in[:, None], other=0.0), b, total, SWAPPED)
        first = STEP
        x_at += STEP
        weight_at += STEP
    else:
        wait_for_previous(EARLY)
    slices = total
    length = tl.cdiv(columns // 128, SLICES) * 128
    for start in range(first, columns, STEP):
        if EVEN:
            a = tl.load(x_at, mask=row_in[:, None], other=0.0)
            b = tl.load(weight_at, mask=output_in[:, None], other=0.0)
        else:
            within = (start + step < columns)[None, :]
            a = tl.load(x_at, mask=row_in[:, None] & within, other=0.0)
            b = tl.load(weight_at, mask=output_in[:, None] & within, other=0.0)
        total = added_product(a, b, total, SWAPPED)
        x_at += STEP
        weight_at += STEP
        if SLICES > 1:
            total = settled(total)
            if (start + STEP) % length == 0:
                slices = slices + total
                total = tl.zeros_like(total)
    if SLICES > 1:
        total = slices + total
    if SWAPPED:
        total = total.T
    if BIASED:
        total = total + tl.load(bias + output, mask=output_in, other=0.0)[None, :]
    if GATED:
        total = gated(total, ROWS, WIDTH, ACTIVATION)
        output = at_width * (WIDTH // 2) + tl.arange(0, WIDTH // 2)
    store_outputs(total, row, output, rows, width, residual, residual_stride, out, out_stride, ADDED)


@triton.jit
def halves(total, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Returns the first and the second half of the columns."""
    return tl.split(tl.permute(tl.reshape(total, [ROWS, 2, WIDTH // 2]), [0, 2, 1]))


@triton.jit(do_not_specialize=["rows"])
def wide_linear_kernel(
    x,
    weight,
    bias,
    residual,
    out,
    rows,
    width,
    columns,
    residual_stride,
    out_stride,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    STEP: tl.constexpr,
    BIASED: tl.constexpr,
    ADDED: tl.constexpr,
    GATED: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PIECES: tl.constexpr,
):
    """Computes the same as `linear_kernel`, to the last bit, for many rows: x and weight are descriptors, by
    which the device copies whole tiles (TMA), and each program computes several tiles. The outputs of a tile
    are written in PIECES (1, 2 or 4): each passes through shared memory, and the registers would not hold the
    residual of a whole tile."""
    tiles = tl.cdiv(width * 2 if GATED else width, WIDTH)
    row_tiles = tl.cdiv(rows, ROWS)
    OUTPUTS: tl.constexpr = WIDTH // 2 if GATED else WIDTH
    for number in tl.range(tl.program_id(0), tiles * row_tiles, tl.num_programs(0), flatten=True):
        at_row, at_width = tile_at(number, row_tiles, tiles)
        first_row = at_row * ROWS
        total = tl.zeros([ROWS, WIDTH], tl.float32)
        for start in range(0, columns, STEP):
            total = tl.dot(x.load([first_row, start]), weight.load([at_width * WIDTH, start]).T, total)
        row = first_row + tl.arange(0, ROWS)
        if BIASED:
            place = at_width * WIDTH + tl.arange(0, WIDTH)
            total = (
                total
                + tl.load(bias + place, mask=place < (width * 2 if GATED else width), other=0.0)[None, :]
            )
        if GATED:
            total = gated(total, ROWS, WIDTH, ACTIVATION)
        output = at_width * OUTPUTS + tl.arange(0, OUTPUTS // PIECES)
        about = rows, width, residual, residual_stride, out, out_stride, ADDED
        if PIECES == 1:
            store_outputs(total, row, output, *about)
        else:
            left, right = halves(total, ROWS, OUTPUTS)
            if PIECES == 2:
                store_outputs(left, row, output, *about)
                store_outputs(right, row, output + OUTPUTS // 2, *about)
            else:
                first, second = halves(left, ROWS, OUTPUTS // 2)
                store_outputs(first, row, output, *about)
                store_outputs(second, row, output + OUTPUTS // 4, *about)
                first, second = halves(right, ROWS, OUTPUTS // 2)
                store_outputs(first, row, output + OUTPUTS // 2, *about)
                store_outputs(second, row, output + OUTPUTS // 2 + OUTPUTS // 4, *about)
