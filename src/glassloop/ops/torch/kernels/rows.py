"""Kernels that look through rows of logits for what choosing a token needs: the highest logits, sums over
all of them, and the tokens that luck may let win.

A line is one choice: a row of logits, and how to choose from it. What is found for it lies in one piece of
memory, in the layout of `gl_found` (ops/native/choosing.h), and C chooses from that. Sums have the order, and
luck the operations, that the native op set has, so both find the same bits.

If the rules of a choice begin with edits (penalties, biases, masks: rules about single tokens), it has two
lines: one for the row as the model gave it, without luck, and one for a copy of the row after the edits.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Of an array of 64-bit numbers, for each line: the row, the position, a `gl_request`, its first rules after
# the edits, and the line whose token it predicts: itself; -1 for a row before its edits; for one after them,
# the line of the row before them. The fields of a `gl_request` that kernels do not read have, for a row after
# its edits, the row before them, and where the edits begin.
MOST_RULES = tl.constexpr(6)
LINE = tl.constexpr(2 + 7 + 5 * 6 + 1)
ROW, POSITION, HEAD, SCALE, SOURCE, RULE_COUNT, BRANCH, LUCKY, EDITS = (tl.constexpr(n) for n in range(9))
RULES, RULE, OF = tl.constexpr(9), tl.constexpr(5), tl.constexpr(39)
ACTION, AMOUNT = tl.constexpr(0), tl.constexpr(2)
# Edits are 64-bit numbers too: where the bits of the tokens that are kept begin (0: all are), how many edits
# follow, and for each its action, how many ids, the amount, where the ids begin, and where the factors of the
# amount do (0: there are none). Places are counted from the first of these numbers.
KEPT, EDIT_COUNT, FIRST_EDIT = (tl.constexpr(place) for place in range(3))
EDIT, EDIT_IDS, EDIT_NUMBERS = tl.constexpr(5), tl.constexpr(3), tl.constexpr(4)
# Numbers of `enum gl_action`.
RULE_LESS, RULE_REMOVE = tl.constexpr(1), tl.constexpr(2)
RULE_SCALE, RULE_FIRST, RULE_MASS, RULE_SHARE, RULE_PROBABILITY = (tl.constexpr(n) for n in range(4, 9))
# Places of the fields of `gl_found` in 32-bit numbers, and of its bound in doubles.
COUNT, OTHERS, WINNER, RANK, MOST, LEAST = (tl.constexpr(place) for place in range(6))
BOUND, OWN, HEADER = tl.constexpr(3), tl.constexpr(8), tl.constexpr(10)
PART = tl.constexpr(4096)  # logits that are summed on their own

_MOST_FLOAT = tl.constexpr(3.4028234663852886e38)
_MAGIC = tl.constexpr(6755399441055744.0 + 1023)


@triton.jit
def normal_log(x):
    """Returns the logarithm of normal positive doubles: `gl_normal_log` of ops/native/exact.h."""
    bits = x.to(tl.int64, bitcast=True)
    exponent = ((bits >> 52) & 0x7FF) - 1022
    fraction = ((bits & 0x000FFFFFFFFFFFFF) | (1022 << 52)).to(tl.float64, bitcast=True)
    low = fraction < 0.7071067811865476
    f = tl.where(low, fraction + fraction, fraction) - 1.0
    k = (exponent - low.to(tl.int64)).to(tl.float64)
    s = f / (2.0 + f)
    z = s * s
    w = z * z
    even = w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01))
    odd = z * (
        6.666666666666735130e-01
        + w * (2.857142874366239149e-01 + w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01))
    )
    half = 0.5 * f * f
    return k * 6.93147180369123816490e-01 - (
        (half - (s * (half + (even + odd)) + k * 1.90821492927058770002e-10)) - f
    )


@triton.jit
def mixed(x):
    """Returns the hash of 64-bit numbers: `mix` of ops/exact.py."""
    x = (x ^ (x >> 30)) * tl.full([], 0xBF58476D1CE4E5B9, tl.uint64)
    x = (x ^ (x >> 27)) * tl.full([], 0x94D049BB133111EB, tl.uint64)
    return x ^ (x >> 31)


@triton.jit
def key_of(line):
    """Returns the key of the luck at the position of a line."""
    golden = tl.full([], 0x9E3779B97F4A7C15, tl.uint64)
    return mixed(tl.load(line + BRANCH).to(tl.uint64) + golden + tl.load(line + POSITION).to(tl.uint64))


@triton.jit
def uniform_bits(key, ids):
    """Returns the upper 52 bits of the hash of each id: docs/luck.md."""
    golden = tl.full([], 0x9E3779B97F4A7C15, tl.uint64)
    return (mixed(key + (ids + 1).to(tl.uint64) * golden) >> 12).to(tl.int64)


@triton.jit
def unlucky_share(bits):
    """Returns the share of tokens that have more luck than one with these bits, in float32."""
    return ((4503599627370496 - bits).to(tl.float32) - 0.5) * 2.220446049250313e-16


@triton.jit
def rough_luck(bits):
    """Returns luck in float32, to about six digits."""
    share = unlucky_share(bits)
    # -log(1 - share), of which a small share would lose the digits.
    tail = tl.where(share < 0.01, share * (1.0 + share * (0.5 + share * 0.3333333)), -tl.log(1.0 - share))
    return -tl.log(tail)


@triton.jit
def luck_of(bits):
    """Returns Gumbel noise from the bits of a hash."""
    uniform = (bits.to(tl.float64) + 0.5) * 2.220446049250313e-16
    return -normal_log(-normal_log(uniform))


@triton.jit
def scale_of(line):
    return tl.load(line + SCALE).to(tl.float64, bitcast=True)


@triton.jit(do_not_specialize=["first"])
def copy_kernel(logits, edited, lines, words, first, stride, width, BLOCK: tl.constexpr):
    """Copies the rows of the lines from `first` on, without the tokens outside the masks of their edits.
    `words` are the lines as 32-bit numbers."""
    number = tl.program_id(0).to(tl.int64)
    line = lines + (first + number) * LINE
    ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = ids < width
    x = tl.load(logits + tl.load(line + SOURCE) * stride + ids, mask=inside, other=0.0)
    edits = tl.load(line + EDITS)
    kept = tl.load(lines + edits + KEPT)
    if kept != 0:
        word = tl.load(words + (edits + kept) * 2 + ids // 32, mask=inside, other=0)
        x = tl.where(((word >> (ids % 32)) & 1) != 0, x, float("-inf"))
    tl.store(edited + number * stride + ids, x, mask=inside)


@triton.jit(do_not_specialize=["first"])
def edit_kernel(edited, lines, words, first, stride, BLOCK: tl.constexpr):
    """Changes and removes single tokens of the rows that `copy_kernel` has copied, one edit after another: as
    `moved` of ops/native/candidates.c, at a scale of 1."""
    number = tl.program_id(0).to(tl.int64)
    edits = tl.load(lines + (first + number) * LINE + EDITS)
    row = edited + number * stride
    for index in range(tl.load(lines + edits + EDIT_COUNT).to(tl.int32)):
        edit = lines + edits + FIRST_EDIT + index * EDIT
        action, count = tl.load(edit + ACTION).to(tl.int32), tl.load(edit + 1).to(tl.int32)
        amount = tl.load(edit + AMOUNT).to(tl.float64, bitcast=True)
        listed = words + (edits + tl.load(edit + EDIT_IDS)) * 2
        factors = tl.load(edit + EDIT_NUMBERS)
        for start in range(0, count, BLOCK):
            place = start + tl.arange(0, BLOCK)
            inside = place < count
            ids = tl.load(listed + place, mask=inside, other=0)
            before = tl.load(row + ids, mask=inside, other=0.0)
            bits = tl.load(lines + edits + factors + place, mask=inside & (factors != 0), other=0)
            less = tl.where(factors != 0, amount * bits.to(tl.float64, bitcast=True), amount)
            logit = before.to(tl.float64)
            divided = tl.where(logit >= 0, logit / amount, logit * amount)
            after = tl.where(action == RULE_LESS, logit - less, divided)
            after = tl.minimum(tl.maximum(after, -_MOST_FLOAT), _MOST_FLOAT).to(tl.float32)
            removed = (before == float("-inf")) | (action == RULE_REMOVE)
            tl.store(row + ids, tl.where(removed, float("-inf"), after), mask=inside)
        # The next edit may be about the same tokens, and other threads read them.
        tl.debug_barrier()


@triton.jit
def row_of(logits, edited, line, number, stride):
    """Returns the address of the row of a line."""
    of = tl.load(line + OF)
    return tl.where((of < 0) | (of == number), logits, edited) + tl.load(line + ROW) * stride


@triton.jit
def maxima_kernel(
    logits,
    edited,
    lines,
    maxima,
    places,
    stride,
    width,
    GROUPS: tl.constexpr,
    SOME: tl.constexpr,
    STEPS: tl.constexpr,
):
    """Finds the highest logit of each group and, if luck decides, the id with about the highest score (-1:
    there is none). Group g has the ids g, g + GROUPS, g + 2 GROUPS, ... so that tokens that lie together, and
    are often likely together, are in different groups."""
    number, groups = tl.program_id(0).to(tl.int64), tl.program_id(1) * SOME + tl.arange(0, SOME)
    line = lines + number * LINE
    row = row_of(logits, edited, line, number, stride)
    lucky = tl.load(line + LUCKY) != 0
    key, scale = key_of(line), scale_of(line).to(tl.float32)
    most = tl.full([SOME], float("-inf"), tl.float32)
    best = tl.full([SOME], float("-inf"), tl.float32)
    at = tl.full([SOME], -1, tl.int32)
    for first in range(0, width, GROUPS * STEPS):
        ids = first + tl.arange(0, STEPS)[:, None] * GROUPS + groups[None, :]
        x = tl.load(row + ids, mask=ids < width, other=float("-inf"))
        x = tl.where(x == x, x, float("-inf"))
        most = tl.maximum(most, tl.max(x, 0))
        if lucky:
            score = x * scale + rough_luck(uniform_bits(key, ids.to(tl.int64)))
            highest = tl.max(score, 0)
            place = first + tl.argmax(score, 0) * GROUPS + groups
            at = tl.where(highest > best, place, at)
            best = tl.where(highest > best, highest, best)
    tl.store(maxima + number * GROUPS + groups, most)
    tl.store(places + number * GROUPS + groups, at)


@triton.jit
def ordered(x):
    """Returns integers in the order of float32 numbers."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def least_reaching(order, weights, enough):
    """Returns the largest integer such that those that reach it have enough weight together, built bit by
    bit; the smallest one if all together have less."""
    least = tl.full([], -2147483648, tl.int32)
    least = tl.where(tl.sum(tl.where(order >= 0, weights, 0), 0) >= enough, tl.full([], 0, tl.int32), least)
    for bit in tl.static_range(30, -1, -1):
        more = least | (1 << bit)
        least = tl.where(tl.sum(tl.where(order >= more, weights, 0), 0) >= enough, more, least)
    return least


