"""Kernels that follow the cuts of a line on its tokens in order (kernels/order.py), run the race among those
that are left, and sum up their weights: all that C needs for the record (`gl_cut`, ops/native/choosing.h).

The survivors of cuts follow one another in the order, so two places say which they are. Sums here have not
the order of those in ops/native/cuts.c, so where rounding might decide which token is kept, the line is left
to the host: the kept tokens are always the same.
"""

from __future__ import annotations

import triton
import triton.language as tl

from glassloop.ops.torch.kernels.cuts import BINS
from glassloop.ops.torch.kernels.lines import (
    ACTION,
    AMOUNT,
    BEFORE,
    COMPLETE,
    FIRST_ID,
    HEAD,
    HIGHEST,
    LAST_ID,
    LINE,
    LISTED,
    LOWEST,
    OF,
    RULE,
    RULE_COUNT,
    RULE_EXCLUDE,
    RULE_FIRST,
    RULE_MASS,
    RULE_PROBABILITY,
    RULE_SCALE,
    RULE_SHARE,
    RULE_SIGMA,
    RULE_TYPICAL,
    RULES,
    SURVIVORS,
    VALID,
    cut_of,
)
from glassloop.ops.torch.kernels.luck import normal_log
from glassloop.ops.torch.kernels.order import ids_of, line_of, logits_of
from glassloop.ops.torch.kernels.power import power_of_two

_SLACK = tl.constexpr(1e-9)  # of choosing.h
_UNSURE = tl.constexpr(2e-11)  # sums in different orders differ by less, relative to the whole
_LOG2_E = tl.constexpr(1.4426950408889634)
_HEAD = tl.constexpr(64)  # FIRST_HEAD of choosing.h
_GROWTH = tl.constexpr(8)  # GROWTH of cuts.c


@triton.jit
def value_at(keys, place, scale):
    """Returns the logit of the token at a place."""
    return logits_of(tl.load(keys + place)).to(tl.float64) * scale


@triton.jit
def sums_over(keys, masses, first, last, scale, BLOCK: tl.constexpr):
    """Stores for each place the sum of the weights from the first place on; a weight is relative to the first
    token's. Returns the whole sum, and that of the weights times how far each logit is below the first."""
    total = tl.full([], 0.0, tl.float64)
    weighted = tl.full([], 0.0, tl.float64)
    most = value_at(keys, first, scale)
    tl.debug_barrier()  # other threads may still read the sums of before
    for begin in range(first, last, BLOCK):
        place = begin + tl.arange(0, BLOCK)
        inside = place < last
        below = most - logits_of(tl.load(keys + place, mask=inside, other=0)).to(tl.float64) * scale
        below = tl.where(inside & (below < 690.0), below, 690.0)
        weights = tl.where(inside, power_of_two(below * -_LOG2_E), 0.0)
        tl.store(masses + place, total + tl.cumsum(weights, 0), mask=inside)
        total += tl.sum(weights, 0)
        weighted += tl.sum(weights * below, 0)
    tl.debug_barrier()  # the sums are read by other threads
    return total, weighted


@triton.jit
def deviation_of(keys, first, last, scale, BLOCK: tl.constexpr):
    """Returns the standard deviation of logits."""
    count = (last - first).to(tl.float64)
    most = value_at(keys, first, scale)
    total = tl.full([], 0.0, tl.float64)
    for begin in range(first, last, BLOCK):
        place = begin + tl.arange(0, BLOCK)
        x = logits_of(tl.load(keys + place, mask=place < last, other=0)).to(tl.float64) * scale
        total += tl.sum(tl.where(place < last, most - x, 0.0), 0)
    mean = total / count
    squares = tl.full([], 0.0, tl.float64)
    for begin in range(first, last, BLOCK):
        place = begin + tl.arange(0, BLOCK)
        x = logits_of(tl.load(keys + place, mask=place < last, other=0)).to(tl.float64) * scale
        away = tl.where(place < last, most - x - mean, 0.0)
        squares += tl.sum(away * away, 0)
    return tl.sqrt(squares / count)


