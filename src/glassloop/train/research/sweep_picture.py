"""The picture of a sweep (SVG): losses over weights, a curve of the law for each budget of tokens, and the
predicted run with its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence

from glassloop.train.research.scaling import Estimate, Fit, TrainedSize
from glassloop.util.chart import COLOURS, Chart, Margins


def sweep_svg(
    runs: Sequence[TrainedSize], fit: Fit, target: TrainedSize | tuple[int, int, None], predicted: Estimate
) -> str:
    """Returns the picture. `target` is the predicted run; its loss is None if it has not been made."""
    at, _, measured = target
    weights = sorted({*(run.weights for run in runs), at})
    losses = [*(run.loss for run in runs), *predicted, *([] if measured is None else [measured])]
    left, right = math.log10(weights[0]) - 0.1, math.log10(weights[-1]) + 0.1
    margin = 0.05 * (max(losses) - min(losses)) + 1e-9
    low, high = min(losses) - margin, max(losses) + margin
    chart = Chart((left, right), (low, high), height=420, margins=Margins(right=150))
    chart.name_x({math.log10(value): _short(value) for value in weights}, "weights of the layers")
    for number, tokens in enumerate(sorted({run.tokens for run in runs})):
        colour = COLOURS[number % len(COLOURS)]
        steps = [left + (right - left) * step / 60 for step in range(61)]
        law = [(step, fit.law.loss(10**step, tokens)) for step in steps]
        chart.line([point for point in law if low <= point[1] <= high], colour)
        for run in runs:
            if run.tokens == tokens:
                chart.dot(math.log10(run.weights), run.loss, colour)
        chart.text(chart.right + 12, chart.top + 16 + 18 * number, f"{_short(tokens)} tokens", colour)
    place = math.log10(at)
    chart.line([(place, predicted.low), (place, predicted.high)], "black", width=2)
    beside, above, below = chart.x(place) - 8, chart.y(predicted.high) - 6, chart.y(predicted.low) + 16
    chart.text(beside, above, f"predicted {predicted.value:.4f}", anchor="end")
    if measured is not None:
        chart.dot(place, measured, "black", filled=False)
        chart.text(beside, below, f"measured {measured:.4f}", anchor="end")
    return str(chart)


def _short(value: float) -> str:
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.0f}"
