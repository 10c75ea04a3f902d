"""How a token chooses its experts and what these compute, as data. `expert_choice.py` defines the choice.

A router scores the experts, and each token takes the best of them, each with a weight. The result is an array
of routes: [rows, 2 * chosen], first the numbers of the experts, ascending, then their weights. `docs/ops.md`
defines the same in the arithmetic of the native op set.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from glassloop.ops.activations import Activation

# softmax and sigmoid: of the logits of all experts. chosen: softmax over the logits of the chosen ones.
# mixer: for each choice, softmax over the experts that were left then and are close to the best of them.
Scores = Literal["softmax", "sigmoid", "chosen", "mixer"]


MOST_EXPERTS, MOST_CHOSEN, MOST_GROUPS = 1 << 14, 256, 256


class Routing(NamedTuple):
    experts: int  # of the layer
    chosen: int  # experts of a token
    scores: Scores = "softmax"
    normalized: bool = False  # the weights of a token are divided by their sum
    epsilon: float = 0.0  # which is added to that sum
    factor: float = 1.0  # of all weights
    groups: int = 1  # of experts next to each other; a token chooses from the best `chosen_groups`
    chosen_groups: int = 1
    closeness: float = 0.0  # of `mixer`: the largest distance from the best, relative to the logit

    def check(self) -> None:
        """Raises ValueError for numbers that do not fit each other."""
        most = min(self.experts, MOST_CHOSEN)
        if not 0 < self.experts <= MOST_EXPERTS:
            raise ValueError(f"experts is {self.experts}; 1 to {MOST_EXPERTS} is expected")
        if self.groups > MOST_GROUPS:
            raise ValueError(f"experts have {self.groups} groups; 1 to {MOST_GROUPS} is expected")
        if not 0 < self.chosen <= most:
            raise ValueError(f"a token takes {self.chosen} experts; 1 to {most} is expected")
        if self.groups < 1 or self.experts % self.groups or not 0 < self.chosen_groups <= self.groups:
            raise ValueError(
                f"{self.chosen_groups} of {self.groups} groups do not divide {self.experts} experts"
            )
        if self.chosen > self.experts // self.groups * self.chosen_groups:
            raise ValueError(f"{self.chosen_groups} groups have fewer than {self.chosen} experts")
        if not 0 < self.factor < 1e9 or not 0 <= self.epsilon < 1 or not 0 <= self.closeness < 1e9:
            raise ValueError(f"the weights of experts have the factor {self.factor}; one above 0 is expected")


class Router(NamedTuple):
    """The weights of a router, in the form of an op set."""

    weight: Any  # [experts, dim], of floats
    bias: Any = None  # [experts], of the logits
    choice_bias: Any = None  # [experts], added to the scores for the choice alone
    factors: Any = None  # [experts], of the weights


class Expert(NamedTuple):
    """The matrices of one expert and their biases, in the form of an op set."""

    gate: Any
    up: Any
    down: Any
    gate_bias: Any = None
    up_bias: Any = None
    down_bias: Any = None


class Gating(NamedTuple):
    """What an expert does between its matrices: activate(gate) * (up + shift). With a limit, gate is at most
    that before, and up within plus and minus that. SiLU with a slope is gate * sigmoid(slope * gate)."""

    activation: Activation = "silu"
    limit: float | None = None
    slope: float = 1.0
    shift: float = 0.0


PLAIN_GATING = Gating()
