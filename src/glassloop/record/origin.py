"""Where the tokens of a run came from, as one class for each case:

- `LeftToRight`: this engine, each token after those before it;
- `ByMasks`: this engine, by filling masks in passes;
- `OtherEngine`: another engine, behind an OpenAI-compatible API.

What differs between them is asked of the origin (`run.origin.is_local`). Explaining and replaying a run need
a model; `LLM.explain` and `LLM.replay` dispatch on the class of the origin.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar

from glassloop.record.passes import PassRecord
from glassloop.record.run_parts import Usage


@dataclass(frozen=True)
class Origin:
    """Where the tokens of a run came from. The defaults are those of `LeftToRight`."""

    is_local: ClassVar[bool] = True  # whether this program computed the run, so that it can do so again
    in_order: ClassVar[bool] = True  # whether each token came after those before it

    @property
    def described(self) -> str:
        """What computed the run, in a few words."""
        return "this program itself"

    def usage(self, prompt: int, answer: int, cached: int, context: int) -> Usage:
        """Returns the token counts of a run from what its record has: the number of tokens of the prompt, of
        the answer and of the part of the prompt that was cached, and the length of the context."""
        return Usage(prompt, answer, cached, context - prompt - answer)

    def copy(self) -> Origin:
        """Returns a copy that does not change while the run goes on."""
        return self

    def begun(self) -> Origin:
        """Returns the origin of a run of which nothing is written yet."""
        return self

    def to_header(self) -> dict[str, Any]:
        """Returns the fields of a `.glass` header that only runs of this origin have."""
        return {}

    def to_facts(self) -> dict[str, Any]:
        """Returns the fields that a store's list has only for runs of this origin."""
        return {}

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields of a run's JSON form that depend on its origin."""
        return {"upstream": None, **self.to_facts()}


@dataclass(frozen=True)
class LeftToRight(Origin):
    """This engine computed the run, each token after those before it."""


@dataclass(frozen=True)
class ByMasks(Origin):
    """This engine computed the run by filling masks, in passes."""

    options: dict[str, Any]  # of `Diffusion`, with the hash of the adapter; for a hole also `after`
    passes: list[PassRecord] = field(default_factory=list)  # grows while the run is written

    in_order: ClassVar[bool] = False

    def copy(self) -> ByMasks:
        return replace(self, passes=list(self.passes))

    def begun(self) -> ByMasks:
        return replace(self, passes=[])

    def to_header(self) -> dict[str, Any]:
        return {"diffusion": self.options, "passes": [each.to_row() for each in self.passes]}

    def to_facts(self) -> dict[str, Any]:
        return {"diffusion": self.options, "passes": len(self.passes)}

    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | {"passes": [each.to_dict() for each in self.passes]}


@dataclass(frozen=True)
class OtherEngine(Origin):
    """Another engine computed the run. Its tokens have the numbers that it reported; all others are unknown:
    NaN, or 0 for a rank. Token ids are names that this program made from the tokens' bytes."""

    url: str  # of its API, without a key
    server: str  # the kind of server, as far as it is known: vllm, llamacpp, …
    endpoint: str  # chat or completions
    logprobs: bool = True  # whether it reports tokens; without, an entry is a part of the text as it came
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    fingerprint: str | None = None  # its own name for what computed the run

    is_local: ClassVar[bool] = False

    @property
    def described(self) -> str:
        return f"another engine, {f'{self.server} ' if self.server else ''}at {self.url}"

    def usage(self, prompt: int, answer: int, cached: int, context: int) -> Usage:
        completion = self.completion_tokens
        if self.logprobs and completion is None:
            completion = answer
        left = None
        if context and self.prompt_tokens is not None and completion is not None:
            left = max(0, context - self.prompt_tokens - completion)
        return Usage(self.prompt_tokens, completion, self.cached_tokens, left)

    def to_header(self) -> dict[str, Any]:
        return {"upstream": asdict(self)}

    def to_facts(self) -> dict[str, Any]:
        return self.to_header()


def origin_of(header: Mapping[str, Any]) -> Origin:
    """Returns the origin that a checked `.glass` header describes."""
    if header.get("upstream") is not None:
        return OtherEngine(**header["upstream"])
    if header.get("diffusion") is not None:
        return ByMasks(header["diffusion"], [PassRecord.of_row(row) for row in header.get("passes", ())])
    return LeftToRight()
