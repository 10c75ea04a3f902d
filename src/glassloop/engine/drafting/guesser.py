"""The drafter protocol: guesses at the next tokens, computed along with the last one, kept while right.

A guess is right if it is what the run itself would have chosen, which depends on its position and luck alone,
so guessing changes how fast tokens come and never which. How many are worth a guess follows from what a row
costs and how often guesses have been right. Where none is, they are still made and compared, only not
computed, so a run notices when it begins to repeat.

An engine has one `DraftSource`, which gives each run its `Guesser`: a lookup (lookup.py), the drafter that
was trained for the model (chain_drafts.py), or a smaller model (draft_model.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from glassloop.decode.decoder import Decoder
from glassloop.engine.branch import Branch
from glassloop.engine.drafting.ngram_index import LONGEST_AGREEMENT, RunsByOwner
from glassloop.engine.step_cost import StepCost
from glassloop.ops.quant import Float32
from glassloop.record.run import Run
from glassloop.record.token import Drafter


class Guesser(Protocol):
    """Makes the guesses for one run."""

    name: Drafter

    @property
    def is_own(self) -> bool:
        """Whether the last guess follows from the run alone: its text, or a model that was given it. Only
        such a guess may be recorded; one from another run would tell what was written there."""

    def guess(self, tokens: Sequence[int], room: int) -> list[int]:
        """Returns at most `room` tokens that may come after these."""

    def learn(self, branch: Branch, place: int) -> None:
        """Compares the last guess with the tokens that came, the last of them from row `place` of the
        results."""


class DraftSource:
    """Makes the guessers of all runs of an engine."""

    waits_for_tokens = False  # whether drafts are made from committed tokens, so that steps cannot overlap
    reads_states = False  # whether it needs the hidden states of the wanted rows: `states`

    def __init__(self) -> None:
        self.step_cost = StepCost()
        self.recent_runs = RunsByOwner()
        self.states: Float32 | None = None  # [wanted rows, dim] of the last forward pass, if it reads them

    def guesser(self, run: Run, decoder: Decoder, owner: str, realm: str) -> Guesser:
        """Returns what guesses for a run of this owner and realm, which `decoder` chooses the tokens of."""
        raise NotImplementedError

    def after_step(self) -> None:
        """Makes the drafts for the next step, when all tokens of a step are committed."""

    def forget(self, run: str, texts: Iterable[Sequence[int]], realm: str) -> None:
        """Forgets the run with this id, and the texts that were computed for it."""
        self.recent_runs.forget(run)


def guess_room(run: Run, length: int) -> int:
    """Returns how many guesses a run of this length could accept, with one more token after them."""
    return min(run.context - length, run.sampling.max_tokens - len(run.tokens)) - 1


class AcceptanceRates:
    """The share of guesses that were right, by how many tokens agreed before them."""

    def __init__(self) -> None:
        self._rates = [0.5 + 0.4 * length / LONGEST_AGREEMENT for length in range(LONGEST_AGREEMENT + 1)]

    def of(self, agreed: int) -> float:
        return min(max(self._rates[agreed], 0.01), 0.98)

    def saw(self, agreed: int, right: bool) -> None:
        self._rates[agreed] += 0.15 * (right - self._rates[agreed])
