"""The field `diffusion` of request bodies, and the request for the engine that it makes."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Literal

from pydantic import Field

from glassloop.decode.diffusion import Diffusion
from glassloop.diffuse.write import DiffusionRequest, by_diffusion
from glassloop.engine.request import Request
from glassloop.server.sampling_options import Body
from glassloop.server.service import Service


class DiffusionOptions(Body):
    """How masks are filled; docs/diffusion.md says what each option does. `Diffusion` checks the ranges."""

    block: int | None = Field(None, description="Masks at once; blocks are written from left to right.")
    passes: int | None = Field(None, description="The most passes for a block.")
    threshold: float | None = Field(
        None, description="Fill every place where some token has at least this probability; null: none."
    )
    entropy: float | None = Field(
        None, description="Fill the surest places, whose entropies add up to this many nats."
    )
    most: int | None = Field(None, description="The most places that a pass fills.")
    order: Literal["confidence", "entropy", "left", "random"] | None = Field(
        None, description="Which places are filled first."
    )
    revise: int | None = Field(
        None, description="How often tokens of a full block are taken back and filled again."
    )
    retake: float | None = Field(None, description="The share of the block's tokens that are taken back.")
    revise_by: Literal["confidence", "likelihood"] | None = Field(
        None, description="What decides which tokens are taken back."
    )

    @property
    def values(self) -> dict[str, Any]:
        """The options that the client has set. That of `threshold` may be null, which turns it off."""
        off = {"threshold": None} if "threshold" in self.model_fields_set else {}
        return off | self.given


assert set(DiffusionOptions.model_fields) == {each.name for each in fields(Diffusion)}


def diffused(service: Service, request: Request, options: DiffusionOptions) -> DiffusionRequest:
    """Returns a prepared request as one that is written by diffusion. Not for the event loop's thread: the
    first one loads the adapter for masked rows."""
    service.llm.check_computes("diffusion")
    return by_diffusion(service.llm, request, options.values)
