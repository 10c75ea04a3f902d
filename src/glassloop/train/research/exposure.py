"""Exposure bias, measured: `glassloop train exposure`.

A student learns what comes after text of its teacher, and when it writes, it reads its own. If the teacher is
taken as the true distribution, then KL(teacher ‖ student) for the next token is known exactly for any text,
and its mean by position on texts of the teacher and on texts of the student shows how errors add up. On the
teacher's texts, the sum over the positions is the divergence of whole texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from glassloop.train.config import TrainError
from glassloop.train.gradient_ops import SequenceBatch
from glassloop.train.network import Network
from glassloop.train.research.scaling import Estimate, interval
from glassloop.train.sample_text import after_end, sample_batch
from glassloop.util.chart import COLOURS, Chart
from glassloop.util.plain_text import PlainTable

_AT_ONCE = 1 << 26  # logits that are compared at once
_RESAMPLES = 1000


@dataclass(frozen=True)
class Exposure:
    """KL(teacher ‖ student) in nats per token, by text and position: [texts, positions]. Positions after the
    end of a text are NaN."""

    on_teacher: NDArray[np.float64]
    on_student: NDArray[np.float64]

    def curves(self) -> tuple[list[float], list[float]]:
        """Returns the means by position, on the teacher's texts and on the student's."""
        return [float(v) for v in _means(self.on_teacher)], [float(v) for v in _means(self.on_student)]

    def mean(self, on: str) -> Estimate:
        """Returns the mean over all positions, on "teacher" or "student" texts."""
        values = self.on_teacher if on == "teacher" else self.on_student
        return interval(float(np.nanmean(values)), _resampled_means(values))

    def excess(self) -> Estimate:
        """Returns how much larger the divergence is on the student's own texts, as a share: 0 is no bias."""
        ratios = (
            _resampled_means(self.on_student, 1) / np.maximum(1e-12, _resampled_means(self.on_teacher)) - 1
        )
        on_student, other = float(np.nanmean(self.on_student)), float(np.nanmean(self.on_teacher))
        return interval(on_student / max(1e-12, other) - 1, ratios)

    def facts(self) -> dict[str, Any]:
        """Returns the figures as JSON values."""
        teacher, student = self.curves()
        return {
            "texts": len(self.on_teacher),
            "on_teacher": {"by_position": teacher, "mean": self.mean("teacher")._asdict()},
            "on_student": {"by_position": student, "mean": self.mean("student")._asdict()},
            "excess": self.excess()._asdict(),
        }


def measure_exposure(
    teacher: Network,
    student: Network,
    prompts: torch.Tensor,
    count: int,
    *,
    ends: tuple[int, ...] = (),
    seed: int = 0,
    batch: int = 64,
) -> Exposure:
    """Lets teacher and student write `count` tokens after each prompt, [prompts, length], at temperature 1,
    and compares their next-token distributions on all of these texts."""
    if teacher.config.vocab_size != student.config.vocab_size:
        raise TrainError.about(
            "student",
            f"has a vocabulary of {student.config.vocab_size} tokens; the teacher has"
            f" {teacher.config.vocab_size}",
        )
    length = prompts.shape[1] + count
    shortest = min(teacher.config.context, student.config.context)
    if length > shortest:
        raise TrainError.about("tokens", f"and prompts need {length} positions; the context is {shortest}")
    divergences: list[NDArray[np.float64]] = []
    for writer in (teacher, student):
        parts = []
        for at in range(0, len(prompts), batch):
            ids = sample_batch(writer, prompts[at : at + batch], count, seed + at)
            parts.append(_divergences(teacher, student, ids, prompts.shape[1], ends))
        divergences.append(np.concatenate(parts))
    return Exposure(*divergences)


