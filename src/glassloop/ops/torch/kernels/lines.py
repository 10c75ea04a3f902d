"""How lines, the choices that kernels find tokens for, lie in memory."""

from __future__ import annotations

import triton
import triton.language as tl

from glassloop.ops.torch.kernels.luck import position_key

# A line is LINE numbers of 64 bits:
#   ROW, POSITION  the row of logits (of edited logits, for an edited copy) and the position of the token
#   HEAD … EDITS   a `gl_request`. Two of its fields, which kernels do not read, serve an edited copy: SOURCE
#                  is the row that it is a copy of, EDITS the place where its edits begin
#   RULES          the first rules after the edits, RULE numbers each
#   OF             the line that this one predicts a token for: itself, or for an edited copy the line of the
#                  unedited row; -1 if an edited copy predicts for it
MOST_RULES = tl.constexpr(12)
LINE = tl.constexpr(2 + 7 + 5 * 12 + 1)
ROW, POSITION, HEAD, SCALE, SOURCE, RULE_COUNT, BRANCH, LUCKY, EDITS = (tl.constexpr(n) for n in range(9))
RULES, RULE, OF = tl.constexpr(9), tl.constexpr(5), tl.constexpr(69)
ACTION, AMOUNT = tl.constexpr(0), tl.constexpr(2)
# Edits are 64-bit numbers too: where the bits of the tokens that are kept begin (0: all are), how many edits
# follow, and for each its action, how many ids, the amount, where the ids begin, and where the factors of the
# amount do (0: there are none). Places are counted from the first of these numbers.
KEPT, EDIT_COUNT, FIRST_EDIT = (tl.constexpr(place) for place in range(3))
EDIT, EDIT_IDS, EDIT_NUMBERS = tl.constexpr(5), tl.constexpr(3), tl.constexpr(4)
# Numbers of `enum gl_action`.
RULE_LESS, RULE_REMOVE = tl.constexpr(1), tl.constexpr(2)
RULE_SCALE, RULE_FIRST, RULE_MASS, RULE_SHARE, RULE_PROBABILITY = (tl.constexpr(n) for n in range(4, 9))
RULE_TYPICAL, RULE_SIGMA, RULE_EXCLUDE, RULE_ETA = (tl.constexpr(n) for n in range(9, 13))
# Places of the fields of `gl_found` in 32-bit numbers, and of its bound in doubles.
COUNT, OTHERS, WINNER, RANK, MOST, LEAST = (tl.constexpr(place) for place in range(6))
BOUND, OWN, HEADER = tl.constexpr(3), tl.constexpr(8), tl.constexpr(10)
# The same of `gl_cut`, from its beginning on.
VALID, LISTED, COMPLETE, SURVIVORS, BEFORE, FIRST_ID, LAST_ID = (tl.constexpr(place) for place in range(7))
HIGHEST, LOWEST, LIST_SUM, RACERS = (tl.constexpr(place) for place in (7, 8, 5, 12))
MOST_RACERS = tl.constexpr(64)
# If a line asks for more of the highest logits, only so many are listed for certain.
MOST_HEAD = tl.constexpr(160)
PART = tl.constexpr(4096)  # logits that are summed on their own


@triton.jit
def cut_of(number, parts, found_bytes, HIGH: tl.constexpr, OTHER: tl.constexpr):
    """Returns where the `gl_cut` of a line begins, in 32-bit numbers."""
    return number * (found_bytes // 4) + HEADER + 8 * parts + 2 * (HIGH + OTHER)


@triton.jit
def key_of(line):
    """Returns the key of the luck at the position of a line."""
    return position_key(tl.load(line + BRANCH), tl.load(line + POSITION))


@triton.jit
def scale_of(line):
    return tl.load(line + SCALE).to(tl.float64, bitcast=True)


@triton.jit
def row_of(logits, edited, line, number, stride):
    """Returns the address of the row of a line."""
    of = tl.load(line + OF)
    return tl.where((of < 0) | (of == number), logits, edited) + tl.load(line + ROW) * stride
