"""Kernels that treat each row by itself: embedding, norms, rotation, activations, gathering rows."""

from __future__ import annotations

import triton
import triton.language as tl

from glassloop.ops.torch import interpreted

COMPILED = tl.constexpr(not interpreted())


@triton.jit
def let_next_start(EARLY: tl.constexpr):
    """Lets the next kernel be launched, if kernels are launched EARLY. The first statement of a kernel."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def wait_for_previous(EARLY: tl.constexpr):
    """Waits until the previous kernel has ended, if this one was launched EARLY. What no kernel of the
    program writes (weights, the numbers of the batch) can be read before."""
    if EARLY:
        tl.extra.cuda.gdc_wait()


@triton.jit
def settled(x):
    """Returns the result of a product once it is computed. Triton does not wait for a product that is read
    inside of an `if` (seen in 3.6 and 3.7), but for one that an instruction reads, though it does nothing."""
    if COMPILED:
        x = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1)
    return x


@triton.jit
def embed_kernel(ids, table, out, width, BLOCK: tl.constexpr):
    """Copies row `ids[row]` of a table of half floats to `out` in float32."""
    row = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    token = tl.load(ids + row).to(tl.int64)
    values = tl.load(table + token * width + columns, mask=columns < width, other=0.0)
    tl.store(out + row.to(tl.int64) * width + columns, values.to(tl.float32), mask=columns < width)


@triton.jit
def take_kernel(x, rows, out, width, x_stride, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    """Copies row `rows[i]` of x to row i of `out`, in float32."""
    let_next_start(EARLY)
    wait_for_previous(EARLY)
    row = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    source = tl.load(rows + row).to(tl.int64)
    values = tl.load(x + source * x_stride + columns, mask=columns < width, other=0.0)
    tl.store(out + row.to(tl.int64) * width + columns, values.to(tl.float32), mask=columns < width)


@triton.jit
def moments(x, inside, width, eps, CENTRED: tl.constexpr):
    """Returns what to subtract from x (its mean, with CENTRED; else zero) and what to multiply by: one over
    the root of the mean square of the difference. Sums are float64, the rest is float32; x has to be zero
    where it is not inside."""
    wide = x.to(tl.float64)
    centre = tl.full([], 0.0, tl.float64)
    if CENTRED:
        centre = tl.sum(wide, 0) / width
        wide = tl.where(inside, wide - centre, 0.0)
    mean = tl.div_rn(tl.sum(wide * wide, 0).to(tl.float32), width.to(tl.float32))
    return centre.to(tl.float32), tl.div_rn(1.0, tl.sqrt_rn(mean + eps))


@triton.jit
def scaled(x, centre, factor, weight, bias, CENTRED: tl.constexpr):
    """Returns x normalized by its moments, times a weight and, if CENTRED, plus a bias."""
    x = (x - centre) * factor * weight
    if CENTRED:
        x = x + bias
    return x


@triton.jit
def norm_kernel(
    x,
    weight,
    bias,
    out,
    width,
    x_stride,
    eps,
    BLOCK: tl.constexpr,
    CENTRED: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Normalizes each row: by its root mean square or, if CENTRED, around its mean (layer norm). A program
    computes a whole row."""
    let_next_start(EARLY)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    weights = tl.load(weight + columns, mask=inside, other=0.0)
    biases = tl.load(bias + columns, mask=inside, other=0.0)
    wait_for_previous(EARLY)
    values = tl.load(x + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    centre, factor = moments(values, inside, width, eps, CENTRED)
    values = scaled(values, centre, factor, weights, biases, CENTRED)
    tl.store(out + row * width + columns, values.to(out.dtype.element_ty), mask=inside)


@triton.jit
def head_constants(
    weight,
    bias,
    cosines,
    sines,
    position,
    head_dim,
    half,
    BLOCK: tl.constexpr,
    NORM: tl.constexpr,
    ROTATED: tl.constexpr,
):
    """Returns what the heads of a row are computed with, by column: weights and biases of the norm, those of
    the column that it turns with, cosines and sines."""
    columns = tl.arange(0, BLOCK)
    inside, turned = columns < head_dim, columns < 2 * half
    partner = partners(columns, half)
    nothing = tl.zeros([BLOCK], tl.float32)
    weights, others_weights, biases, others_biases = nothing, nothing, nothing, nothing
    cosine, sine = nothing, nothing
    if NORM:
        weights = tl.load(weight + columns, mask=inside, other=0.0)
        others_weights = tl.load(weight + partner, mask=turned, other=0.0)
    if NORM == 2:
        biases = tl.load(bias + columns, mask=inside, other=0.0)
        others_biases = tl.load(bias + partner, mask=turned, other=0.0)
    if ROTATED:
        angle = position.to(tl.int64) * half + tl.where(columns < half, columns, columns - half)
        cosine = tl.load(cosines + angle, mask=turned, other=1.0)
        sine = tl.load(sines + angle, mask=turned, other=0.0)
    return weights, biases, others_weights, others_biases, cosine, sine


@triton.jit
def partners(columns, half):
    """Returns each column's rotary partner: the column half the rotary width away."""
    return tl.where(columns < half, columns + half, columns - half)


@triton.jit
def head_values(
    source,
    there,
    weights,
    biases,
    others_weights,
    others_biases,
    cosine,
    sine,
    head_dim,
    half,
    eps,
    BLOCK: tl.constexpr,
    NORM: tl.constexpr,
    ROTATED: tl.constexpr,
):
    """Returns some heads of one row, [heads, columns], normalized (NORM: 0 not, 1 by root mean square, 2
    around its mean) and, if ROTATED, rotated. `source` has the places where they begin, `there` whether they
    exist."""
    columns = tl.arange(0, BLOCK)
    inside = there[:, None] & (columns < head_dim)[None, :]
    values = tl.load(source[:, None] + columns[None, :], mask=inside, other=0.0).to(tl.float32)
    if NORM:
        wide = values.to(tl.float64)
        centre = tl.zeros_like(tl.sum(wide, 1))
        if NORM == 2:
            centre = tl.sum(wide, 1) / head_dim
            wide = tl.where(inside, wide - centre[:, None], 0.0)
        factor = 1.0 / tl.sqrt(tl.sum(wide * wide, 1) / head_dim + eps)
        centre, factor = centre.to(tl.float32)[:, None], factor.to(tl.float32)[:, None]
        values = scaled(values, centre, factor, weights[None, :], biases[None, :], NORM == 2)
    if ROTATED:
        turned = there[:, None] & (columns < 2 * half)[None, :]
        place = source[:, None] + partners(columns, half)[None, :]
        others = tl.load(place, mask=turned, other=0.0).to(tl.float32)
        if NORM:
            others = scaled(
                others, centre, factor, others_weights[None, :], others_biases[None, :], NORM == 2
            )
        sign = tl.where(columns < half, -1.0, 1.0)[None, :]
        values = tl.where(turned, values * cosine[None, :] + sign * (others * sine[None, :]), values)
    return values


@triton.jit
def heads_kernel(
    x,
    weight,
    bias,
    cosines,
    sines,
    positions,
    out,
    x_stride,
    out_stride,
    head_dim,
    half,
    eps,
    BLOCK: tl.constexpr,
    NORM: tl.constexpr,
    ROTATED: tl.constexpr,
):
    """Normalizes and rotates the heads of each row, for programs that return queries."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1) + tl.arange(0, 1)
    position = tl.load(positions + row)
    weights, biases, others_weights, others_biases, cosine, sine = head_constants(
        weight, bias, cosines, sines, position, head_dim, half, BLOCK, NORM, ROTATED
    )
    values = head_values(
        x + row * x_stride + head * head_dim, head >= 0,
        weights, biases, others_weights, others_biases, cosine, sine, head_dim, half, eps,
        BLOCK, NORM, ROTATED,
    )  # fmt: skip
    columns = tl.arange(0, BLOCK)
    place = out + row * out_stride + (head * head_dim)[:, None] + columns[None, :]
    tl.store(place, values.to(out.dtype.element_ty), mask=(columns < head_dim)[None, :])


@triton.jit(do_not_specialize=["group"])
def keep_kernel(
    x,
    queries,
    weight,
    bias,
    key_weight,
    key_bias,
    cosines,
    sines,
    positions,
    slots,
    row_table,
    row_stride,
    tables,
    keys,
    values,
    x_stride,
    query_stride,
    heads,
    kv_heads,
    page_stride,
    layer_offset,
    group,
    head_dim,
    half,
    eps,
    PAGE: tl.constexpr,
    BLOCK: tl.constexpr,
    HEADS: tl.constexpr,
    NORM: tl.constexpr,
    ROTATED: tl.constexpr,
    REACHING: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Normalizes and rotates queries and keys. Queries are written to an array of their own, keys and values
    to the page of their slot, which is their position unless REACHING. A program computes HEADS heads of
    queries, or as many of keys and their values."""
    let_next_start(EARLY)
    row = tl.program_id(0).to(tl.int64)
    position = tl.load(positions + row)
    columns = tl.arange(0, BLOCK)
    inside = (columns < head_dim)[None, :]
    query_programs = tl.cdiv(heads, HEADS)
    source = x + row * x_stride
    if tl.program_id(1) < query_programs:
        head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
        weights, biases, others_weights, others_biases, cosine, sine = head_constants(
            weight, bias, cosines, sines, position, head_dim, half, BLOCK, NORM, ROTATED
        )
        wait_for_previous(EARLY)
        query = head_values(
            source + head * head_dim, head < heads,
            weights, biases, others_weights, others_biases, cosine, sine, head_dim, half, eps,
            BLOCK, NORM, ROTATED,
        )  # fmt: skip
        target = queries + row * query_stride + (head * head_dim)[:, None] + columns[None, :]
        tl.store(target, query.to(queries.dtype.element_ty), mask=(head < heads)[:, None] & inside)
    else:
        head = (tl.program_id(1) - query_programs) * HEADS + tl.arange(0, HEADS)
        weights, biases, others_weights, others_biases, cosine, sine = head_constants(
            key_weight, key_bias, cosines, sines, position, head_dim, half, BLOCK, NORM, ROTATED
        )
        table = tables + tl.load(row_table + row) + group * tl.load(row_stride + row)
        slot = position
        if REACHING:
            slot = tl.load(slots + row)
        page = tl.load(table + slot // PAGE).to(tl.int64)
        wait_for_previous(EARLY)
        key_source = source + (heads + head) * head_dim
        key = head_values(
            key_source, head < kv_heads,
            weights, biases, others_weights, others_biases, cosine, sine, head_dim, half, eps,
            BLOCK, NORM, ROTATED,
        )  # fmt: skip
        stored = (head < kv_heads)[:, None] & inside
        place = page * page_stride + layer_offset + (slot % PAGE) * head_dim
        place = place + (head * (PAGE * head_dim))[:, None] + columns[None, :]
        tl.store(keys + place, key.to(keys.dtype.element_ty), mask=stored)
        value = tl.load(key_source[:, None] + kv_heads * head_dim + columns[None, :], mask=stored, other=0.0)
        tl.store(values + place, value.to(values.dtype.element_ty), mask=stored)


@triton.jit
def tanh(x):
    """Returns the hyperbolic tangent, computed with exp."""
    return 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0)


@triton.jit
def activated(x, KIND: tl.constexpr):
    """Returns the activation of x in float32; KIND is an index of `ACTIVATIONS`."""
    if KIND == 0:  # gelu
        return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    if KIND == 1:  # gelu_tanh
        return 0.5 * x * (1.0 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
    if KIND == 2:  # silu
        return x / (1.0 + tl.exp(-x))
    if KIND == 4:  # sigmoid
        return 1.0 / (1.0 + tl.exp(-x))
    if KIND == 5:  # relu2
        return tl.maximum(x, 0.0) * tl.maximum(x, 0.0)
    # relu
    return tl.maximum(x, 0.0)


ACTIVATIONS = ("gelu", "gelu_tanh", "silu", "relu", "sigmoid", "relu2")


# add: x + y; scale: x * factor; softcap: factor * tanh(x / factor); activate: activated(x);
# gate: activated(x) * y; cast: x.
ELEMENTWISE = ("add", "scale", "softcap", "activate", "gate", "cast")


@triton.jit
def elementwise_kernel(
    x,
    y,
    out,
    width,
    x_stride,
    y_stride,
    factor,
    SPACING: tl.constexpr,
    KIND: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Computes one of the operations in `ELEMENTWISE`; KIND is its index there. The columns of x and y are
    SPACING apart."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    values = tl.load(x + row * x_stride + columns * SPACING, mask=inside, other=0.0).to(tl.float32)
    if KIND == 0 or KIND == 4:
        others = tl.load(y + row * y_stride + columns * SPACING, mask=inside, other=0.0).to(tl.float32)
    if KIND == 0:
        values = values + others
    elif KIND == 1:
        values = values * factor
    elif KIND == 2:
        values = factor * tanh(values / factor)
    elif KIND == 3:
        values = activated(values, ACTIVATION)
    elif KIND == 4:
        values = activated(values, ACTIVATION) * others
    tl.store(out + row * width + columns, values.to(out.dtype.element_ty), mask=inside)
