"""What is asserted, and how much is tried: generous bounds and seconds in the normal suite, the promised
bounds and minutes when `GLASSLOOP_FUZZ` is set, as `make fuzz` does.
"""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    health: float  # seconds that /health may take
    gap: float  # seconds that a stream may stand still
    memory: int  # bytes that the peak may grow by
    pool: int  # threads that pools may have started meanwhile


PROMISED = Limits(health=1.0, gap=2.0, memory=300 << 20, pool=40)
# Continuous integration shares its machines: a broken promise shows by a factor, not by a fraction.
GENEROUS = Limits(health=10.0, gap=20.0, memory=900 << 20, pool=40)

# 0: the normal suite. Above: the long run, where the number multiplies how many cases are tried.
FACTOR = int(os.environ.get("GLASSLOOP_FUZZ", "0"))
LIMITS = PROMISED if FACTOR else GENEROUS
SEED = int(os.environ.get("GLASSLOOP_FUZZ_SEED", "0"))


def cases(normal: int) -> int:
    """How many cases of a generator to try."""
    return normal * 20 * FACTOR if FACTOR else normal