@triton.jit
def place_below(keys, first, last, scale, logit, OR_EQUAL: tl.constexpr):
    """Returns the first of these places whose logit is below this one (OR_EQUAL to it), or `last`."""
    low, high = first, last
    while low < high:
        middle = (low + high) // 2
        value = value_at(keys, middle, scale)
        reaches = (value >= logit) & ((value != logit) | (not OR_EQUAL))
        low = tl.where(reaches, middle + 1, low)
        high = tl.where(reaches, high, middle)
    return low


@triton.jit
def place_with(masses, first, last, wanted):
    """Returns the first of these places up to which the weights sum to so much, or `last`."""
    low, high = first, last
    while low < high:
        middle = (low + high) // 2
        reaches = tl.load(masses + middle) >= wanted
        low = tl.where(reaches, low, middle + 1)
        high = tl.where(reaches, middle, high)
    return low


@triton.jit
def mass_before(masses, first, place):
    return tl.where(place > first, tl.load(masses + place - 1, mask=place > first, other=0.0), 0.0)


@triton.jit
def typical_places(keys, first, last, scale, middle, distance):
    """Returns the places from and up to which tokens are at most so far from the middle."""
    begin = place_below(keys, first, last, scale, middle + distance, True)
    return begin, place_below(keys, begin, last, scale, middle - distance, False)


@triton.jit
def typical_border(keys, masses, first, last, scale, middle, near, wanted, low, high, ABOVE: tl.constexpr):
    """Returns the least distance from the middle of a token of the places from `low` to `high` within which
    the wanted mass is, and its place; infinity if there is none. The places are ABOVE the middle, where the
    distance falls from each to the next, or below it."""
    begin, end = low, high
    while low < high:
        half = (low + high) // 2
        distance = tl.abs(value_at(keys, half, scale) - middle) + near
        from_place, to_place = typical_places(keys, first, last, scale, middle, distance)
        enough = mass_before(masses, first, to_place) - mass_before(masses, first, from_place) >= wanted
        if ABOVE:
            low = tl.where(enough, half + 1, low)
            high = tl.where(enough, high, half)
        else:
            low = tl.where(enough, low, half + 1)
            high = tl.where(enough, half, high)
    if ABOVE:
        low -= 1
    exists = (low >= begin) & (low < end)
    at = tl.minimum(tl.maximum(low, first), last - 1)
    return tl.where(exists, tl.abs(value_at(keys, at, scale) - middle), float("inf")), at


