"""Loads the model of a command, or connects to the engine that computes in its place."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from glassloop.cli.adapters import load_adapters, take_adapters
from glassloop.cli.terminal import print_notes, progress_bar, working
from glassloop.errors import GlassloopError, TextError
from glassloop.model.registry.catalog import DEFAULT_MODEL

if TYPE_CHECKING:
    from glassloop.api.llm import LLM
    from glassloop.engine.language_model import LanguageModel
    from glassloop.upstream import UpstreamEngine

UPSTREAM_KEY = "GLASSLOOP_UPSTREAM_KEY"  # the environment variable that has the key, unless another is named


def load(
    model: str,
    ops: str | None = None,
    kv_memory: str | None = None,
    draft: bool | str = True,
    model_defaults: bool = True,
    holes: Path | None = None,
    weights: str | None = None,
) -> LLM:
    """Loads a model, with the adapters of the command line. Without `model_defaults`, its own sampling
    settings are not used. `holes` is the file of an adapter for masked rows; `weights` names a format."""
    with progress_bar(f"Loading {model}") as advance:
        from glassloop.api.llm import LLM
        from glassloop.model.loader import watch_loading

        with watch_loading(advance):
            llm = LLM(model, ops, weights, kv_memory=kv_memory, draft=draft)
        load_adapters(llm, take_adapters())
        if holes is not None:
            llm.load_holes(holes)
    print_notes(llm.notes)
    if not model_defaults:
        from glassloop.decode.sampling import Sampling

        llm.default_sampling = Sampling()
    return llm


def load_upstream(
    url: str, model: str | None, key_variable: str, only_here: Mapping[str, object]
) -> UpstreamEngine:
    """Connects to another engine. Raises if a flag is given that only an engine here takes; `only_here` has
    the values of these flags by name."""
    for name, value in only_here.items():
        if value is not None:
            raise GlassloopError(f"--{name} is given with --upstream; another engine has its own")
    key = os.environ.get(key_variable)
    if key is None and key_variable != UPSTREAM_KEY:
        raise GlassloopError(f"--upstream-key-env is {key_variable}; there is no such environment variable")
    with working(f"Connecting to {url}"):
        from glassloop.upstream import UpstreamEngine

        return UpstreamEngine(url, None if model == DEFAULT_MODEL else model, key=key)


def chat_messages(llm: LanguageModel, text: str, system: str | None) -> list[dict[str, str]]:
    """Returns a conversation of one message, with a system message before it if there is one."""
    check_chat(llm)
    before = [] if system is None else [{"role": "system", "content": system}]
    return [*before, {"role": "user", "content": text}]


def check_chat(llm: LanguageModel) -> None:
    """Raises if a model has no chat template."""
    if not llm.tokenizer.can_chat:
        raise TextError(f"{llm.name} has no chat template, which --chat needs; without it, text is continued")
