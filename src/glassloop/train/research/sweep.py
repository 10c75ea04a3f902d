"""`glassloop train sweep`: runs of several sizes and budgets, the scaling law they follow, and a prediction
that is written down before the run it is about begins.

A sweep folder has the token files, one run folder for each run, `prediction.json`, `sweep.json` and
`sweep.svg`. A sweep that was stopped goes on where it was: a finished run is not repeated.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from glassloop.train.config import TrainConfig, TrainError, TrainingInterrupted, config_text
from glassloop.train.new_model import new_config
from glassloop.train.research.scaling import Estimate, Fit, TrainedSize, fit
from glassloop.train.research.sweep_picture import sweep_svg
from glassloop.train.run_folder import RunFolder
from glassloop.train.subject import prepare_data
from glassloop.train.token_files import TokenFiles
from glassloop.train.train import resume, train
from glassloop.util.files import write_text
from glassloop.util.plain_text import PlainTable
from glassloop.util.progress import ProgressBar

_MOST_RUNS = 1000
_LEAST_COST = 60_000
_HEADS = (32, 16)  # widths of a head: the first that divides the widths of all models of a sweep


class Size(NamedTuple):
    """A size of model, written "4x96"."""

    layers: int
    dim: int

    def __str__(self) -> str:
        return f"{self.layers}x{self.dim}"

    @classmethod
    def parse(cls, text: str) -> Size:
        layers, _, dim = text.partition("x")
        if not (layers.isascii() and layers.isdigit() and dim.isascii() and dim.isdigit()):
            raise TrainError.about("sizes", f"has {text!r}; layers and width such as 4x96 are expected")
        size = cls(int(layers), int(dim))
        step = _HEADS[-1]
        if not 1 <= size.layers <= 4096 or not step <= size.dim <= 1 << 16 or size.dim % step:
            raise TrainError.about(
                "sizes", f"has {text!r}; at least one layer and a width in multiples of {step} are expected"
            )
        return size


def head_width(sizes: Sequence[Size]) -> int:
    """Returns the width of the heads of all models of a sweep. It is the same for all of them, so that
    larger models differ from smaller ones in nothing but layers and width."""
    return next((head for head in _HEADS if all(size.dim % head == 0 for size in sizes)), _HEADS[-1])


@dataclass(frozen=True)
class Sweep:
    """The result of a sweep."""

    runs: dict[str, TrainedSize]  # by the name of the run folder
    fit: Fit
    target: str
    target_weights: int
    target_tokens: int
    predicted: Estimate
    measured: float | None  # None: the run has not been made

    @property
    def error(self) -> float | None:
        """How far the prediction is from the measured loss, as a share of it."""
        return None if self.measured is None else self.predicted.value / self.measured - 1


def sweep(
    config: TrainConfig,
    folder: str | Path,
    *,
    sizes: Sequence[Size],
    budgets: Sequence[int],
    times: float = 4.0,
    jobs: int = 1,
    run_target: bool = True,
    quiet: bool = False,
) -> Sweep:
    """Trains every size with every budget of tokens, fits the law, predicts the loss of a model with `times`
    as many weights in its layers as the largest, trained with the largest budget, and then trains it.

    `config` has all other settings. Its learning rate belongs to the smallest size; a model of twice the
    width has half of it. `jobs` runs are made at a time, each in a process of its own if there are several.
    """
    place = Path(folder)
    sizes, budgets = sorted(set(sizes), key=_layer_weights), sorted(set(budgets))
    if not sizes or not budgets or len(sizes) * len(budgets) > _MOST_RUNS:
        raise TrainError.about("sizes", f"and budgets make 1 to {_MOST_RUNS} runs")
    if config.model is not None or config.lora_rank or config.teacher is not None:
        raise TrainError.about("model", "is given; a sweep trains new models")
    say = ProgressBar(1, 0, quiet).say
    place.mkdir(parents=True, exist_ok=True)
    data = prepare_data(config, place, say)
    base = replace(config, data=(str(data),))
    _check_budget(base, data, budgets[-1], say)

    head = head_width(sizes)

    def settings(size: Size, tokens: int) -> TrainConfig:
        return _settings(base, size, tokens, sizes[0], head)

    plan = {f"{size}-{tokens}": (size, tokens) for size in sizes for tokens in budgets}
    target = larger(sizes[-1], times, head)
    wanted = settings(target, budgets[-1])
    name = f"target-{target}-{budgets[-1]}"
    configs = {each: settings(*parts) for each, parts in plan.items()}
    making = _Runs(configs | ({name: wanted} if run_target else {}), place, quiet)
    losses = making.losses(plan, jobs)
    runs = {
        each: TrainedSize(_layer_weights(size), configs[each].steps * base.tokens_per_step, losses[each])
        for each, (size, _) in plan.items()
    }
    fitted = fit(list(runs.values()), seed=config.seed)
    weights, tokens = _layer_weights(target), wanted.steps * base.tokens_per_step
    predicted = fitted.predict(weights, tokens, config.seed)
    result = Sweep(runs, fitted, name, weights, tokens, predicted, None)
    kept = place / "prediction.json"
    if not kept.exists() and (place / name).exists():
        raise TrainError(f"{place / name}: has a run already, but {kept} does not exist")
    if not kept.exists():
        write_text(
            kept, json.dumps({"at": datetime.now(UTC).isoformat(), **sweep_facts(result)}, indent=1) + "\n"
        )
        making.say(
            f"predicted: {predicted.value:.4f} ({predicted.low:.4f} to {predicted.high:.4f}) for {name}"
        )
    if run_target:
        result = replace(result, measured=making.losses([name], 1)[name])
    write_text(place / "sweep.json", json.dumps(sweep_facts(result), indent=1) + "\n")
    write_text(place / "sweep.svg", sweep_svg(list(runs.values()), fitted, made_point(result), predicted))
    return result


def larger(size: Size, times: float, head: int) -> Size:
    """Returns a size with at least `times` the weights in its layers, deeper and wider in equal parts, whose
    width is a multiple of that of a head."""
    layers = max(size.layers, round(size.layers * times ** (1 / 3)))
    dim = size.dim
    while _layer_weights(Size(layers, dim)) < times * _layer_weights(size):
        dim += head
    return Size(layers, dim)


def made_point(result: Sweep) -> TrainedSize | tuple[int, int, None]:
    """Returns the point of the predicted run, without a loss if it has not been made."""
    if result.measured is None:
        return result.target_weights, result.target_tokens, None
    return TrainedSize(result.target_weights, result.target_tokens, result.measured)


def sweep_text(result: Sweep) -> str:
    """Returns a sweep as text: a table of losses by size and budget, the law, and the prediction."""
    sizes = list(dict.fromkeys(name.split("-")[0] for name in result.runs))
    budgets = list(dict.fromkeys(name.split("-")[1] for name in result.runs))
    rows = []
    for size in sizes:
        weights = result.runs[f"{size}-{budgets[0]}"].weights
        rows.append([size, f"{weights:,.0f}", *(f"{result.runs[f'{size}-{b}'].loss:.4f}" for b in budgets)])
    header = ["size", "weights", *(f"{int(budget):,}" for budget in budgets)]
    law, bounds = result.fit.law, result.fit.intervals()
    spans = ", ".join(f"{name} {v.value:.3g} ({v.low:.3g} to {v.high:.3g})" for name, v in bounds.items())
    lines = [
        str(PlainTable(header, rows, header)),
        "",
        f"loss = {law.floor:.3f} + {law.a:.4g} / weights^{law.alpha:.3f}"
        f" + {law.b:.4g} / tokens^{law.beta:.3f}",
        f"95 % intervals: {spans}",
        f"predicted for {result.target_weights:,} weights and {result.target_tokens:,} tokens:"
        f" {result.predicted.value:.4f} ({result.predicted.low:.4f} to {result.predicted.high:.4f})",
    ]
    if result.measured is not None and result.error is not None:
        lines.append(f"measured: {result.measured:.4f}; the prediction is off by {result.error:+.2%}")
    return "\n".join(lines)


def sweep_facts(result: Sweep) -> dict[str, Any]:
    """Returns a sweep as JSON values."""
    return {
        "runs": {name: run._asdict() for name, run in result.runs.items()},
        "law": vars(result.fit.law),
        "intervals": {name: each._asdict() for name, each in result.fit.intervals().items()},
        "residuals": list(result.fit.residuals),
        "target": {"name": result.target, "weights": result.target_weights, "tokens": result.target_tokens},
        "predicted": result.predicted._asdict(),
        "measured": result.measured,
        "error": result.error,
    }


def _settings(base: TrainConfig, size: Size, tokens: int, smallest: Size, head: int) -> TrainConfig:
    steps = max(1, round(tokens / base.tokens_per_step))
    return replace(
        base,
        layers=size.layers,
        dim=size.dim,
        heads=size.dim // head,
        kv_heads=None,
        ffn_dim=None,
        steps=steps,
        warmup=min(base.warmup, steps // 10),
        lr=base.lr * smallest.dim / size.dim,
        validate_every=0,
        checkpoint_every=max(500, steps // 4),
        sample_every=0,
        sample_tokens=1,
        patience=0,
    )


def _layer_weights(size: Size) -> int:
    """Returns the weights of the layers. Those of the embedding are not counted: they do not compute."""
    config = TrainConfig(layers=size.layers, dim=size.dim, heads=1)
    return sum(
        rows * columns
        for name, (rows, columns) in (
            (name, shape) for name, shape in new_config(config, 256).shapes().items() if len(shape) == 2
        )
        if name.startswith("layers.")
    )


def _check_budget(config: TrainConfig, data: Path, most: int, say: Callable[[str], None]) -> None:
    tokens = TokenFiles(data).tokens
    if most > tokens * (1 - config.validation_share):
        say(f"the data has {tokens:,} tokens: a budget of {most:,} reads some more than once")


class _Runs:
    """Makes the runs of a sweep that are not finished, and shows how much of all of them is done."""

    def __init__(self, plan: Mapping[str, TrainConfig], place: Path, quiet: bool) -> None:
        self._plan, self._place = plan, place
        self._work = {name: config.steps * _cost(config) for name, config in plan.items()}
        self._done = sum(work for name, work in self._work.items() if RunFolder(place / name).result)
        self._progress = ProgressBar(sum(self._work.values()), self._done, quiet)
        self.say = self._progress.say

    def losses(self, names: Iterable[str], jobs: int) -> dict[str, float]:
        """Makes runs and returns their validation losses by name: `jobs` at a time, each in a process of its
        own if there are several."""
        if jobs == 1:
            with self._progress:
                return {name: self._loss(name, self._make) for name in names}
        with ThreadPoolExecutor(jobs) as pool:
            return dict(pool.map(lambda name: (name, self._loss(name, _in_a_process)), names))

    def _loss(self, name: str, make: Callable[[TrainConfig, Path], None]) -> float:
        folder = self._place / name
        if RunFolder(folder).result is None:
            make(self._plan[name], folder)
            self._done += self._work[name]
        result = RunFolder(folder).result
        if result is None or result["validation"] is None:
            raise TrainError(f"{folder}: has no validation loss")
        self.say(f"{name}: {result['validation']:.4f}")
        return float(result["validation"])

    def _make(self, config: TrainConfig, folder: Path) -> None:
        def show(step: int) -> None:
            done = self._done + step * _cost(config)
            self._progress.show(done, f"{folder.name}  step {step}/{config.steps}")

        try:
            if RunFolder(folder).has_begun:
                resume(folder, quiet=True, on_step=show)
            else:
                train(config, folder, quiet=True, on_step=show)
        except TrainingInterrupted as stopped:
            where = f"{folder.name}, step {stopped.step}"
            raise TrainError(f"interrupted in {where}; the same command goes on") from None


def _cost(config: TrainConfig) -> int:
    """Returns about what a step of a run costs, in proportion to those of other runs: on a CPU, even the
    smallest model takes as long as one with this many weights would if all the time went to them."""
    return _LEAST_COST + _layer_weights(Size(config.layers, config.dim))


def _in_a_process(config: TrainConfig, folder: Path) -> None:
    command = [sys.executable, "-m", "glassloop.train"]
    if RunFolder(folder).has_begun:
        command += ["resume", str(folder)]
    else:
        settings = folder.with_name(folder.name + ".toml")
        write_text(settings, config_text(config))
        command += ["run", str(folder), "--config", str(settings)]
    done = subprocess.run([*command, "--quiet"], capture_output=True, text=True)
    if done.returncode:
        raise TrainError(f"{folder}: {done.stderr.strip().splitlines()[-1] if done.stderr else 'failed'}")
