"""What has the lenses of a model: an engine of this process, or a cluster."""

from __future__ import annotations

from typing import Protocol

from glassloop.engine.deadline import Deadline
from glassloop.engine.expert_routes import ExpertRoutes
from glassloop.engine.lens_results import AttentionWeights, Layers, Neighbours, Text


class LensReader(Protocol):
    """The lenses of a model, for one token of a run, a text or a list of token ids."""

    def attention(
        self, text: Text, token: int | str = -1, *, deadline: Deadline | None = None
    ) -> AttentionWeights: ...

    def layers(
        self, text: Text, token: int | str = -1, count: int = 5, *, deadline: Deadline | None = None
    ) -> Layers: ...

    def experts(
        self, text: Text, token: int | str = -1, *, deadline: Deadline | None = None
    ) -> ExpertRoutes: ...

    def neighbours(
        self, of: int | str, count: int = 10, *, deadline: Deadline | None = None
    ) -> Neighbours: ...

    def neighbours_in(
        self, text: Text, token: int | str = -1, count: int = 10, *, deadline: Deadline | None = None
    ) -> Neighbours: ...
