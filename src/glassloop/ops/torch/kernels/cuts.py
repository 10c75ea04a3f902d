"""Kernels that predict which token wins after cuts (top-k, top-p, min-p, typical-p and their kind), however
many tokens the cuts leave.

A row is counted into bins by how far its logits are below the highest one, in steps of 1/512 nat where it
matters. Every cut keeps an interval of these bins, since it depends on the order of the logits or on how far
a surprise is from the entropy. So one program follows all cuts of a line on the counts, and the race is run
among the tokens of the bins that are left. Tokens within a bin are not told apart: a prediction may be wrong,
rarely, and the exact choice (ops/native/choosing.c) finds that out.
"""

from __future__ import annotations

import triton
import triton.language as tl

from glassloop.ops.torch.kernels.lines import (
    ACTION,
    AMOUNT,
    HEAD,
    LINE,
    LUCKY,
    MOST,
    MOST_HEAD,
    MOST_RULES,
    RULE,
    RULE_COUNT,
    RULE_ETA,
    RULE_EXCLUDE,
    RULE_FIRST,
    RULE_MASS,
    RULE_PROBABILITY,
    RULE_SCALE,
    RULE_SHARE,
    RULE_SIGMA,
    RULE_TYPICAL,
    RULES,
    key_of,
    row_of,
)
from glassloop.ops.torch.kernels.luck import rough_luck, uniform_bits
from glassloop.ops.torch.kernels.pointwise import let_next_start, wait_for_previous

# Bins of 1/512, of 1/32 and of 1 nat, at the largest scale that a line has; the last one has all the rest.
BINS = tl.constexpr(8192)
_FINE, _MIDDLE = tl.constexpr(6144), tl.constexpr(7680)
_FINE_NATS, _MIDDLE_NATS = tl.constexpr(12.0), tl.constexpr(60.0)


@triton.jit
def scales_of(line):
    """Returns the largest scale at which a line cuts or runs its race, the scale of the race, and how many
    cuts it has."""
    scale = tl.full([], 1.0, tl.float64)
    largest = tl.full([], 0.0, tl.float64)
    cuts = tl.full([], 0, tl.int32)
    for index in range(tl.minimum(tl.load(line + RULE_COUNT), MOST_RULES)):
        rule = line + RULES + index * RULE
        if tl.load(rule + ACTION) == RULE_SCALE:
            scale *= tl.load(rule + AMOUNT).to(tl.float64, bitcast=True)
        if tl.load(rule + ACTION) > RULE_SCALE:
            largest = tl.maximum(largest, scale)
            cuts += 1
    largest = tl.maximum(largest, scale).to(tl.float32)
    return largest, scale, cuts


@triton.jit
def bins_of(x, most, scale):
    """Returns the bin of each logit."""
    below = tl.minimum(tl.maximum((most - x) * scale, 0.0), 4096.0)
    fine = (below * 512.0).to(tl.int32)
    middle = ((below - _FINE_NATS) * 32.0).to(tl.int32) + _FINE
    coarse = tl.minimum((below - _MIDDLE_NATS).to(tl.int32) + _MIDDLE, BINS - 1)
    place = tl.where(below < _FINE_NATS, fine, tl.where(below < _MIDDLE_NATS, middle, coarse))
    return tl.minimum(tl.maximum(place, 0), BINS - 1)  # whatever a logit is that is not finite


@triton.jit
def nats_of(bins):
    """Returns how far the middle of each bin is below the highest logit; the first bin has that itself."""
    fine = (bins.to(tl.float32) + 0.5) / 512.0
    middle = ((bins - _FINE).to(tl.float32) + 0.5) / 32.0 + _FINE_NATS
    coarse = (bins - _MIDDLE).to(tl.float32) + 0.5 + _MIDDLE_NATS
    nats = tl.where(bins < _FINE, fine, tl.where(bins < _MIDDLE, middle, coarse))
    return tl.where(bins == 0, 0.0, nats)