def _divergences(
    teacher: Network, student: Network, ids: torch.Tensor, prompt: int, ends: tuple[int, ...]
) -> NDArray[np.float64]:
    """Returns KL(teacher ‖ student) for each token after the prompt, NaN after the end of a text."""
    inputs, length = ids[:, :-1], ids.shape[1] - 1
    positions = length + 1 - prompt
    some = max(1, _AT_ONCE // (teacher.config.vocab_size * positions))
    parts = []
    with torch.no_grad():
        for at in range(0, len(inputs), some):
            rows = inputs[at : at + some]
            places = torch.arange(length, device=rows.device).repeat(len(rows))
            wanted = torch.arange(len(rows) * length, device=rows.device).reshape(len(rows), length)
            batch = SequenceBatch(
                rows.reshape(-1), places, len(rows), length, wanted=wanted[:, prompt - 1 :].reshape(-1)
            )
            teacher_logprobs, student_logprobs = (
                torch.log_softmax(each.logits(batch).float(), -1) for each in (teacher, student)
            )  # [texts * positions, vocabulary]
            parts.append(
                (teacher_logprobs.exp() * (teacher_logprobs - student_logprobs))
                .sum(-1)
                .reshape(len(rows), positions)
            )
    divergences = torch.cat(parts).double().masked_fill(after_end(ids, ends)[:, prompt:], torch.nan)
    values: NDArray[np.float64] = divergences.cpu().numpy()
    return values


def exposure_text(exposures: dict[str, Exposure]) -> str:
    """Returns the figures of one or several students as text, in eight stretches of positions."""
    parts = []
    for name, each in exposures.items():
        teacher, student = each.curves()
        size = -(-len(teacher) // 8)
        rows = [
            [
                f"{at + 1}-{min(at + size, len(teacher))}",
                f"{np.nanmean(teacher[at : at + size]):.4f}",
                f"{np.nanmean(student[at : at + size]):.4f}",
            ]
            for at in range(0, len(teacher), size)
        ]
        header = ["position", "on the teacher's texts", "on its own"]
        means = [each.mean("teacher"), each.mean("student"), each.excess()]
        words = [f"{m.value:.4f} ({m.low:.4f} to {m.high:.4f})" for m in means[:2]]
        bias = f"{means[2].value:+.1%} ({means[2].low:+.1%} to {means[2].high:+.1%})"
        parts.append(
            f"{name}: KL(teacher ‖ student), nats per token\n{PlainTable(header, rows, header)}\n"
            f"mean: {words[0]} on the teacher's texts, {words[1]} on its own: {bias}"
        )
    return "\n\n".join(parts)


def exposure_svg(exposures: dict[str, Exposure]) -> str:
    """Returns a picture of the curves: dashed on the teacher's texts, solid on the student's own."""
    curves = {name: [_smooth(curve) for curve in each.curves()] for name, each in exposures.items()}
    values = [v for pair in curves.values() for curve in pair for v in curve if np.isfinite(v)]
    count = max(len(pair[0]) for pair in curves.values())
    names = 16 * len(curves) + 8  # pixels above the curves
    chart = Chart((0, count), (0, max([1e-6, *values]) * (1 + names / 300)), height=376 + names)
    title = "position; dashed: on the teacher's texts, solid: on its own"
    chart.name_x({count * tick / 4: f"{count * tick / 4:.0f}" for tick in range(5)}, title)
    for number, (name, pair) in enumerate(curves.items()):
        colour = COLOURS[number % len(COLOURS)]
        for curve, dashed in zip(pair, (True, False), strict=True):
            points = [(at, value) for at, value in enumerate(curve, 1) if np.isfinite(value)]
            chart.line(points, colour, dashed=dashed)
        chart.text(chart.left + 10, chart.top + 14 + 16 * number, name, colour)
    return str(chart)


def load_network(path: str | Path, device: str) -> Network:
    """Returns a model as a network in float32 whose weights are not trained."""
    from glassloop.model.loader import ModelFiles
    from glassloop.model.registry import fetch

    files = ModelFiles(fetch(str(path)))
    return Network(files.config, files.weights, device=device).freeze()


def _means(values: NDArray[np.float64]) -> NDArray[np.float64]:
    counts = np.maximum(1, (~np.isnan(values)).sum(0))
    means: NDArray[np.float64] = np.nansum(values, 0) / counts
    return means


def _resampled_means(values: NDArray[np.float64], seed: int = 0) -> NDArray[np.float64]:
    """Returns the mean over all positions for many resamples of the texts."""
    random = np.random.default_rng(seed)
    each = np.stack([np.nansum(values, 1), (~np.isnan(values)).sum(1)])  # [2, texts]
    drawn = each[:, random.integers(0, len(values), (_RESAMPLES, len(values)))].sum(2)
    means: NDArray[np.float64] = drawn[0] / np.maximum(1, drawn[1])
    return means


def _smooth(curve: Sequence[float], width: int = 5) -> list[float]:
    half = width // 2
    return [float(np.nanmean(curve[max(0, at - half) : at + half + 1])) for at in range(len(curve))]
