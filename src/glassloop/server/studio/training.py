"""`GET /api/training`: the training runs in the folder that `serve --training` names, with their curves.

Only folders that a listing of that folder finds can be read, never a path that a client sends. What is read
of each and what is shown of it are bounded.
"""

from __future__ import annotations

import json
import os
import time
import tomllib
from collections.abc import Iterator, Sequence
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response
from typing_extensions import TypedDict

from glassloop.errors import GlassloopError
from glassloop.server.http.errors import ERRORS, APIError
from glassloop.server.http.streaming import JSON, api_answer
from glassloop.server.service import Service
from glassloop.train.curves import Point, thinned
from glassloop.train.run_folder import RunFolder
from glassloop.util.files import read_at_most

_MOST_RUNS = 100  # of a folder: the ones that changed last
_MOST_CURVES = 64 << 20  # bytes of a run's curves
_MOST_CONFIG = 1 << 20
_TAIL = 1 << 16  # bytes that the list reads of the curves of each run
_MOST_SAMPLES = 100  # of a run: the last ones
_MOST_TEXT = 4000  # characters of a sample or a setting
_MOST_SETTINGS = 100
_AVERAGED = ("loss", "lr", "norm")


class TrainingRun(TypedDict):
    name: str
    steps: int | None  # that are planned; None if the settings cannot be read
    step: int  # the last one
    loss: float | None  # of the last step
    validation: float | None  # the last one
    tokens: int | None  # that it has seen
    seconds: float | None  # of training
    ended: bool
    changed: float  # Unix time
    idle: float  # seconds since then


class TrainingSample(TypedDict):
    step: int
    text: str


class TrainingCurves(TrainingRun):
    """A curve is a list of [step, value]. Of more than `points` steps, each value is the mean of some
    neighbours."""

    settings: dict[str, Any]
    curves: dict[str, list[tuple[float, float]]]  # loss, lr, norm, validation, tokens_per_second
    samples: list[TrainingSample]


@api_answer
class TrainingList(TypedDict):
    runs: list[TrainingRun]
    shown: TrainingCurves | None  # the one that was asked for, or else the first


def router(service: Service) -> APIRouter:
    routes = APIRouter(prefix="/api", tags=["operation"], responses=ERRORS)
    folder = service.settings.training

    @routes.get("/training", response_model=TrainingList)
    async def training(
        run: Annotated[str | None, Query(max_length=255)] = None,
        points: Annotated[int, Query(ge=2, le=2000)] = 400,
    ) -> Response:
        """The training runs, the one that changed last first, and the curves, settings and samples of one of
        them. There are none without `--training`."""

        def answer() -> Response:
            folders = _folders(folder)
            if run is not None and run not in folders:
                raise APIError(404, f"there is no training run {run!r}", code="no_such_training_run")
            shown = folders[run] if run is not None else next(iter(folders.values()), None)
            return JSON(
                TrainingList(
                    runs=[_summary(each, _last_points(each)) for each in folders.values()],
                    shown=None if shown is None else _curves(shown, points),
                )
            )

        return await service.pools.rendering.run(answer)

    return routes


def _folders(folder: Path | None) -> dict[str, RunFolder]:
    """Returns the runs by their names: the folder itself if it is one, and those in it."""
    if folder is None:
        return {}
    try:
        paths = [folder, *sorted(folder.iterdir())]
    except OSError:
        return {}
    folders = [RunFolder(path) for path in paths]
    runs = [(each, _changed(each)) for each in folders]
    newest = sorted((pair for pair in runs if pair[1] > 0), key=lambda pair: -pair[1])[:_MOST_RUNS]
    return {each.path.resolve().name: each for each, _ in newest}


def _changed(run: RunFolder) -> float:
    """Returns when the curves were written last; 0 if the folder is no run."""
    try:
        return run.curves.stat().st_mtime if run.curves.is_file() else 0.0
    except OSError:
        return 0.0


def _read_points(data: bytes) -> Iterator[Point]:
    """Yields the points of lines of JSON. A line that is cut off, or is no point, is left out."""
    for line in data.split(b"\n"):
        try:
            point = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(point, dict) and type(point.get("step")) is int:
            yield point


def _last_points(run: RunFolder) -> list[Point]:
    """Returns the points at the end of the curves: enough to see how far a run is."""
    try:
        with run.curves.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
            return list(_read_points(file.read(_TAIL)))
    except OSError:
        return []


def _summary(run: RunFolder, points: Sequence[Point]) -> TrainingRun:
    steps = _settings(run).get("steps")
    changed = _changed(run)
    tokens = _last(points, "tokens")
    return TrainingRun(
        name=run.path.resolve().name,
        steps=steps if type(steps) is int else None,
        step=max((point["step"] for point in points), default=0),
        loss=_last(points, "loss"),
        validation=_last(points, "validation"),
        tokens=None if tokens is None else int(tokens),
        seconds=_last(points, "seconds"),
        ended=run.result_file.exists(),
        changed=changed,
        idle=max(0.0, time.time() - changed),
    )


def _curves(run: RunFolder, most: int) -> TrainingCurves:
    try:
        points = list(_read_points(read_at_most(run.curves, _MOST_CURVES, GlassloopError)))
    except GlassloopError:
        text = f"the curves of {run.path.name} cannot be read, or are longer than {_MOST_CURVES} bytes"
        raise APIError(409, text, code="unreadable_training_run") from None
    samples = [point for point in points if isinstance(point.get("sample"), str)]
    return TrainingCurves(
        **_summary(run, points),
        settings=_settings(run),
        curves={
            **{name: _curve(points, name, most) for name in _AVERAGED},
            "validation": _curve(points, "validation", most),
            "tokens_per_second": _speed(points, most),
        },
        samples=[
            TrainingSample(step=point["step"], text=point["sample"][:_MOST_TEXT])
            for point in samples[-_MOST_SAMPLES:]
        ],
    )


def _settings(run: RunFolder) -> dict[str, Any]:
    """Returns the plain values of the settings."""
    try:
        values = tomllib.loads(read_at_most(run.config_file, _MOST_CONFIG, GlassloopError).decode())
    except (GlassloopError, ValueError, RecursionError):
        return {}
    plain = {
        name: value[:_MOST_TEXT] if isinstance(value, str) else value
        for name, value in values.items()
        if isinstance(value, str | bool) or _is_number(value)
    }
    return dict(list(plain.items())[:_MOST_SETTINGS])


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e300 and isfinite(value)


def _last(points: Sequence[Point], name: str) -> Any:
    return next((point[name] for point in reversed(points) if _is_number(point.get(name))), None)


def _curve(points: Sequence[Point], name: str, most: int) -> list[tuple[float, float]]:
    """Returns at most `most` points of one of the curves, each the mean of its neighbours."""
    line = [(point["step"], point[name]) for point in points if _is_number(point.get(name))]
    return thinned(line, most)


def _speed(points: Sequence[Point], most: int) -> list[tuple[float, float]]:
    """Returns the tokens per second of each stretch of steps."""
    timed = [each for each in points if _is_number(each.get("tokens")) and _is_number(each.get("seconds"))]
    size = max(1, -(-len(timed) // most))
    speeds = []
    for one, other in zip(timed[::size], timed[size::size], strict=False):
        took = other["seconds"] - one["seconds"]
        if took > 0:
            speeds.append((float(other["step"]), (other["tokens"] - one["tokens"]) / took))
    return speeds