@triton.jit(do_not_specialize=["first"])
def follow_kernel(
    lines,
    ints,
    floats,
    counts,
    slots,
    masses,
    sorted_keys,
    full,
    bounds,
    untils,
    totals,
    tails,
    first,
    stride,
    width,
    parts,
    found_bytes,
    blocks,
    FOLLOWED: tl.constexpr,
    HIGH: tl.constexpr,
    OTHER: tl.constexpr,
):
    """Follows the cuts of a line and stores which places they leave, and what is known of these: `valid` only
    if that is certain."""
    number = line_of(slots, first)
    if number >= 0:
        line = lines + number * LINE
        sorted_keys += tl.program_id(0).to(tl.int64) * stride
        masses += tl.program_id(0).to(tl.int64) * stride
        alive = tl.load(totals + number)
        in_order = tl.load(counts + number * BINS + tl.load(untils + number))
        tail = alive - in_order  # tokens that are not in order: none is left by the first cut
        tails += 2 * tl.program_id(0) * blocks
        sure = (tl.load(full + number) == 0) & (in_order > 0) & (tail >= 0) & (alive <= width)
        is_edited = tl.load(line + OF) != number
        looked_for = tl.where(is_edited, tl.minimum(width, _HEAD), tl.load(line + HEAD).to(tl.int32))
        begin = tl.full([], 0, tl.int32)
        end = tl.where(sure, in_order, 0)
        scale = tl.full([], 1.0, tl.float64)
        listed = tl.full([], 0, tl.int32)
        complete = ((alive < looked_for) | (alive == width) & (looked_for == width)).to(tl.int32)
        total = tl.full([], 1.0, tl.float64)
        weighted = tl.full([], 0.0, tl.float64)
        summed_to = tl.full([], -1, tl.int32)  # for which end `total` and `weighted` are; -1: no sum is valid
        for index in range(tl.load(line + RULE_COUNT).to(tl.int32)):
            rule = line + RULES + index * RULE
            action = tl.load(rule + ACTION).to(tl.int32)
            amount = tl.load(rule + AMOUNT).to(tl.float64, bitcast=True)
            if action == RULE_SCALE:
                scale *= amount
                summed_to = tl.full([], -1, tl.int32)
            if (action > RULE_SCALE) & (end > begin):
                needs_sums = (action != RULE_FIRST) & (action != RULE_SHARE) & (action != RULE_SIGMA)
                if needs_sums & (summed_to != end):
                    total, weighted = sums_over(sorted_keys, masses, begin, end, scale, FOLLOWED)
                    summed_to = end
                    if tail > 0:
                        for block in range(blocks):
                            total += tl.load(tails + 2 * block)
                            weighted += tl.load(tails + 2 * block + 1)
                most = value_at(sorted_keys, begin, scale)
                log_amount = normal_log(amount)
                log_total = normal_log(total)
                entropy = log_total + weighted / total
                kept_from, kept_to = begin, end
                if action == RULE_FIRST:
                    sure = sure & (amount >= 1.0)
                    wanted = tl.minimum(amount, 2147483000.0).to(tl.int32)
                    sure = sure & ((tail == 0) | (wanted <= end - begin))
                    kept_to = begin + tl.minimum(end - begin, wanted)
                    looked = tl.minimum(tl.maximum(wanted, _HEAD), width)
                    is_whole = (complete != 0) | (end - begin + tail < looked)
                    is_whole = is_whole | (end - begin + tail == width)
                    # All are kept, but it is not known that these are all.
                    listed = tl.where(is_whole & (kept_to == end), listed, 1)
                elif action == RULE_MASS:
                    wanted_mass = (amount - _SLACK) * total
                    place = place_with(masses, begin, end, wanted_mass)
                    sure = sure & ((tail == 0) | (place < end))
                    place = tl.minimum(place, end - 1)
                    slack = _UNSURE * total
                    sure = sure & (tl.abs(tl.load(masses + place) - wanted_mass) > slack)
                    sure = sure & (tl.abs(mass_before(masses, begin, place) - wanted_mass) > slack)
                    kept_to = place + 1
                elif action == RULE_TYPICAL:
                    # The middle is the logit whose surprise is the entropy.
                    middle = most + log_total - entropy
                    wanted_mass = (amount - _SLACK) * total
                    split = place_below(sorted_keys, begin, end, scale, middle, False)
                    near = 1e-10 * (1.0 + tl.abs(most) + entropy)
                    above, above_at = typical_border(
                        sorted_keys, masses, begin, end, scale, middle, near, wanted_mass, begin, split, True
                    )
                    below, below_at = typical_border(
                        sorted_keys, masses, begin, end, scale, middle, near, wanted_mass, split, end, False
                    )
                    border = tl.minimum(above, below)
                    at = tl.where(above <= below, above_at, below_at)
                    sure = sure & (border > near) & (border < 1e300)
                    border = tl.where(border < 1e300, border, 1.0)
                    wide_from, wide_to = typical_places(sorted_keys, begin, end, scale, middle, border + near)
                    narrow_from, narrow_to = typical_places(
                        sorted_keys, begin, end, scale, middle, border - near
                    )
                    # Only the tokens of one logit are about as far as the border, and with these there is
                    # enough.
                    own = value_at(sorted_keys, at, scale)
                    equal_from = place_below(sorted_keys, begin, end, scale, own, True)
                    equal = place_below(sorted_keys, begin, end, scale, own, False) - equal_from
                    sure = sure & (narrow_from - wide_from + wide_to - narrow_to == equal)
                    slack = _UNSURE * total
                    inner = mass_before(masses, begin, narrow_to) - mass_before(masses, begin, narrow_from)
                    outer = mass_before(masses, begin, wide_to) - mass_before(masses, begin, wide_from)
                    sure = sure & (inner < wanted_mass - slack) & (outer > wanted_mass + slack)
                    kept_from, kept_to = wide_from, wide_to
                else:
                    lse = most + log_total
                    least = most + log_amount  # of a share
                    slack = 1e-10 * (1.0 + tl.abs(most) + tl.abs(log_amount))
                    if action == RULE_SHARE:
                        slack = tl.full([], 0.0, tl.float64)
                    elif action == RULE_SIGMA:
                        spread = deviation_of(sorted_keys, begin, end, scale, FOLLOWED)
                        least = most - amount * spread
                        slack = 1e-10 * (1.0 + tl.abs(most) + amount * spread)
                    elif (action == RULE_PROBABILITY) | (action == RULE_EXCLUDE):
                        least = lse + log_amount - _SLACK
                    else:
                        least = lse + tl.minimum(log_amount, 0.5 * log_amount - entropy) - _SLACK
                    sure = sure & ((amount > 1e-300) | (action == RULE_SIGMA))
                    if action == RULE_EXCLUDE:
                        place = place_below(sorted_keys, begin, end, scale, least, False)
                        sure = sure & (
                            place_below(sorted_keys, begin, end, scale, least + slack, False) == place
                        )
                        sure = sure & (
                            place_below(sorted_keys, begin, end, scale, least - slack, False) == place
                        )
                        kept_from = tl.where((amount > 1.0) | (place <= begin), begin, place - 1)
                    else:
                        exact = tl.minimum(least, most)
                        kept_to = place_below(sorted_keys, begin, end, scale, exact, False)
                        high = place_below(
                            sorted_keys, begin, end, scale, tl.minimum(least + slack, most), False
                        )
                        low = place_below(
                            sorted_keys, begin, end, scale, tl.minimum(least - slack, most), False
                        )
                        sure = sure & (high == kept_to) & (low == kept_to)
                if (action == RULE_TYPICAL) | (action == RULE_EXCLUDE):
                    # An array of the row is searched for its highest logits anew.
                    left = kept_to - kept_from
                    anew = (left < tl.minimum(width, _HEAD)) | (left == width)
                    changes = (action == RULE_TYPICAL) | (kept_from != begin)
                    complete = tl.where((listed == 0) & changes, anew.to(tl.int32), complete)
                else:
                    # If all are kept, they stay an array, except where the sorted ones are just all of them.
                    left = end - begin
                    if (action != RULE_FIRST) & (kept_to == end) & (tail == 0) & (complete == 0):
                        size = looked_for
                        for _ in range(7):
                            sure = sure & (left != size)
                            size = tl.minimum(size, 1 << 24) * _GROWTH
                        size = tl.full([], 64, tl.int32)
                        for _ in range(7):
                            sure = sure & (left != size)
                            size *= _GROWTH
                    listed = tl.where((kept_to < end) | (tail > 0), 1, listed)
                    complete = tl.full([], 1, tl.int32)
                if (action != RULE_FIRST) & (action != RULE_MASS):
                    sure = sure & ((tail == 0) | (kept_to < end))
                # From here on, all that are left are in order.
                if (kept_from != begin) | (tail > 0):
                    summed_to = tl.full([], -1, tl.int32)
                begin, end = kept_from, tl.where(sure, kept_to, kept_from)
                tail = tl.full([], 0, tl.int32)
        sure = sure & (end > begin)
        tl.store(bounds + 2 * number, begin)
        tl.store(bounds + 2 * number + 1, tl.where(sure, end, begin))
        if sure:
            cut = cut_of(number, parts, found_bytes, HIGH, OTHER)
            highest, lowest = tl.load(sorted_keys + begin), tl.load(sorted_keys + end - 1)
            tl.store(ints + cut + VALID, 1)
            tl.store(ints + cut + LISTED, listed)
            tl.store(ints + cut + COMPLETE, complete)
            tl.store(ints + cut + SURVIVORS, end - begin)
            tl.store(ints + cut + BEFORE, begin)
            tl.store(ints + cut + FIRST_ID, ids_of(highest))
            tl.store(ints + cut + LAST_ID, ids_of(lowest))
            tl.store(floats + cut + HIGHEST, logits_of(highest))
            tl.store(floats + cut + LOWEST, logits_of(lowest))
