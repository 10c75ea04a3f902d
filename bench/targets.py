"""Targets for the speed of Glassloop on the default model with 2 cores: the least ratio and the wanted one.
The report says below the table which of them the run reached.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    workload: str
    against: str  # the name of an engine, or "best"
    bound: float
    wanted: float
    more_is_better: bool = True

    def reached(self, ratio: float) -> str:
        def meets(bound: float) -> bool:
            return ratio >= bound if self.more_is_better else ratio <= bound

        return "wanted" if meets(self.wanted) else "yes" if meets(self.bound) else "NO"


TARGETS = (
    Target("decode-1", "best", 1.2, 1.5),
    Target("decode-8", "llama.cpp", 2.0, 3.0),
    Target("decode-16", "llama.cpp", 2.5, 4.0),
    Target("prefill-512", "best", 1.3, 2.0),
    Target("cold-start", "llama.cpp", 1.0, 0.7, more_is_better=False),
    Target("memory", "llama.cpp", 1.2, 1.0, more_is_better=False),
)
