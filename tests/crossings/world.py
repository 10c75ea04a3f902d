"""The engines of a scenario: a small model of some variant with its settings, and engines of the same model
in which a request is alone, with room for everything and without drafts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from unittest.mock import patch

import crossings.stages  # noqa: F401 (registers them)
import numpy as np
from engine.ahead import AheadOps
from engine.small import model, random_weights
from engine.small import tokenizer as byte_tokenizer
from ops.random_adapters import random_adapter
from ops.random_models import random_tensor

from glassloop.api.llm import LLM
from glassloop.engine.adapters import LoadedAdapter
from glassloop.engine.drafting.draft_model import DraftModel
from glassloop.engine.loading import LoadedModel
from glassloop.engine.local import LocalModel
from glassloop.engine.loop import Loop
from glassloop.engine.scheduler import Scheduler
from glassloop.engine.state_slots import StateSlots
from glassloop.engine.tasks import sample
from glassloop.engine.tasks import task as task_module
from glassloop.engine.tasks.masked import Mask
from glassloop.engine.tasks.task import PlannedCall
from glassloop.engine.turns import Turns
from glassloop.model.adapter import Adapter
from glassloop.model.cache_groups import CachePlan
from glassloop.model.config import ModelConfig
from glassloop.model.drafter import DrafterConfig, DrafterFile
from glassloop.model.drafting_transformer import DraftingTransformer
from glassloop.model.transformer import Transformer
from glassloop.ops.native.ops import NativeOps
from glassloop.ops.quant import FORMATS
from glassloop.ops.reference import ReferenceOps
from glassloop.ops.tensor import Tensor
from glassloop.text.pieces import Pieces
from glassloop.text.tokenizer import Tokenizer

MASK = 0
ADAPTERS = ("one", "two")
EXTRAS = ("extra0", "extra1", "extra2")  # that are loaded and unloaded under way
PLENTY = 600  # pages
MANY_STATES, MANY_ROWS = 1000, 10_000
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if loud %}!{% endif %}assistant:"
)


def tokenizer() -> Tokenizer:
    """The tokenizer of the small model, with a chat template."""
    return byte_tokenizer(TEMPLATE)


class Layers(NamedTuple):
    """What the layers of a scenario's model are, beside their windows."""

    experts: bool = False
    mixer: str = "attention"  # of a further layer
    parts: tuple[str, ...] = ()

    @classmethod
    def of(cls, variant: Mapping[str, Any]) -> Layers:
        """Scenarios that were kept before there were other layers say nothing of them."""
        mixer = "short_conv" if variant.get("recurrent") else "attention"
        return cls(bool(variant.get("experts")), mixer, tuple(variant.get("parts", ())))

    def config(self, window: int | None = None) -> ModelConfig:
        return model(window, experts=self.experts, mixer=self.mixer, parts=self.parts).config


@cache
def _weights(layers: Layers) -> dict[str, Tensor]:
    return random_weights(layers.config())


@cache
def adapter_named(name: str, layers: Layers) -> Adapter:
    """Returns an adapter for all layers but those with experts."""
    number, config = (*ADAPTERS, *EXTRAS, "holes").index(name), layers._replace(experts=False).config()
    made = random_adapter(np.random.default_rng(40 + number), config, name)
    made = replace(made, sha256=sha256(name.encode()).hexdigest())
    if name != "holes":
        return made
    vector = np.random.default_rng(6).standard_normal(config.dim).astype(np.float32)
    return replace(made, embedding=vector, mask_token=MASK)


@cache
def _drafter() -> DrafterFile:
    """A drafter of random weights, which drafts half of the tokens."""
    tokens, rng = range(0, 257, 2), np.random.default_rng(1)
    config = DrafterConfig((1, 2), len(tokens), 64)
    weights = {
        name: random_tensor(rng, name, shape, FORMATS["F32"])
        for name, shape in config.shapes(model().config).items()
    }
    return DrafterFile(Path("random"), config, np.array(tokens, np.int32), weights)


def _transformer(variant: Mapping[str, Any], drafts_itself: bool) -> Transformer:
    """Returns a new one: adapters are loaded into it."""
    layers = Layers.of(variant)
    config, weights = layers.config(variant["window"]), _weights(layers)
    ops = {"native": NativeOps, "reference": ReferenceOps, "ahead": AheadOps}[variant["ops"]]()
    if drafts_itself:
        return DraftingTransformer(config, weights, ops, _drafter())
    return Transformer(config, weights, ops)


