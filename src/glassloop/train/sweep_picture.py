"""The picture of a sweep (SVG): losses over weights, a curve of the law for each budget of tokens, and the
predicted run with its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence

from glassloop.train.scaling import Fit, Interval, Measured

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 720, 420, 60, 46, 20, 150
_COLOURS = ("#7a9cc6", "#5aa469", "#c6a03a", "#c65d3a", "#8a6bb1", "#4a4a4a")


def sweep_svg(
    runs: Sequence[Measured], fit: Fit, target: Measured | tuple[int, int, None], predicted: Interval
) -> str:
    """Returns the picture. `target` is the predicted run; its loss is None if it has not been made."""
    weights = [run.weights for run in runs] + [target[0]]
    losses = [run.loss for run in runs] + [*predicted] + ([] if target[2] is None else [target[2]])
    left, right = math.log10(min(weights)) - 0.1, math.log10(max(weights)) + 0.1
    low, high = min(losses), max(losses)
    low, high = low - 0.05 * (high - low) - 1e-9, high + 0.05 * (high - low) + 1e-9

    def x(value: float) -> float:
        return _LEFT + (math.log10(value) - left) / (right - left) * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return _TOP + (high - value) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
    ]
    for tick in range(5):
        value = low + (high - low) * tick / 4
        parts.append(
            f'<line x1="{_LEFT}" y1="{y(value):.1f}" x2="{_WIDTH - _RIGHT}" y2="{y(value):.1f}"'
            ' stroke="#ddd"/>'
            f'<text x="{_LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.2f}</text>'
        )
    for value in sorted(set(weights)):
        parts.append(
            f'<text x="{x(value):.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">'
            f"{_short(value)}</text>"
        )
    for number, tokens in enumerate(sorted({run.tokens for run in runs})):
        colour = _COLOURS[number % len(_COLOURS)]
        steps = [10 ** (left + (right - left) * step / 60) for step in range(61)]
        line = [(x(n), fit.law.loss(n, tokens)) for n in steps]
        path = " ".join(f"{at:.1f},{y(loss):.1f}" for at, loss in line if low <= loss <= high)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        parts += [
            f'<circle cx="{x(run.weights):.1f}" cy="{y(run.loss):.1f}" r="3.5" fill="{colour}"/>'
            for run in runs
            if run.tokens == tokens
        ]
        parts.append(
            f'<text x="{_WIDTH - _RIGHT + 12}" y="{_TOP + 16 + 18 * number}" fill="{colour}">'
            f"{_short(tokens)} tokens</text>"
        )
    at = x(target[0])
    parts.append(
        f'<line x1="{at:.1f}" y1="{y(predicted.low):.1f}" x2="{at:.1f}" y2="{y(predicted.high):.1f}"'
        ' stroke="black" stroke-width="2"/>'
        f'<text x="{at - 8:.1f}" y="{y(predicted.high) - 6:.1f}" text-anchor="end">predicted'
        f" {predicted.value:.4f}</text>"
    )
    if target[2] is not None:
        parts.append(
            f'<circle cx="{at:.1f}" cy="{y(target[2]):.1f}" r="5" fill="none" stroke="black"'
            ' stroke-width="2"/>'
            f'<text x="{at - 8:.1f}" y="{y(predicted.low) + 16:.1f}" text-anchor="end">measured'
            f" {target[2]:.4f}</text>"
        )
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(
        f'<text x="{middle}" y="{_HEIGHT - 8}" text-anchor="middle">weights of the layers</text></svg>'
    )
    return "\n".join(parts) + "\n"


def _short(value: float) -> str:
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.0f}"