@triton.jit
def bounds_kernel(
    logits, edited, lines, maxima, places, ints, floats, doubles, stride, found_bytes, GROUPS: tl.constexpr
):
    """Finds the highest logit of a line, a logit that at least as many as its head reach, and a score that
    the second in the race reaches: that of two of the groups' luckiest tokens."""
    number, groups = tl.program_id(0).to(tl.int64), tl.arange(0, GROUPS)
    line = lines + number * LINE
    x = tl.load(maxima + number * GROUPS + groups)
    head, scale = tl.load(line + HEAD).to(tl.int32), scale_of(line)
    least = least_reaching(ordered(x), tl.full([GROUPS], 1, tl.int32), head)
    least = tl.where(least < 0, least ^ 0x7FFFFFFF, least).to(tl.float32, bitcast=True)
    bound = tl.full([], float("inf"), tl.float64)
    if tl.load(line + LUCKY) != 0:
        ids = tl.load(places + number * GROUPS + groups).to(tl.int64)
        row = row_of(logits, edited, line, number, stride)
        own = tl.load(row + ids, mask=ids >= 0, other=float("-inf"))
        score = own.to(tl.float64) * scale + luck_of(uniform_bits(key_of(line), ids))
        first = tl.argmax(score, 0)
        bound = tl.max(tl.where(groups == first, float("-inf"), score), 0)
    ints += number * (found_bytes // 4)
    floats += number * (found_bytes // 4)
    tl.store(ints + COUNT, 0)
    tl.store(ints + OTHERS, 0)
    tl.store(ints + WINNER, -1)
    tl.store(ints + RANK, 0)
    tl.store(floats + MOST, tl.max(x, 0))
    tl.store(floats + LEAST, least)
    tl.store(doubles + number * (found_bytes // 8) + BOUND, bound)


@triton.jit
def power_of_two(x):
    """Returns 2^x for x from -1000 to 0: `power_of_two` of ops/native/rows.h."""
    shifted = x + _MAGIC
    r = x - (shifted - _MAGIC)
    p = tl.full(x.shape, 7.072585949269223e-09, tl.float64)
    p = tl.fma(p, r, tl.full(x.shape, 1.0208690299958306e-07, tl.float64))
    p = tl.fma(p, r, tl.full(x.shape, 1.321544258792169e-06, tl.float64))
    p = tl.fma(p, r, tl.full(x.shape, 1.5252657260200837e-05, tl.float64))
    p = tl.fma(p, r, tl.full(x.shape, 0.0001540353044173605, tl.float64))
    p = tl.fma(p, r, tl.full(x.shape, 0.0013333558230164974, tl.float64))
    p = tl.fma(p, r, tl.full(x.shape, 0.009618129107606888, tl.float64))
    p = tl.fma(p, r, tl.full(x.shape, 0.05550410866444772, tl.float64))
    p = tl.fma(p, r, tl.full(x.shape, 0.24022650695910097, tl.float64))
    p = tl.fma(p, r, tl.full(x.shape, 0.69314718055995, tl.float64))
    p = tl.fma(p, r, tl.full(x.shape, 1.0, tl.float64))
    return p * (shifted.to(tl.int64, bitcast=True) << 52).to(tl.float64, bitcast=True)


@triton.jit
def lanes_summed(x, PARTS: tl.constexpr):
    """Adds up the eight lanes of each part, two at a time: lane i and i + 4, then i + 2, then i + 1."""
    x = tl.sum(tl.reshape(x, [PARTS, 2, 4]), 1)
    x = tl.sum(tl.reshape(x, [PARTS, 2, 2]), 1)
    return tl.sum(x, 1)


@triton.jit
def sums_of(row, at, lane, size, most, scale, PARTS: tl.constexpr):
    """Returns the sums of 2^d and of d 2^d of each part, where d = (logit - most) * scale, at least -1000."""
    total = tl.zeros([PARTS * 8], tl.float64)
    weighted = tl.zeros([PARTS * 8], tl.float64)
    for first in range(0, PART, 64):
        for step in tl.static_range(0, 64, 8):
            place = first + step + lane
            x = tl.load(row + at + place, mask=place < size, other=float("-inf")).to(tl.float64)
            d = (x - most) * scale
            d = tl.where(d < -1000.0, -1000.0, d)
            power = power_of_two(d)
            inside = first + step < size
            total = tl.where(inside, total + power, total)
            weighted = tl.where(inside, tl.fma(power, d, weighted), weighted)
    return lanes_summed(total, PARTS), lanes_summed(weighted, PARTS)


@triton.jit
def sums_kernel(logits, edited, lines, floats, doubles, stride, width, found_bytes, PARTS: tl.constexpr):
    """Writes the sums of PARTS parts of a row: with the logits themselves and times the scale of the line. Of
    a row after its edits, only the latter are needed."""
    number = tl.program_id(0).to(tl.int64)
    line = lines + number * LINE
    row = row_of(logits, edited, line, number, stride)
    most = tl.load(floats + number * (found_bytes // 4) + MOST).to(tl.float64)
    lanes = tl.arange(0, PARTS * 8)
    at = (tl.program_id(1) * PARTS + lanes // 8) * PART
    size = width - at  # of the part; a part may be none of the row
    parts = tl.program_id(1) * PARTS + tl.arange(0, PARTS)
    out = doubles + number * (found_bytes // 8) + HEADER // 2 + parts * 4
    inside = parts * PART < width
    log2_e = tl.full([], 1.4426950408889634, tl.float64)
    scale, of = scale_of(line), tl.load(line + OF)
    if (of < 0) | (of == number) | (scale == 1.0):
        total, weighted = sums_of(row, at, lanes % 8, size, most, log2_e, PARTS)
        tl.store(out, total, mask=inside)
        tl.store(out + 1, weighted, mask=inside)
    if scale != 1.0:
        total, weighted = sums_of(row, at, lanes % 8, size, most, scale * log2_e, PARTS)
        tl.store(out + 2, total, mask=inside)
        tl.store(out + 3, weighted, mask=inside)


@triton.jit
def store_found(x, ids, chosen, counter, id_array, logit_array, ROOM: tl.constexpr):
    """Appends the chosen tokens to a list, as far as there is room."""
    place = tl.cumsum(chosen.to(tl.int32), 0) - 1
    count = tl.sum(chosen.to(tl.int32), 0)
    place += tl.atomic_add(counter, count, sem="relaxed")
    tl.store(id_array + place, ids, mask=chosen & (place < ROOM))
    tl.store(logit_array + place, x, mask=chosen & (place < ROOM))


@triton.jit
def find_kernel(
    logits,
    edited,
    lines,
    ints,
    floats,
    doubles,
    stride,
    width,
    parts,
    found_bytes,
    HIGH: tl.constexpr,
    OTHER: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Lists the tokens that are high, and the others that may win the race or be second in it."""
    number = tl.program_id(0).to(tl.int64)
    ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    line = lines + number * LINE
    ints += number * (found_bytes // 4)
    floats += number * (found_bytes // 4)
    row = row_of(logits, edited, line, number, stride)
    x = tl.load(row + ids, mask=ids < width, other=float("-inf"))
    some = x > float("-inf")
    high = some & (x >= tl.load(floats + LEAST))
    arrays = HEADER + 8 * parts
    if tl.sum(high.to(tl.int32), 0) > 0:
        store_found(x, ids, high, ints + COUNT, ints + arrays, floats + arrays + HIGH + OTHER, HIGH)
    if tl.load(line + LUCKY) != 0:
        bound = tl.load(doubles + number * (found_bytes // 8) + BOUND)
        logit = x.to(tl.float64) * scale_of(line)
        bits = uniform_bits(key_of(line), ids.to(tl.int64))
        # The chance of so much luck, a little too large: luck is computed exactly for those alone that pass.
        needed = (bound - logit).to(tl.float32) - 0.01
        chance = 1.0 - tl.exp(-tl.exp(-tl.minimum(tl.maximum(needed, -2.0), 80.0)))
        # Where the chance is small, 1 - exp(-y) loses its digits, and is at most y.
        chance = tl.where(needed > 3.0, tl.exp(-tl.minimum(needed, 80.0)), chance)
        unlucky = unlucky_share(bits)
        may = some & (x < tl.load(floats + LEAST)) & ((needed < -2.0) | (unlucky <= chance))
        if tl.sum(may.to(tl.int32), 0) > 0:
            may = may & (logit + luck_of(bits) >= bound)
            arrays += HIGH
            store_found(x, ids, may, ints + OTHERS, ints + arrays, floats + arrays + HIGH + OTHER, OTHER)


@triton.jit
def best_of(ids, x, inside, line, scale):
    """Returns the highest score of some tokens, and the lowest id that has it."""
    luck = luck_of(uniform_bits(key_of(line), tl.where(inside, ids, 0).to(tl.int64)))
    score = x.to(tl.float64) * scale + luck
    score = tl.where(inside, score, float("-inf"))
    best = tl.max(score, 0)
    return best, tl.min(tl.where(inside & (score == best), ids, 0x7FFFFFFF), 0)


@triton.jit
def winner_kernel(lines, ints, floats, parts, found_bytes, HIGH: tl.constexpr, OTHER: tl.constexpr):
    """Finds the winner of the race of a line, if it is not one of the tokens that are high."""
    number = tl.program_id(0).to(tl.int64)
    line = lines + number * LINE
    if tl.load(line + LUCKY) != 0:
        ints += number * (found_bytes // 4)
        floats += number * (found_bytes // 4) + HEADER + 8 * parts + HIGH + OTHER
        listed = ints + HEADER + 8 * parts
        high, other = tl.arange(0, HIGH), tl.arange(0, OTHER)
        is_high, is_other = high < tl.load(ints + COUNT), other < tl.load(ints + OTHERS)
        ids = tl.load(listed + high, mask=is_high, other=0)
        scale = scale_of(line)
        best, first = best_of(ids, tl.load(floats + high, mask=is_high, other=0.0), is_high, line, scale)
        ids = tl.load(listed + HIGH + other, mask=is_other, other=0)
        x = tl.load(floats + HIGH + other, mask=is_other, other=0.0)
        other_best, other_first = best_of(ids, x, is_other, line, scale)
        if (other_best > best) | ((other_best == best) & (other_first < first)):
            tl.store(ints + WINNER, other_first)


@triton.jit
def predict_kernel(
    lines,
    ints,
    floats,
    doubles,
    predicted,
    parts,
    found_bytes,
    HIGH: tl.constexpr,
    OTHER: tl.constexpr,
    MOST_PARTS: tl.constexpr,
):
    """Predicts the token of a line from what was found, before C has chosen it: follows the rules, but does
    not care how ties at a border are broken or in which order masses are added. For a row after its edits,
    the prediction is noted as the winner of the row before them, whose rank there C needs."""
    number = tl.program_id(0).to(tl.int64)
    line, of = lines + number * LINE, tl.load(lines + number * LINE + OF)
    before = ints + of * (found_bytes // 4)
    ints += number * (found_bytes // 4)
    floats += number * (found_bytes // 4)
    listed, logits = ints + HEADER + 8 * parts, floats + HEADER + 8 * parts + HIGH + OTHER
    high = tl.arange(0, HIGH)
    alive = high < tl.load(ints + COUNT)
    ids = tl.load(listed + high, mask=alive, other=0)
    x = tl.load(logits + high, mask=alive, other=float("-inf"))
    order = ordered(x)
    most = tl.max(x, 0)
    winner = tl.min(tl.where(alive & (x == most), ids, 0x7FFFFFFF), 0)
    if tl.load(line + LUCKY) != 0:
        part = tl.arange(0, MOST_PARTS)
        sums = doubles + number * (found_bytes // 8) + HEADER // 2 + part * 4
        first_scale = scale_of(line)
        whole = tl.sum(tl.load(sums, mask=part < parts, other=0.0), 0)
        if first_scale != 1.0:
            scaled = tl.sum(tl.load(sums + 2, mask=part < parts, other=0.0), 0)
        else:
            scaled = whole
        scale = tl.full([], 1.0, tl.float64)
        log2_e = tl.full([], 1.4426950408889634, tl.float64)
        cut = tl.full([], 0, tl.int32)  # whether only tokens of the list are left
        for index in range(tl.minimum(tl.load(line + RULE_COUNT), MOST_RULES)):
            rule = line + RULES + index * RULE
            action = tl.load(rule + ACTION).to(tl.int32)
            amount = tl.load(rule + AMOUNT).to(tl.float64, bitcast=True)
            if action == RULE_SCALE:
                scale *= amount
            if action > RULE_SCALE:
                d = (x.to(tl.float64) - most.to(tl.float64)) * (scale * log2_e)
                weights = tl.where(alive, power_of_two(tl.where(d < -1000.0, -1000.0, d)), 0.0)
                total = tl.where(scale == 1.0, whole, scaled)
                total = tl.where(cut != 0, tl.sum(weights, 0), total)
                # A weight is relative to the likeliest token's, which is 1.
                least = tl.where(action == RULE_SHARE, amount, amount * total)
                by_mass = action == RULE_MASS
                counted = tl.where(by_mass, weights, tl.where(alive, 1.0, 0.0).to(tl.float64))
                enough = tl.where(by_mass, (amount - 1e-9) * total, amount)
                reaching = order >= least_reaching(order, counted, enough)
                heavy = (weights >= least * (1.0 - 1e-9)) | (x == most)
                alive = alive & tl.where(action <= RULE_MASS, reaching, heavy)
                cut = tl.full([], 1, tl.int32)
        best, winner = best_of(ids, x, alive, line, scale)
        if cut == 0:
            other = tl.arange(0, OTHER)
            is_other = other < tl.load(ints + OTHERS)
            other_ids = tl.load(listed + HIGH + other, mask=is_other, other=0)
            other_x = tl.load(logits + HIGH + other, mask=is_other, other=0.0)
            other_best, other_first = best_of(other_ids, other_x, is_other, line, scale)
            winner = tl.where(other_best > best, other_first, winner)
    # The next batch reads a row of the embedding by it, so it has to be an id even if nothing was found.
    winner = tl.where(winner == 0x7FFFFFFF, 0, winner)
    tl.store(predicted + of, winner, mask=of >= 0)
    tl.store(before + WINNER, winner, mask=(of >= 0) & (of != number))


@triton.jit
def rank_kernel(logits, edited, lines, ints, floats, stride, width, found_bytes, BLOCK: tl.constexpr):
    """Finds the logit of the winner, and how many come before it: higher ones, equal ones of a lower id."""
    number = tl.program_id(0).to(tl.int64)
    ints += number * (found_bytes // 4)
    winner = tl.load(ints + WINNER)
    if winner >= 0:
        row = row_of(logits, edited, lines + number * LINE, number, stride)
        own = tl.load(row + winner)
        if tl.program_id(1) == 0:
            tl.store(floats + number * (found_bytes // 4) + OWN, own)
        ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(row + ids, mask=ids < width, other=float("-inf"))
        before = (x > own) | ((x == own) & (ids < winner))
        tl.atomic_add(ints + RANK, tl.sum(before.to(tl.int32), 0), sem="relaxed")


@triton.jit(do_not_specialize=["rows"])
def fill_kernel(tokens, predicted, rows, BLOCK: tl.constexpr):
    """Replaces tokens -1 - n by the prediction for line n."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    token = tl.load(tokens + row, mask=row < rows, other=0)
    named = tl.load(predicted + (-1 - token), mask=token < 0, other=0)
    tl.store(tokens + row, named, mask=token < 0)