class World(LLM):
    """An LLM around a small model: everything but the files."""

    def __init__(self, variant: Mapping[str, Any], settings: Mapping[str, Any] | None = None) -> None:
        """Without `settings`, an engine in which requests are alone."""
        draft = "off" if settings is None else variant["draft"]
        self._layers = Layers.of(variant)
        loop = self._loop(_transformer(variant, draft == "drafter"), draft, settings or {})
        LocalModel.__init__(
            self, LoadedModel("crossings", loop, drafter=None if draft == "off" else "lookup")
        )
        identity = f"{variant['window']} {self._layers}"
        self.model_hash = sha256(identity.encode()).hexdigest()  # type: ignore[misc]
        if not self.config.is_recurrent:
            holes = adapter_named("holes", self._layers)
            self._mask = Mask(MASK, self.transformer.load_adapter(holes), sha256=holes.sha256)
        for name in ADAPTERS if settings is not None else (*ADAPTERS, *EXTRAS):
            self.add_adapter(name)

    def _loop(self, transformer: Transformer, draft: str, settings: Mapping[str, Any]) -> Loop:
        ops, vocabulary = transformer.ops, tokenizer()
        for name in ("step_rows", "rows_beside"):
            if name in settings:
                setattr(ops, name, settings[name])
        drafting = None
        if draft == "model":
            # The same model with a short memory: it is often right.
            small = Transformer(self._layers.config(3), _weights(self._layers), NativeOps())
            drafting = DraftModel(small, 60 * small.page_bytes)
        memory = settings.get("pages", PLENTY) * transformer.page_bytes
        running = settings.get("most_running", 64)
        pieces = Pieces(vocabulary).__getitem__
        states, rows = settings.get("states", MANY_STATES), settings.get("rows", MANY_ROWS)
        if (plan := transformer.cache_plan).states is not None:
            memory += plan.slot_bytes(states, rows)
        with patch.object(CachePlan, "slot_counts", lambda plan, memory: (states, rows)):
            made = Loop(transformer, vocabulary, pieces, memory, running, drafting)
        if made.tree.slots is not None:
            _forget(made.scheduler, made.tree.slots, settings.get("forgetful", 0.0))
        # Whether a draft pays is measured. Here it always does, so that a scenario has the same drafts again.
        made.drafts.step_cost.cost = lambda rows: 1.0  # type: ignore[method-assign]
        _simulate_time(made.scheduler.turns, settings.get("uneven", 0.0))
        return made

    def add_adapter(self, name: str) -> None:
        """Loads an adapter as `load_adapter` does, without a file."""
        adapter = adapter_named(name, self._layers)
        number = self.transformer.load_adapter(adapter)
        self.engine.loop.adapters.add(name, LoadedAdapter(number, adapter.sha256))


def _forget(scheduler: Scheduler, slots: StateSlots, share: float) -> None:
    """Gives back states and rows at random before this share of the steps."""
    plan, random = scheduler.plan, Random(7)

    def planned() -> list[PlannedCall]:
        if random.random() < share:
            slots.drop_some(random, random.random())
        return plan()

    scheduler.plan = planned  # type: ignore[method-assign]


def _simulate_time(turns: Turns, uneven: float) -> None:
    """Makes a step take as long as its rows say, for a scenario to have the same plans again; this share of
    the steps takes much longer, as if the process had lost its core."""
    spent, charge, random = turns.spent, turns.charge, Random(7)

    def simulated(_: float) -> None:
        factor = random.uniform(10, 1000) if random.random() < uneven else 1.0
        spent((1e-4 + 2e-5 * turns.rows) * factor)

    def charged(owner: str, stages: Mapping[str, float]) -> None:
        charge(owner, dict.fromkeys(stages, 1e-4))

    turns.spent, turns.charge = simulated, charged  # type: ignore[method-assign]


def alone(variant: Mapping[str, Any]) -> World:
    """Returns a fresh engine with plenty of room and no drafts. One that computes ahead has the bits of the
    native op set."""
    ops = "native" if variant["ops"] == "ahead" else variant["ops"]
    return World({**variant, "ops": ops, "draft": "off"})


@contextmanager
def limits(settings: Mapping[str, Any]) -> Iterator[None]:
    """Sets the limits of a step that are constants of the engine, until the block ends."""
    before = task_module._SCORED_ROWS, sample._TOO_MANY_TO_GUESS
    task_module._SCORED_ROWS = settings.get("scored_rows", before[0])
    sample._TOO_MANY_TO_GUESS = settings.get("too_many_to_guess", before[1])
    try:
        yield
    finally:
        task_module._SCORED_ROWS, sample._TOO_MANY_TO_GUESS = before
