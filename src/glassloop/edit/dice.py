"""The draws of an edit: the luck of its proposals, the choice of places and the draws that accept or refuse.

All of them are hashes of the edit's seed and the number of the step (docs/luck.md), so an edit that is made
again draws the same.
"""

from __future__ import annotations

from glassloop.decode.luck import coin, fork_salt

_MARK = 0x65646974  # "edit": keeps these draws apart from those of other runs with the same seed


class Dice:
    def __init__(self, seed: int) -> None:
        self.seed = seed

    def salt(self, step: int, number: int) -> int:
        """Returns the salt for the luck of proposal `number` of a step."""
        return fork_salt(_MARK, step, 1 + number)

    def coin(self, step: int, number: int = 0) -> float:
        """Returns draw `number` of a step: a number between 0 and 1."""
        return coin(self.seed, fork_salt(_MARK, step, 0), number)

    def below(self, bound: int, step: int, number: int = 0) -> int:
        """Returns a whole number from 0 to `bound` - 1."""
        return min(int(self.coin(step, number) * bound), bound - 1)
