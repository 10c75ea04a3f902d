"""The picture of a sweep (SVG): losses over weights, a curve of the law for each budget of tokens, and the
predicted run with its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence

from glassloop.train.chart import COLOURS, Chart
from glassloop.train.scaling import Fit, Interval, Measured


def sweep_svg(
    runs: Sequence[Measured], fit: Fit, target: Measured | tuple[int, int, None], predicted: Interval
) -> str:
    """Returns the picture. `target` is the predicted run; its loss is None if it has not been made."""
    weights = [run.weights for run in runs] + [target[0]]
    losses = [run.loss for run in runs] + [*predicted] + ([] if target[2] is None else [target[2]])
    left, right = math.log10(min(weights)) - 0.1, math.log10(max(weights)) + 0.1
    low, high = min(losses), max(losses)
    low, high = low - 0.05 * (high - low) - 1e-9, high + 0.05 * (high - low) + 1e-9

    chart = Chart(left, right, low, high, margin=150)
    chart.name_x({math.log10(each): _short(each) for each in weights}, "weights of the layers")
    for number, tokens in enumerate(sorted({run.tokens for run in runs})):
        colour = COLOURS[number % len(COLOURS)]
        steps = [left + (right - left) * step / 60 for step in range(61)]
        line = [(step, fit.law.loss(10**step, tokens)) for step in steps]
        chart.line([point for point in line if low <= point[1] <= high], colour, 1.5)
        for run in runs:
            if run.tokens == tokens:
                chart.dot(math.log10(run.weights), run.loss, colour)
        chart.legend(number, f"{_short(tokens)} tokens", colour, "beside")
    at = math.log10(target[0])
    chart.line([(at, predicted.low), (at, predicted.high)], "black", 2)
    chart.note(at, predicted.high, f"predicted {predicted.value:.4f}", down=-10)
    if target[2] is not None:
        chart.dot(at, target[2], "black")
        chart.note(at, predicted.low, f"measured {target[2]:.4f}", down=10)
    return chart.svg()


def _short(value: float) -> str:
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.0f}"
