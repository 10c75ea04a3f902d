"""The tokens that can still be chosen, with their logits: what each stage of the chain passes to the next.

They are the whole vocabulary as a row, of which only the highest are ever sorted, or, once a cut has left few
enough, a list. Both forms give the same results. Where the sorted head cannot settle a question for certain,
more of the row is sorted, in the end all of it.

This is the definition of what stages can do; `ops/native/candidates.c` does the same in C, and tests hold the
two equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from glassloop.decode.luck import Race, race
from glassloop.decode.rules import Action, Rule, check_rule
from glassloop.decode.shape import SLACK, eta_probability, is_typical
from glassloop.ops.exact import exp, exp_of, log_of
from glassloop.ops.quant import Float32
from glassloop.ops.rows import Float64, Int32, RowOps, RowSummary, Survivors

HEAD = 64  # how many logits are sorted at first
_GROWTH = 8  # how many times as many are sorted when the head was not enough
_LARGEST = float(np.finfo(np.float32).max)


class NoneLeft(Exception):
    """Every token has been removed. The chain turns this into an error that names the responsible stages."""


class Candidates:
    """The survivors of some stages; immutable to its users. A logit is `base · scale`: stages change the
    float32 `base` or multiply the scale, so temperature costs nothing and the order of tokens is that of
    `base`.

    Invariants: `_ids` and `_base` are sorted by descending base, ties by lower id, and hold no minus
    infinity. If `complete`, they are all survivors; if not, they are the highest of `_row`, where minus
    infinity marks removed tokens.
    """

    __slots__ = ("_base", "_ids", "_lse", "_ops", "_row", "_values", "complete", "scale", "vocab_size")

    def __init__(
        self,
        ops: RowOps,
        vocab_size: int,
        row: Float32 | None,
        scale: float,
        ids: Int32 | None = None,
        base: Float32 | None = None,
        complete: bool = False,
        log_sum_exp: float | None = None,
    ) -> None:
        self._ops = ops
        self.vocab_size = vocab_size
        self.scale = scale
        self.complete = complete
        self._row = row
        self._ids = ids
        self._base = base
        self._values: Float64 | None = None
        self._lse = log_sum_exp

    @classmethod
    def of(cls, logits: Float32, summary: RowSummary, ops: RowOps) -> Candidates:
        """Returns the whole vocabulary, given the row's summary."""
        whole = cls(ops, len(logits), logits, 1.0, log_sum_exp=summary.log_sum_exp)
        whole._set_head(summary.ids, summary.logits)
        return whole

    @classmethod
    def from_survivors(cls, left: Survivors, vocab_size: int, ops: RowOps) -> Candidates:
        """Returns what an op set's chooser has left."""
        return cls(
            ops, vocab_size, left.row, left.scale, left.ids, left.logits, left.complete, left.log_sum_exp
        )

    # ── questions ──────────────────────────────────────────────────────────────────────────────────────────

    @property
    def ids(self) -> Int32:
        """The survivors by descending logit, ties by lower id: all if `complete`, else the highest."""
        if self._ids is None:
            self._grow(1)
        if not len(self._ids):  # type: ignore[arg-type]
            raise NoneLeft
        return self._ids  # type: ignore[return-value]

    @property
    def values(self) -> Float64:
        """The logits of `ids`."""
        if self._values is None:
            self.ids  # noqa: B018  (sorts them if necessary)
            self._values = _times(self._base, self.scale)  # type: ignore[arg-type]
        return self._values

    @property
    def log_sum_exp(self) -> float:
        """Log-sum-exp over all survivors."""
        if self._lse is None:
            if self._row is not None:
                self._lse = self._ops.log_sum_exp(self._row, self.scale)
                if self._lse == -np.inf:
                    raise NoneLeft
            else:
                values = self.values
                peak = float(values[0])
                self._lse = peak + log_of(float(exp(values - peak).cumsum()[-1]))
        return self._lse

    @property
    def count(self) -> int:
        """The number of survivors."""
        if self._row is not None:
            return int(np.count_nonzero(self._row > -np.inf))
        return len(self._ids)  # type: ignore[arg-type]

    def everyone(self) -> tuple[Int32, Float64]:
        """Returns all survivors with their logits, in no particular order (nothing is sorted for this)."""
        if self._row is None:
            return self.ids, self.values
        ids = np.flatnonzero(self._row > -np.inf).astype(np.int32)
        if not len(ids):
            raise NoneLeft
        return ids, _times(self._row[ids], self.scale)

    def logits_of(self, ids: NDArray[np.integer]) -> Float64:
        """Returns the logits of these tokens, minus infinity for removed ones."""
        if self._row is not None:
            return _times(self._row[ids], self.scale)
        whole = np.full(self.vocab_size, -np.inf)
        whole[self.ids] = self.values
        logits: Float64 = whole[ids]
        return logits

    def rank_of(self, token: int) -> int | None:
        """Returns how many survivors come before this one, or None if it was removed."""
        place = int((self.ids == token).argmax())
        if self.ids[place] == token:
            return place
        if self._row is None or self._row[token] == -np.inf:
            return None
        return self._ops.rank_of(self._row, token)

    def race(self, key: int) -> Race:
        """Runs the race: the highest of logit + luck wins."""
        row = None if self.complete else self._row
        chooser = self._ops.chooser
        if chooser is None:
            return race(key, self.ids, self.values, row, self.scale)
        return Race(*chooser.race(key, self.ids, self.values, row, self.scale))

    def logit_of(self, probability: float) -> float:
        """Returns the logit with this probability, lower by `SLACK`, so that rounding never decides a cut."""
        return self.log_sum_exp + log_of(probability) - SLACK

    # ── what a stage can do ────────────────────────────────────────────────────────────────────────────────

    def following(self, rule: Rule) -> Candidates:
        """Returns the candidates after a rule."""
        check_rule(rule, self.vocab_size)
        action, amount, which, numbers = rule
        if which is not None:
            if action is Action.REMOVE:
                return self._without(which)
            if action is Action.KEEP:
                return self._only(which)
            if action is Action.LESS:
                less = amount if numbers is None else amount * numbers
                return self._moved(which, lambda logits: logits - less)
            return self._moved(which, lambda logits: np.where(logits >= 0, logits / amount, logits * amount))
        if action is Action.SCALE:
            return self.scaled(amount)
        if action is Action.FIRST:
            return self.first(int(amount))
        if action is Action.MASS:
            return self.with_mass(amount)
        if action is Action.SHARE:
            return self.at_least(float(self.values[0]) + log_of(amount))
        if action is Action.PROBABILITY:
            return self.at_least(self.logit_of(amount))
        if action is Action.EXCLUDE:
            return self.without_likely(amount)
        if action is Action.TYPICAL:
            return self.typical(amount)
        _, logits = self.everyone()
        if action is Action.SIGMA:
            return self.at_least(float(self.values[0]) - amount * float(logits.std()))
        assert action is Action.ETA
        return self.at_least(self.logit_of(eta_probability(logits, amount)))

    def moved(
        self, ids: Iterable[int] | NDArray[np.integer], change: Callable[[Float64], Float64]
    ) -> Candidates:
        """Returns the candidates with the logits of these ids, each named once, replaced by `change`."""
        which = self._checked_ids(ids, "moved")
        if len(np.unique(which)) != len(which):
            raise ValueError("moved() got an id more than once; distinct ids are expected")

        def checked(logits: Float64) -> Float64:
            changed = np.asarray(change(logits), np.float64)
            if changed.shape != logits.shape:
                raise ValueError(
                    f"the function of moved() returned shape {changed.shape}; one logit per id,"
                    f" {logits.shape}, is expected"
                )
            return changed

        return self._moved(which, checked)

    def _moved(self, ids: NDArray[np.integer], change: Callable[[Float64], Float64]) -> Candidates:
        if not len(ids):
            return self
        if self._row is not None:
            row = self._row.copy()
            row[ids] = self._rebased(change(_times(row[ids], self.scale)), row[ids])
            return Candidates(self._ops, self.vocab_size, row, self.scale)
        places = np.full(self.vocab_size, -1)
        places[ids] = np.arange(len(ids))
        places = places[self._ids]
        mine = places >= 0
        # `change` gets the logits of all ids, in their order; the results for removed tokens are not used.
        base = self._base.copy()  # type: ignore[union-attr]
        base[mine] = self._rebased(change(self.logits_of(ids))[places[mine]], base[mine])
        return self._listed(self._ids, base)  # type: ignore[arg-type]

    def scaled(self, factor: float) -> Candidates:
        """Returns the candidates with every logit multiplied by a positive number."""
        scale = self.scale * factor
        return Candidates(self._ops, self.vocab_size, self._row, scale, self._ids, self._base, self.complete)

    def without(self, ids: Iterable[int] | NDArray[np.integer]) -> Candidates:
        """Returns the candidates without these tokens."""
        return self._without(self._checked_ids(ids, "without"))

    def _without(self, gone: NDArray[np.integer]) -> Candidates:
        if not len(gone):
            return self
        if self._row is not None:
            row = self._row.copy()
            row[gone] = -np.inf
            return Candidates(self._ops, self.vocab_size, row, self.scale)
        return self._picked(np.isin(self._ids, gone, invert=True))  # type: ignore[arg-type]

    def only(self, allowed: NDArray[np.bool_]) -> Candidates:  # [vocab_size]
        """Returns the candidates for which `allowed` is true."""
        mask = np.asarray(allowed)
        if mask.dtype != np.bool_ or mask.shape != (self.vocab_size,):
            raise ValueError(
                f"only() got {mask.dtype} of shape {mask.shape}; a bool for each id of the vocabulary,"
                f" ({self.vocab_size},), is expected"
            )
        return self._only(mask)

    def _only(self, allowed: NDArray[np.bool_]) -> Candidates:
        if self._row is not None:
            row = np.where(allowed, self._row, np.float32(-np.inf))
            return Candidates(self._ops, self.vocab_size, row, self.scale)
        return self._picked(allowed[self._ids])

    def first(self, count: int) -> Candidates:
        """Returns the `count` highest."""
        self._grow(count)
        ids = self.ids
        if self.complete and len(ids) <= count:
            return self
        base = self._base[:count]  # type: ignore[index]
        highest = Candidates(self._ops, self.vocab_size, None, self.scale, ids[:count], base, complete=True)
        if self._values is not None:
            highest._values = self._values[:count]
        return highest

    def at_least(self, logit: float) -> Candidates:
        """Returns those with this logit or a higher one; in any case the highest and its equals."""
        logit = min(logit, float(self.values[0]))
        while not self.complete and self.values[-1] >= logit:
            self._grow(len(self.ids) * _GROWTH)
        return self.first(int(np.count_nonzero(self.values >= logit)))

    def with_mass(self, mass: float) -> Candidates:
        """Returns the fewest of the highest that together have this much of the probability."""
        if not 0 <= mass <= 1:
            raise ValueError(f"with_mass() got {mass}; a probability from 0 to 1 is expected")
        while True:
            peak = float(self.values[0])
            reached = exp(self.values - peak).cumsum()
            total = float(reached[-1]) if self.complete else exp_of(self.log_sum_exp - peak)
            enough = int(reached.searchsorted((mass - SLACK) * total))
            if enough < len(reached) or self.complete:
                return self.first(enough + 1)
            self._grow(len(self.ids) * _GROWTH)

    def without_likely(self, probability: float) -> Candidates:
        """Returns all but those with at least this probability, and of these the least likely."""
        if probability > 1:  # no token has that
            return self
        border = self.logit_of(probability)
        if self.values[0] < border:
            return self
        return self._without(self.at_least(border).ids[:-1])

    def typical(self, mass: float) -> Candidates:
        """Returns those whose surprise is closest to the entropy and that together have this probability."""
        ids, logits = self.everyone()
        allowed = np.zeros(self.vocab_size, np.bool_)
        allowed[ids[is_typical(logits, mass)]] = True
        return self._only(allowed)

    # ── inside ─────────────────────────────────────────────────────────────────────────────────────────────

    def _checked_ids(self, ids: Iterable[int] | NDArray[np.integer], method: str) -> NDArray[np.integer]:
        """Returns token ids as an array. Raises if they are none of the vocabulary's."""
        which = ids if isinstance(ids, np.ndarray) else np.array(list(ids))
        if not which.size:
            return which.astype(np.int64)
        if which.ndim != 1 or which.dtype.kind not in "iu":
            got = f"{which.dtype} of shape {which.shape}"
            raise ValueError(f"{method}() got {got}; a list of token ids is expected")
        if which.min() < 0 or which.max() >= self.vocab_size:
            wrong = int(which.min()) if which.min() < 0 else int(which.max())
            last = self.vocab_size - 1
            raise ValueError(f"{method}() got the id {wrong}; token ids from 0 to {last} are expected")
        return which

    def _rebased(self, logits: Float64, before: Float32) -> Float32:
        """Returns logits as float32 without the scale. No token is removed or restored by a change."""
        base = logits if self.scale == 1 else logits / self.scale
        narrow: Float32 = base.clip(-_LARGEST, _LARGEST).astype(np.float32)
        narrow[before == -np.inf] = -np.inf
        return narrow

    def _listed(self, ids: Int32, base: Float32) -> Candidates:
        order = np.lexsort((ids, -base))
        ids, base = ids[order], base[order]
        alive = int(np.count_nonzero(base > -np.inf))
        return Candidates(
            self._ops, self.vocab_size, None, self.scale, ids[:alive], base[:alive], complete=True
        )

    def _picked(self, mask: NDArray[np.bool_]) -> Candidates:
        ids, base = self._ids[mask], self._base[mask]  # type: ignore[index]
        return Candidates(self._ops, self.vocab_size, None, self.scale, ids, base, complete=True)

    def _grow(self, count: int) -> None:
        """Sorts at least `count` survivors, or all that there are."""
        if self.complete or (self._ids is not None and len(self._ids) >= count):
            return
        assert self._row is not None
        self._set_head(*self._ops.highest(self._row, min(max(count, HEAD), self.vocab_size)))

    def _set_head(self, ids: Int32, base: Float32) -> None:
        alive = len(base)
        if alive and base[-1] == -np.inf:
            alive = int(np.count_nonzero(base > -np.inf))
        self.complete = alive < len(base) or alive == self.vocab_size
        self._ids, self._base, self._values = ids[:alive], base[:alive], None


def _times(base: Float32, scale: float) -> Float64:
    return np.multiply(base, scale, dtype=np.float64)
