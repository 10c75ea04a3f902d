"""Attention over pages. The keys of a branch are divided into units of UNIT slots from slot 0 on.
Within a unit, blocks of BLOCK keys are added in order (online softmax); units are merged in ascending order.
A block or unit that a query does not see leaves its sums unchanged to the last bit. So the result does not
depend on which are skipped, how many queries share a program, or how many programs compute the units.
"""

from __future__ import annotations

import triton
import triton.language as tl

from glassloop.ops.torch.kernels.pointwise import (
    head_constants,
    head_values,
    let_next_start,
    settled,
    tanh,
    wait_for_previous,
)

NOTHING = tl.constexpr(-1e30)  # the maximum over no keys; minus infinity would make NaN
LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def block_sums(
    most,
    sums,
    mixed,
    query,
    keys,
    values,
    table,
    page_stride,
    place,
    head_dim,
    start,
    last,
    slot,
    reach,
    scale,
    softcap,
    window,
    PAGE: tl.constexpr,
    UNIT: tl.constexpr,
    BLOCK: tl.constexpr,
    HEAD: tl.constexpr,
    CAPPED: tl.constexpr,
    WINDOWED: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """Adds the keys of a block to the sums of `unit_sums`, which begin anew with the first block of a unit.
    If WHOLE, every query sees all of them, and nothing is masked, which changes no bit."""
    is_first = start % UNIT == 0
    most = tl.where(is_first, NOTHING, most)
    column = tl.arange(0, HEAD)
    ones = tl.full([BLOCK, 16], 1.0, tl.float32).to(query.dtype)
    key_at = start + tl.arange(0, BLOCK)
    there = key_at < last
    inside = (column < head_dim)[None, :]
    if WHOLE:
        page = tl.load(table + key_at // PAGE).to(tl.int64)
    else:
        page = tl.load(table + key_at // PAGE, mask=there, other=0).to(tl.int64)
        inside = there[:, None] & inside
    at = (page * page_stride + place + (key_at % PAGE) * head_dim)[:, None] + column[None, :]
    key = tl.load(keys + at, mask=inside, other=0.0)
    value = tl.load(values + at, mask=inside, other=0.0)
    score = tl.dot(query, key.T) * scale
    if CAPPED:
        score = softcap * tanh(score / softcap)
    score = score * LOG2E
    if WHOLE:
        higher = tl.maximum(most, tl.max(score, 1))
        weight = tl.exp2(score - higher[:, None]).to(query.dtype)
    else:
        seen = (key_at[None, :] < reach[:, None]) & there[None, :]
        if WINDOWED:
            seen = seen & (key_at[None, :] > slot[:, None] - window)
        score = tl.where(seen, score, NOTHING)
        higher = tl.maximum(most, tl.max(score, 1))
        weight = tl.where(seen, tl.exp2(score - higher[:, None]), 0.0).to(query.dtype)
    kept = tl.exp2(most - higher)
    sums = tl.dot(weight, ones, tl.where(is_first, 0.0, sums * kept[:, None]))
    mixed = tl.dot(weight, value, tl.where(is_first, 0.0, mixed * kept[:, None]))
    return higher, sums, mixed


@triton.jit
def unit_sums(
    query,
    keys,
    values,
    table,
    page_stride,
    place,
    head_dim,
    first,
    whole,
    last,
    slot,
    reach,
    scale,
    softcap,
    window,
    PAGE: tl.constexpr,
    UNIT: tl.constexpr,
    BLOCK: tl.constexpr,
    QUERIES: tl.constexpr,
    HEAD: tl.constexpr,
    CAPPED: tl.constexpr,
    WINDOWED: tl.constexpr,
):
    """Returns for the keys `first` to `last` the maximum score of each query, the sum of the weights (in each
    of 16 columns) and the weighted sum of the values. Every query sees all keys before `whole`, which is a
    multiple of BLOCK."""
    most, sums, mixed = no_keys(QUERIES, HEAD)
    for start in range(first, whole, BLOCK):
        most, sums, mixed = block_sums(
            most, sums, mixed, query, keys, values, table, page_stride, place, head_dim,
            start, last, slot, reach, scale, softcap, window,
            PAGE, UNIT, BLOCK, HEAD, CAPPED, WINDOWED, True,
        )  # fmt: skip
    for start in range(tl.maximum(first, whole), last, BLOCK):
        most, sums, mixed = block_sums(
            most, sums, mixed, query, keys, values, table, page_stride, place, head_dim,
            start, last, slot, reach, scale, softcap, window,
            PAGE, UNIT, BLOCK, HEAD, CAPPED, WINDOWED, False,
        )  # fmt: skip
    return most, sums, mixed


@triton.jit
def merged(most, sums, mixed, other_most, other_sums, other_mixed):
    """Returns the sums over the keys of two sets of units."""
    higher = tl.maximum(most, other_most)
    own, other = tl.exp2(most - higher), tl.exp2(other_most - higher)
    sums = sums * own[:, None] + other_sums * other[:, None]
    mixed = mixed * own[:, None] + other_mixed * other[:, None]
    return higher, sums, mixed


@triton.jit
def no_keys(QUERIES: tl.constexpr, HEAD: tl.constexpr):
    """Returns the sums of `unit_sums` over no keys."""
    most = tl.full([QUERIES], NOTHING, tl.float32)
    return most, tl.zeros([QUERIES, 16], tl.float32), tl.zeros([QUERIES, HEAD], tl.float32)


@triton.jit
def all_units(
    query,
    keys,
    values,
    table,
    page_stride,
    place,
    head_dim,
    first,
    whole,
    last,
    slot,
    reach,
    scale,
    softcap,
    window,
    PAGE: tl.constexpr,
    UNIT: tl.constexpr,
    BLOCK: tl.constexpr,
    QUERIES: tl.constexpr,
    HEAD: tl.constexpr,
    CAPPED: tl.constexpr,
    WINDOWED: tl.constexpr,
):
    """Returns the sums of `unit_sums` of all units from key `first` on, merged. Blocks of all units are in
    one loop, so that keys and values of the next block are loaded while one is added, across units too."""
    most, sums, mixed = no_keys(QUERIES, HEAD)
    unit_most, unit_sums, unit_mixed = no_keys(QUERIES, HEAD)
    for start in range(first, whole, BLOCK):
        unit_most, unit_sums, unit_mixed = block_sums(
            unit_most, unit_sums, unit_mixed, query, keys, values, table, page_stride, place, head_dim,
            start, last, slot, reach, scale, softcap, window,
            PAGE, UNIT, BLOCK, HEAD, CAPPED, WINDOWED, True,
        )  # fmt: skip
        unit_sums, unit_mixed = settled(unit_sums), settled(unit_mixed)
        if (start + BLOCK) % UNIT == 0:
            most, sums, mixed = merged(most, sums, mixed, unit_most, unit_sums, unit_mixed)
    for start in range(tl.maximum(first, whole), last, BLOCK):
        unit_most, unit_sums, unit_mixed = block_sums(
            unit_most, unit_sums, unit_mixed, query, keys, values, table, page_stride, place, head_dim,
            start, last, slot, reach, scale, softcap, window,
            PAGE, UNIT, BLOCK, HEAD, CAPPED, WINDOWED, False,
        )  # fmt: skip
        unit_sums, unit_mixed = settled(unit_sums), settled(unit_mixed)
        if (start + BLOCK) % UNIT == 0:
            most, sums, mixed = merged(most, sums, mixed, unit_most, unit_sums, unit_mixed)
    if tl.cdiv(last, BLOCK) * BLOCK % UNIT != 0:  # the last unit has fewer blocks
        most, sums, mixed = merged(most, sums, mixed, unit_most, unit_sums, unit_mixed)
    return most, sums, mixed


@triton.jit
def merged_units(partial, number, count, QUERIES: tl.constexpr, HEAD: tl.constexpr):
    """Returns the sums over units whose own sums lie one behind the other, from `number` on, merged in
    ascending order."""
    most, sums, mixed = no_keys(QUERIES, HEAD)
    index = tl.arange(0, QUERIES)
    for unit in range(count):
        base = partial + (number + unit).to(tl.int64) * QUERIES * (HEAD + 17)
        most, sums, mixed = merged(
            most,
            sums,
            mixed,
            tl.load(base + index),
            tl.load(base + QUERIES + index[:, None] * 16 + tl.arange(0, 16)[None, :]),
            tl.load(base + QUERIES * 17 + index[:, None] * HEAD + tl.arange(0, HEAD)[None, :]),
        )
    return most, sums, mixed


@triton.jit
def store_result(
    out, place, inside, most, sums, mixed, sinks, head, QUERIES: tl.constexpr, SHARING: tl.constexpr,
    SINKING: tl.constexpr,
):  # fmt: skip
    """Writes the weighted means of the values. If SINKING, each query head has the score of one more key,
    whose value is zero."""
    total = tl.max(sums, 1)  # the columns are equal
    if SINKING:
        sink = tl.load(sinks + head * SHARING + tl.arange(0, QUERIES) % SHARING) * LOG2E
        higher = tl.maximum(most, sink)
        kept = tl.exp2(most - higher)
        total = total * kept + tl.exp2(sink - higher)
        mixed = mixed * kept[:, None]
    result = mixed / tl.where(total > 0.0, total, 1.0)[:, None]
    tl.store(out + place, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def tile_places(
    query_stride, tile_row, tile_count, slots, reaches, head_dim, QUERIES, HEAD, SHARING, REACHING
):
    """Returns the queries of a tile: their offsets in the array, slots, how many slots they see, and the mask
    of the values that exist."""
    tile, head = tl.program_id(0), tl.program_id(1)
    number = tl.arange(0, QUERIES)
    row = tl.load(tile_row + tile) + number // SHARING
    is_query = number < tl.load(tile_count + tile) * SHARING
    place = row.to(tl.int64) * query_stride + (head * SHARING + number % SHARING) * head_dim
    column = tl.arange(0, HEAD)
    inside = is_query[:, None] & (column < head_dim)[None, :]
    slot = tl.load(slots + row, mask=is_query, other=-1)
    reach = slot + 1
    if REACHING:
        reach = tl.load(reaches + row, mask=is_query, other=0)
    return place[:, None] + column[None, :], slot, reach, inside


@triton.jit
def turned_heads(
    x,
    head,
    there,
    cosine,
    sine,
    head_dim,
    half,
    HEAD: tl.constexpr,
    ROTATED: tl.constexpr,
    KIND: tl.constexpr,
):
    """Returns some heads of a row, [heads, columns], rotated, in the type KIND."""
    none = tl.zeros([HEAD], tl.float32)
    values = head_values(
        x + head * head_dim, there, none, none, none, none, cosine, sine, head_dim, half, 0.0,
        HEAD, 0, ROTATED,
    )  # fmt: skip
    return values.to(KIND)


@triton.jit(do_not_specialize=["group", "window"])
def attend_kernel(
    queries,
    out,
    partial,
    arrived,
    slots,
    reaches,
    tile_row,
    tile_count,
    query_stride,
    head_dim,
    window,
    keys,
    values,
    row_table,
    row_stride,
    tables,
    page_stride,
    layer_offset,
    group,
    scale,
    softcap,
    x,
    cosines,
    sines,
    x_stride,
    half,
    sinks,
    PAGE: tl.constexpr,
    UNIT: tl.constexpr,
    BLOCK: tl.constexpr,
    QUERIES: tl.constexpr,
    HEAD: tl.constexpr,
    SHARING: tl.constexpr,
    CAPPED: tl.constexpr,
    WINDOWED: tl.constexpr,
    REACHING: tl.constexpr,
    SPLIT: tl.constexpr,
    KEEPING: tl.constexpr,
    ROTATED: tl.constexpr,
    SINKING: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Computes attention for the queries of a tile: adjacent rows of a branch, in the SHARING query heads of
    one key-value head. A query sees the slots up to its own or, if REACHING, as many as `reaches` says. If
    SPLIT, each program computes one unit, and the last one that is ready merges them, whichever it is:
    `arrived` counts them, and is 0 before and after. If REACHING, `merge_kernel` does, as there may be no
    unit. Without SPLIT, a program computes all units.

    If KEEPING, each tile has one row, and the kernel does what `keep_kernel` would have done for heads
    without a norm: x has the queries, keys and values of the rows; it rotates them, and the program that
    needs the key and the value of the row itself writes them to their page first."""
    let_next_start(EARLY)
    tile, head = tl.program_id(0), tl.program_id(1)
    place, slot, reach, inside = tile_places(
        query_stride, tile_row, tile_count, slots, reaches, head_dim, QUERIES, HEAD, SHARING, REACHING
    )
    row = tl.load(tile_row + tile)
    count = tl.load(tile_count + tile)
    table = tables + tl.load(row_table + row) + group * tl.load(row_stride + row)
    first = tl.load(slots + row)
    last = first + count
    whole = (first + 1) // BLOCK * BLOCK
    if REACHING:
        last = tl.max(reach, 0)
    if REACHING or WINDOWED:
        whole = 0
    begin = 0
    if WINDOWED:
        begin = tl.maximum(first - window + 1, 0) // UNIT
    end = tl.cdiv(last, UNIT)
    at = layer_offset + head * PAGE * head_dim
    if KEEPING:
        column, query_number = tl.arange(0, HEAD), tl.arange(0, QUERIES)
        _, _, _, _, cosine, sine = head_constants(
            x, x, cosines, sines, first, head_dim, half, HEAD, 0, ROTATED
        )
        page = tl.load(table + first // PAGE).to(tl.int64)
        own = (page * page_stride + at + (first % PAGE) * head_dim + column)[None, :]
        wait_for_previous(EARLY)
        source, kv_heads = x + row.to(tl.int64) * x_stride, tl.num_programs(1)
        query = turned_heads(
            source, head * SHARING + query_number % SHARING, query_number < SHARING,
            cosine, sine, head_dim, half, HEAD, ROTATED, keys.dtype.element_ty,
        )  # fmt: skip
        if not SPLIT or begin + tl.program_id(2) == end - 1:
            key_head = kv_heads * SHARING + head + tl.arange(0, 1)
            key = turned_heads(
                source, key_head, key_head >= 0, cosine, sine, head_dim, half, HEAD, ROTATED,
                keys.dtype.element_ty,
            )  # fmt: skip
            value = turned_heads(
                source, key_head + kv_heads, key_head >= 0, cosine, sine, head_dim, half, HEAD, False,
                values.dtype.element_ty,
            )  # fmt: skip
            tl.store(keys + own, key, mask=(column < head_dim)[None, :])
            tl.store(values + own, value, mask=(column < head_dim)[None, :])
            tl.debug_barrier()  # other threads of the program read them
    else:
        wait_for_previous(EARLY)
        query = tl.load(queries + place, mask=inside, other=0.0)
    if SPLIT:
        unit = begin + tl.program_id(2)
        if unit < end:
            most, sums, mixed = unit_sums(
                query, keys, values, table, page_stride, at, head_dim,
                unit * UNIT, tl.minimum((unit + 1) * UNIT, whole), tl.minimum((unit + 1) * UNIT, last),
                slot, reach, scale, softcap, window,
                PAGE, UNIT, BLOCK, QUERIES, HEAD, CAPPED, WINDOWED,
            )  # fmt: skip
            branch = tile * tl.num_programs(1) + head
            number = branch * tl.num_programs(2) + tl.program_id(2)
            base = partial + number.to(tl.int64) * QUERIES * (HEAD + 17)
            index = tl.arange(0, QUERIES)
            tl.store(base + index, most)
            tl.store(base + QUERIES + index[:, None] * 16 + tl.arange(0, 16)[None, :], sums)
            tl.store(base + QUERIES * 17 + index[:, None] * HEAD + tl.arange(0, HEAD)[None, :], mixed)
            if not REACHING:
                tl.debug_barrier()  # all threads have written
                if tl.atomic_add(arrived + branch, 1, sem="acq_rel") == end - begin - 1:
                    first_number = branch * tl.num_programs(2)
                    all_most, all_sums, all_mixed = merged_units(
                        partial, first_number, end - begin, QUERIES, HEAD
                    )
                    store_result(
                        out, place, inside, all_most, all_sums, all_mixed, sinks, head,
                        QUERIES, SHARING, SINKING,
                    )  # fmt: skip
                    tl.store(arrived + branch, 0)
    else:
        most, sums, mixed = all_units(
            query, keys, values, table, page_stride, at, head_dim, begin * UNIT, whole, last,
            slot, reach, scale, softcap, window,
            PAGE, UNIT, BLOCK, QUERIES, HEAD, CAPPED, WINDOWED,
        )  # fmt: skip
        store_result(out, place, inside, most, sums, mixed, sinks, head, QUERIES, SHARING, SINKING)


@triton.jit(do_not_specialize=["window", "units"])
def merge_kernel(
    queries,
    out,
    partial,
    slots,
    reaches,
    tile_row,
    tile_count,
    query_stride,
    head_dim,
    window,
    units,
    sinks,
    UNIT: tl.constexpr,
    QUERIES: tl.constexpr,
    HEAD: tl.constexpr,
    SHARING: tl.constexpr,
    WINDOWED: tl.constexpr,
    SINKING: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Merges the units that `attend_kernel` has computed with SPLIT and REACHING, in ascending order."""
    let_next_start(EARLY)
    tile, head = tl.program_id(0), tl.program_id(1)
    place, _, reach, inside = tile_places(
        query_stride, tile_row, tile_count, slots, reaches, head_dim, QUERIES, HEAD, SHARING, True
    )
    first = tl.load(slots + tl.load(tile_row + tile))
    begin = 0
    if WINDOWED:
        begin = tl.maximum(first - window + 1, 0) // UNIT
    end = tl.cdiv(tl.max(reach, 0), UNIT)
    wait_for_previous(EARLY)
    number = (tile * tl.num_programs(1) + head) * units
    most, sums, mixed = merged_units(partial, number, end - begin, QUERIES, HEAD)
    store_result(out, place, inside, most, sums, mixed, sinks, head, QUERIES, SHARING, SINKING)
