"""`/api/runs/{id}/search`: the search that a run is a path of, and how sure the model was along each path.
docs/thinking.md describes a search, docs/server.md every shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query
from starlette.responses import Response
from typing_extensions import TypedDict

from glassloop.ops.rows import Float64
from glassloop.record.run import Run
from glassloop.search.confidence import WINDOW, group_confidences, reached_by, token_confidences
from glassloop.search.record import read_record
from glassloop.server.http.errors import ERRORS
from glassloop.server.http.streaming import JSON, api_answer
from glassloop.server.runs.state import RunState
from glassloop.server.service import Service
from glassloop.server.studio.runs import Id

_MOST_PATHS = 64  # whose confidence is computed; the first ones
_MOST_WINDOW = 1 << 20


class PathConfidence(TypedDict):
    number: int
    run: str
    tokens: list[int]  # the last token of each group
    groups: list[float]  # the confidence of each group


@api_answer
class SearchConfidence(TypedDict):
    window: int  # tokens of a group
    threshold: float | None  # below which the method stopped paths
    paths: list[PathConfidence]


def router(service: Service) -> APIRouter:
    routes = APIRouter(prefix="/api", tags=["runs"], responses=ERRORS)

    @routes.get("/runs/{id}/search", response_model=dict[str, Any])
    async def search(id: Id) -> Response:
        """Show the search that a run is a path of, or null: every path with its parent and why it ended, the
        votes, and the decisions in their order."""
        record = _record(await service.runs.get(id), id)
        return await service.pools.rendering.run(lambda: JSON({"search": record}))

    @routes.get("/runs/{id}/search/confidence", response_model=SearchConfidence)
    async def confidence(id: Id, points: Annotated[int, Query(ge=1, le=1000)] = 100) -> Response:
        """How sure the model was along each path of a search: the confidence of each group of tokens. Of more
        than `points` groups, the lowest of each stretch is shown. A run that is no path has no paths."""
        state = await service.runs.get(id)
        record = _record(state, id)
        if record is None:
            return JSON(SearchConfidence(window=WINDOW, threshold=None, paths=[]))
        family = {each.run.id: each.run for each in [state, *state.tree.states.values()]}
        paths = [path for path in record["paths"][:_MOST_PATHS] if path["run"] in family]
        runs = [family[path["run"]] for path in paths]
        return await service.threads.render(runs, lambda: JSON(_confidence(record, paths, runs, points)))

    return routes


def _record(state: RunState, id: str) -> dict[str, Any] | None:
    """Returns the record of the search that a run is a path of. It may have come from a file: it is
    checked."""
    family = [state.run, *(each.run for each in state.tree.states.values())]
    record: dict[str, Any] | None = next((run.search for run in family if run.search is not None), None)
    if record is not None:
        read_record(record)
        if not any(path["run"] == id for path in record["paths"]):
            return None
    return record


def _confidence(
    record: dict[str, Any], paths: Sequence[dict[str, Any]], runs: Sequence[Run], points: int
) -> SearchConfidence:
    options = record["options"]
    window = options.get("window", WINDOW)
    window = window if isinstance(window, int) and 1 <= window <= _MOST_WINDOW else WINDOW
    return SearchConfidence(
        window=window,
        threshold=_threshold(record),
        paths=[
            _path_confidence(path["number"], run, window, points)
            for path, run in zip(paths, runs, strict=True)
        ],
    )


def _path_confidence(number: int, run: Run, window: int, points: int) -> PathConfidence:
    confidences = token_confidences(run.tokens)
    places = np.flatnonzero(~np.isnan(confidences))
    groups: Float64 = group_confidences(confidences, window)
    last = places[len(places) - len(groups) :]
    stretches = np.array_split(np.arange(len(groups)), min(points, len(groups)) or 1)
    lowest = [int(each[np.argmin(groups[each])]) for each in stretches if len(each)]
    return PathConfidence(
        number=number,
        run=run.id,
        tokens=[int(last[at]) for at in lowest],
        groups=[float(groups[at]) for at in lowest],
    )


def _threshold(record: dict[str, Any]) -> float | None:
    """Returns the threshold of the method `confidence`, which its warm-up paths set."""
    warmup, keep = record["options"].get("warmup"), record["options"].get("keep")
    if record["method"] != "confidence" or not isinstance(warmup, int) or not isinstance(keep, float | int):
        return None
    if not any(each["action"] == "note" for each in record["decisions"]):
        return None  # it ended before the threshold was set
    lowest = [path["confidence"] or 0.0 for path in record["paths"][: max(0, warmup)]]
    return reached_by(lowest, keep) if lowest else None