@triton.jit
def count_kernel(
    logits,
    edited,
    lines,
    floats,
    counts,
    stride,
    width,
    found_bytes,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Counts the tokens of each bin, for the lines that have cuts."""
    let_next_start(EARLY)
    wait_for_previous(EARLY)
    number = tl.program_id(0).to(tl.int64)
    line = lines + number * LINE
    largest, _, cuts = scales_of(line)
    if cuts > 0:
        row = row_of(logits, edited, line, number, stride)
        ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(row + ids, mask=ids < width, other=float("-inf"))
        most = tl.load(floats + number * (found_bytes // 4) + MOST)
        place = bins_of(x, most, largest)
        tl.atomic_add(counts + number * BINS + place, 1, mask=x > float("-inf"), sem="relaxed")


@triton.jit
def typical_distance(distance, masses, mass):
    """Returns about the least distance within which the masses sum to `mass`."""
    low = tl.full([], 0.0, tl.float32)
    high = tl.max(tl.where(masses > 0.0, distance, 0.0), 0)
    for _ in range(30):
        middle = 0.5 * (low + high)
        enough = tl.sum(tl.where(distance <= middle, masses, 0.0), 0) >= mass
        high = tl.where(enough, middle, high)
        low = tl.where(enough, low, middle)
    return high


@triton.jit
def kept_by(action, amount, below, counts):
    """Returns which bins a cut keeps. `below` is how far each is below the highest logit at the scale of the
    cut, `counts` how many tokens of each are left."""
    alive = counts > 0.0
    nearest = tl.min(tl.where(alive, below, float("inf")), 0)
    weights = tl.where(alive, counts * tl.exp(nearest - below), 0.0)
    total = tl.sum(weights, 0)
    surprise = below - nearest + tl.log(total)
    entropy = tl.sum(tl.where(alive, weights * surprise, 0.0), 0) / total
    # The cuts that keep the first ones of the order: by their number, or by the mass that is before a bin.
    counted = tl.where(action == RULE_FIRST, counts, weights)
    before = tl.cumsum(counted, 0) - counted
    enough = tl.where(action == RULE_FIRST, amount, amount * total)
    # The cuts that keep what is not more surprising than a bound.
    tokens = tl.sum(counts, 0)
    mean = tl.sum(counts * tl.where(alive, below, 0.0), 0) / tokens
    spread = tl.sqrt(tl.sum(counts * tl.where(alive, (below - mean) * (below - mean), 0.0), 0) / tokens)
    least = tl.where(action == RULE_ETA, tl.minimum(amount, tl.sqrt(amount) * tl.exp(-entropy)), amount)
    bound = tl.where(action == RULE_SIGMA, amount * spread, -tl.log(least))
    relative = (action == RULE_SIGMA) | (action == RULE_SHARE)
    within = tl.where(relative, below - nearest, surprise) <= bound
    # XTC: of those that are likely, only the least likely one.
    last = tl.max(tl.where(alive & within, below, float("-inf")), 0)
    kept = within | (below == nearest)
    if action <= RULE_MASS:
        kept = before < enough
    if action == RULE_EXCLUDE:
        kept = below >= last
    if action == RULE_TYPICAL:
        distance = tl.abs(surprise - entropy)
        kept = distance <= typical_distance(distance, weights / total, amount)
    return alive & kept


@triton.jit
def cut_kernel(lines, counts, bounds, firsts, untils, totals, EARLY: tl.constexpr):
    """Writes the first and the last bin that the cuts of a line leave, and instead of how many tokens each
    bin has, in which place of the order it begins. Of each line it notes about how many tokens the first cut
    leaves: a large number if the cut looks at the whole row, and -1 if there is none or rules follow about
    single tokens; in which bin the last of these tokens are, or somewhat later; and how many tokens the line
    has."""
    let_next_start(EARLY)
    wait_for_previous(EARLY)
    number = tl.program_id(0).to(tl.int64)
    line = lines + number * LINE
    largest, _, cuts = scales_of(line)
    if cuts > 0:
        bins = tl.arange(0, BINS)
        numbers = tl.load(counts + number * BINS + bins)
        tokens = numbers.to(tl.float32)
        nats = nats_of(bins)
        scale = tl.full([], 1.0, tl.float32)
        first = tl.full([], -1, tl.int32)
        until = tl.full([], 0, tl.int32)
        rules = tl.load(line + RULE_COUNT)
        follows = rules <= MOST_RULES
        for index in range(tl.minimum(rules, MOST_RULES)):
            rule = line + RULES + index * RULE
            action = tl.load(rule + ACTION).to(tl.int32)
            amount = tl.load(rule + AMOUNT).to(tl.float64, bitcast=True).to(tl.float32)
            follows = follows & (action >= RULE_SCALE)
            if action == RULE_SCALE:
                scale *= amount
            if action > RULE_SCALE:
                kept = kept_by(action, amount, nats * (scale / largest), tokens)
                tokens = tl.where(kept, tokens, 0.0)
                needs_all = (action > RULE_PROBABILITY) | (tl.load(line + HEAD) > MOST_HEAD)
                left = tl.where(needs_all, 1e9, tl.sum(tokens, 0)).to(tl.int32)
                # The next token after the border has to be in order too. The border is known to a bin only,
                # and that of typical-p less well: distances on both sides of the entropy are compared.
                last = tl.max(tl.where(tokens > 0.0, bins, 0), 0) + tl.where(action == RULE_TYPICAL, 64, 1)
                last = tl.min(tl.where((numbers > 0) & (bins > last), bins, BINS - 1), 0)
                # These keep the last tokens, or need more sums over all.
                keeps_last = (action == RULE_EXCLUDE) | (action == RULE_SIGMA)
                last = tl.where(keeps_last, BINS - 1, last)
                until = tl.where(first < 0, last, until)
                first = tl.where(first < 0, left, first)
        left_bins = tokens > 0.0
        tl.store(bounds + 2 * number, tl.min(tl.where(left_bins, bins, BINS), 0))
        tl.store(bounds + 2 * number + 1, tl.max(tl.where(left_bins, bins, -1), 0))
        tl.store(firsts + number, tl.where(follows, first, -1))
        tl.store(untils + number, until)
        tl.store(totals + number, tl.sum(numbers, 0))
        tl.debug_barrier()  # other threads may still read the counts
        tl.store(counts + number * BINS + bins, tl.cumsum(numbers, 0) - numbers)
    else:
        tl.store(firsts + number, -1)


@triton.jit
def race_kernel(
    logits,
    edited,
    lines,
    floats,
    bounds,
    race_scores,
    race_ids,
    stride,
    width,
    found_bytes,
    GROUPS: tl.constexpr,
    SOME: tl.constexpr,
    STEPS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Finds about the highest score of the tokens that the cuts of a line leave, and the id that has it: one
    for each program, which looks through some groups."""
    let_next_start(EARLY)
    wait_for_previous(EARLY)
    number, groups = tl.program_id(0).to(tl.int64), tl.program_id(1) * SOME + tl.arange(0, SOME)
    line = lines + number * LINE
    largest, scale, cuts = scales_of(line)
    if cuts > 0:
        row, key = row_of(logits, edited, line, number, stride), key_of(line)
        lucky = tl.load(line + LUCKY) != 0
        most = tl.load(floats + number * (found_bytes // 4) + MOST)
        first_bin, last_bin = tl.load(bounds + 2 * number), tl.load(bounds + 2 * number + 1)
        best = tl.full([SOME], float("-inf"), tl.float32)
        at = tl.full([SOME], 0, tl.int32)
        for first in range(0, width, GROUPS * STEPS):
            ids = first + tl.arange(0, STEPS)[:, None] * GROUPS + groups[None, :]
            x = tl.load(row + ids, mask=ids < width, other=float("-inf"))
            place = bins_of(x, most, largest)
            left = (x > float("-inf")) & (place >= first_bin) & (place <= last_bin)
            # Relative to the highest logit, so that float32 has enough digits.
            score = (x - most) * scale.to(tl.float32)
            if lucky:
                score += rough_luck(uniform_bits(key, ids.to(tl.int64)))
            score = tl.where(left, score, float("-inf"))
            highest = tl.max(score, 0)
            place_of_highest = first + tl.argmax(score, 0) * GROUPS + groups
            at = tl.where(highest > best, place_of_highest, at)
            best = tl.where(highest > best, highest, best)
        program = number * (GROUPS // SOME) + tl.program_id(1)
        tl.store(race_scores + program, tl.max(best, 0))
        winner = tl.argmax(best, 0)
        tl.store(race_ids + program, tl.sum(tl.where(groups == tl.program_id(1) * SOME + winner, at, 0), 0))
