"""The scaling law: the loss as a function of weights and tokens, fitted to measured runs.

The form is that of Hoffmann et al. (2022): loss = floor + a / weights**alpha + b / tokens**beta. For given
exponents the other three are a linear problem, so the fit is a search over a grid of exponents, each of
which is solved exactly: no start values, no local minima.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from glassloop.train.config import TrainError

Floats = NDArray[np.float64]
_COARSE = np.arange(0.04, 1.521, 0.04)
_FINE = np.arange(-0.04, 0.0401, 0.004)
_PARTS = ([0, 1, 2], [1, 2], [0, 1], [0, 2], [0])  # of floor, a and b; the last can always be solved
_LEAST_POINTS = 6


class TrainedSize(NamedTuple):
    """One run: the weights of its layers, the tokens it was trained on, and its validation loss."""

    weights: float
    tokens: float
    loss: float


@dataclass(frozen=True)
class Law:
    """A fitted law. `alpha` belongs to the weights, `beta` to the tokens."""

    floor: float
    a: float
    alpha: float
    b: float
    beta: float

    def loss(self, weights: float, tokens: float) -> float:
        """Returns the loss that the law expects."""
        return float(self.floor + self.a * weights**-self.alpha + self.b * tokens**-self.beta)


class Estimate(NamedTuple):
    """A value and the bounds of its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Fit:
    """The law of some runs, and the laws of resampled runs, from which intervals are taken."""

    law: Law
    resampled: tuple[Law, ...]
    residuals: tuple[float, ...]  # (measured - expected) / expected, by run

    def intervals(self) -> dict[str, Estimate]:
        """Returns each parameter of the law with its interval."""
        return {
            name: interval(value, [getattr(law, name) for law in self.resampled])
            for name, value in vars(self.law).items()
        }

    def predict(self, weights: float, tokens: float, seed: int = 0) -> Estimate:
        """Returns the expected loss of a run that is not in the fit. Its interval covers what the fit leaves
        open and how far single runs are from the law."""
        noise = np.random.default_rng(seed).choice(_spread(self.residuals), len(self.resampled))
        fits = [law.loss(weights, tokens) * (1 + off) for law, off in zip(self.resampled, noise, strict=True)]
        return interval(self.law.loss(weights, tokens), fits)


def fit(runs: Sequence[TrainedSize], resamples: int = 300, seed: int = 0) -> Fit:
    """Fits the law to runs, by least squares of relative errors. The intervals come from a bootstrap of the
    residuals: each resample adds residuals drawn with replacement to the losses of the law."""
    sizes, budgets = ({run[column] for run in runs} for column in (0, 1))
    if len(runs) < _LEAST_POINTS or len(sizes) < 2 or len(budgets) < 2:
        raise TrainError(
            f"{len(runs)} runs of {len(sizes)} sizes and {len(budgets)} budgets are too few for a fit;"
            f" at least {_LEAST_POINTS} runs, 2 sizes and 2 budgets are expected"
        )
    weights, tokens, losses = (np.array(column, np.float64) for column in zip(*runs, strict=True))
    if not (np.isfinite(losses).all() and (losses > 0).all()):
        raise TrainError("a loss is not a positive number; no law can be fitted")
    law = _best(weights, tokens, losses[None])[0]
    if not law.a or not law.b:
        raise TrainError("the losses do not fall with weights and tokens; no law can be fitted")
    expected = np.array([law.loss(*pair) for pair in zip(weights, tokens, strict=True)])
    residuals = losses / expected - 1
    random = np.random.default_rng(seed)
    drawn = random.choice(_spread(residuals), (resamples, len(runs)))
    return Fit(law, tuple(_best(weights, tokens, expected * (1 + drawn))), tuple(residuals.tolist()))


def _best(weights: Floats, tokens: Floats, losses: Floats) -> list[Law]:
    """Returns the best law for each row of losses, [rows, runs]."""
    grid = np.stack(np.meshgrid(_COARSE, _COARSE, indexing="ij"), -1).reshape(-1, 2)
    near = np.stack(np.meshgrid(_FINE, _FINE, indexing="ij"), -1).reshape(-1, 2)
    exponents, _ = _search(weights, tokens, losses, np.broadcast_to(grid, (len(losses), *grid.shape)))
    around = np.clip(exponents[:, None] + near, 0.01, 2.0)
    exponents, factors = _search(weights, tokens, losses, around)
    return [
        Law(float(c[0]), float(c[1]), float(x[0]), float(c[2]), float(x[1]))
        for x, c in zip(exponents, factors, strict=True)
    ]


def _search(weights: Floats, tokens: Floats, losses: Floats, grid: Floats) -> tuple[Floats, Floats]:
    """Returns the best exponents of a grid, [rows, 2], and their factors floor, a and b, [rows, 3]. `grid`
    has the exponents to try for each row: [rows, tries, 2]."""
    chosen, found = [], []
    for row, tries in zip(losses, grid, strict=True):
        # Relative errors: each equation is divided by its loss. [tries, runs, 3]
        terms = np.stack(
            [
                np.ones((len(tries), len(row))),
                weights ** -tries[:, :1],
                tokens ** -tries[:, 1:],
            ],
            -1,
        )
        scale = np.abs(terms).max(1, keepdims=True)
        terms = terms / scale / row[:, None]
        normal = np.einsum("tri,trj->tij", terms, terms) + 1e-12 * np.eye(3)
        best, exponents, factors = np.inf, tries[0], np.zeros(3)
        for used in _PARTS:  # a law has no negative part, but a part may be 0
            columns = np.ix_(range(len(tries)), used, used)
            solved = np.zeros((len(tries), 3))
            solved[:, used] = np.linalg.solve(normal[columns], terms.sum(1)[:, used, None])[..., 0]
            errors = ((np.einsum("tri,ti->tr", terms, solved) - 1) ** 2).sum(1)
            valid, free = solved.min(1) >= 0, int(errors.argmin())
            errors = np.where(valid, errors, np.inf)
            at = int(errors.argmin())
            if errors[at] < best:
                best, exponents, factors = errors[at], tries[at], solved[at] / scale[at, 0]
            if valid[free]:  # fewer parts cannot be better
                break
        chosen.append(exponents)
        found.append(factors)
    return np.array(chosen), np.array(found)


def _spread(residuals: Sequence[float] | Floats) -> Floats:
    """Returns residuals around 0, as large as they would be if the fit had not been made to them."""
    values = np.asarray(residuals, np.float64)
    centred: Floats = values - values.mean()
    return centred * float((len(values) / max(1, len(values) - 5)) ** 0.5)


def interval(value: float, others: Sequence[float] | Floats) -> Estimate:
    """Returns a value with the interval of its resamples, which contains it."""
    low, high = np.quantile(others, [0.025, 0.975])
    return Estimate(value, float(min(low, value)), float(max(high, value)))
