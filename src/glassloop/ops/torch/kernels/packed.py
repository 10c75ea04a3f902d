"""Packed matrices (`PackedMatrix` of packed.py): their values in half precision."""

from __future__ import annotations

import triton
import triton.language as tl

from glassloop.ops.torch.kernels.pointwise import COMPILED

CHUNK = tl.constexpr(128)  # columns
UNIT = tl.constexpr(8)  # rows


@triton.jit
def values_at(
    words,
    scales,
    table,
    row,
    column,
    columns,
    inside,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    MIDDLE: tl.constexpr,
    TABLE: tl.constexpr,
    FLOAT: tl.constexpr,
):
    """Returns the values at rows (as they are stored) and columns: scale * code + middle, rounded once, to
    half precision; of small floats, scale * float, rounded to float32 and then to half precision. In Triton's
    interpreter, which has no half precision, they are float32."""
    EACH: tl.constexpr = 2 if MIDDLE or FLOAT else 1
    GROUPS: tl.constexpr = CHUNK // GROUP
    CHUNK_BYTES: tl.constexpr = CHUNK * BITS + UNIT * GROUPS * EACH * 2
    step, lane, number = column % CHUNK // 16, row % UNIT * 4 + column % 16 // 4, column % 4
    chunk = row // UNIT * (columns // CHUNK) + column // CHUNK
    if BITS == 8:
        place = step // 4 * 128 + lane * 4 + step % 4
    else:
        place = lane * 4 + step // 2
    word = tl.load(words + chunk * (CHUNK_BYTES // 4) + place, mask=inside, other=0)
    if BITS == 8:
        code = (word << (24 - number % 2 * 16 - number // 2 * 8)) >> 24
    else:
        code = (word >> (step % 2 * 8 + number % 2 * 16 + number // 2 * 4)) & 15
        if TABLE:
            code = tl.load(table + code, mask=inside, other=0)
        else:
            code -= 8
    if FLOAT:
        place = chunk * (CHUNK_BYTES // 4) + CHUNK * BITS // 4 + row % UNIT
        scale = tl.load(words + place, mask=inside, other=0).to(tl.float32, bitcast=True)
        # The bits of E4M3 within those of a float32 are its value times 2 ** -120, exactly.
        bits = ((code & 127) << 20) | ((code & 128) << 24)
        small = bits.to(tl.float32, bitcast=True) * 1.329227995784916e36
        value = small * scale
        if COMPILED:
            value = value.to(tl.bfloat16)
        return value
    place = chunk * (CHUNK_BYTES // 2) + CHUNK * BITS // 2
    place += (row % UNIT * GROUPS + column % CHUNK // GROUP) * EACH
    scale = half_at(scales + place, inside)
    middle = tl.full(scale.shape, -0.0, tl.float32)
    if MIDDLE:
        middle = half_at(scales + place + 1, inside)
    value = code.to(tl.float32)
    if COMPILED:
        value = tl.inline_asm_elementwise(
            "fma.rn.bf16 $0, $1, $2, $3;",
            "=h,h,h,h",
            [value.to(tl.bfloat16), scale.to(tl.bfloat16), middle.to(tl.bfloat16)],
            dtype=tl.bfloat16,
            is_pure=True,
            pack=1,
        )
    else:
        value = value * scale + middle
    return value


@triton.jit
def half_at(place, inside):
    """Returns the bfloat16 numbers whose bits are at some places of an array of int16, in float32."""
    return (tl.load(place, mask=inside, other=0).to(tl.int32) << 16).to(tl.float32, bitcast=True)


@triton.jit
def embed_packed_kernel(
    ids,
    words,
    scales,
    table,
    out,
    width,
    BLOCK: tl.constexpr,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    MIDDLE: tl.constexpr,
    TABLE: tl.constexpr,
    FLOAT: tl.constexpr,
):
    """Copies row `ids[row]` of a packed table to `out` in float32."""
    row = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    token = tl.load(ids + row).to(tl.int64)
    values = values_at(words, scales, table, token, columns, width, inside, BITS, GROUP, MIDDLE, TABLE, FLOAT)
    tl.store(out + row.to(tl.int64) * width + columns, values.to(tl.float32), mask=inside)


@triton.jit
def expand_kernel(
    words,
    scales,
    table,
    out,
    rows,
    columns,
    ROWS: tl.constexpr,
    STEP: tl.constexpr,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    MIDDLE: tl.constexpr,
    TABLE: tl.constexpr,
    FLOAT: tl.constexpr,
    MATRICES: tl.constexpr,
):
    """Writes a packed matrix in half precision."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    stored = row % MATRICES * (rows // MATRICES) + row // MATRICES
    column = tl.program_id(1) * STEP + tl.arange(0, STEP)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    at_row, at_column = stored[:, None], column[None, :]
    value = values_at(
        words, scales, table, at_row, at_column, columns, inside, BITS, GROUP, MIDDLE, TABLE, FLOAT
    )
    place = out + (row * columns)[:, None] + column[None, :]
    tl.store(place, value.to(out.dtype.element_ty), mask=inside)
