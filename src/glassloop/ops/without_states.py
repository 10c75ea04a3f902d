"""The recurrent operations of op sets that lack them: models that need one are refused before they are
loaded."""

from __future__ import annotations

from typing import Any

from glassloop.errors import ModelError
from glassloop.ops.state_cache import StatePages, StateSpec

RECURRENT_OPS = frozenset({"conv"})


class WithoutStates:
    """A base of op sets without recurrent layers, which names these operations in `lacks`."""

    name: str

    def states(self, spec: StateSpec, states: int, rows: int) -> StatePages:
        raise self._refusal()

    def conv(self, *_: Any) -> Any:
        raise self._refusal()

    def _refusal(self) -> ModelError:
        return ModelError(f"the {self.name} op set has no recurrent layers; take ops='native'")
