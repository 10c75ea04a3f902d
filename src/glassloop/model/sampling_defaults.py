"""The sampling settings that the authors of a model publish with it, read from `generation_config.json` or
from GGUF metadata. The values are not checked here: `decode/defaults.py` knows what each option may be.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

# The options that a model may set. In `generation_config.json` they have these names.
FROM_MODEL = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "epsilon_cutoff",
    "eta_cutoff",
    "xtc_probability",
    "xtc_threshold",
    "repetition_penalty",
    "no_repeat_ngram_size",
)
_GGUF_PREFIX = "general.sampling."
_GGUF_NAMES = {"temperature": "temp", "repetition_penalty": "penalty_repeat"}


class Setting(NamedTuple):
    """A value from a file, with its key there."""

    key: str
    value: Any


def settings_from_json(values: Mapping[str, Any]) -> dict[str, Setting]:
    """Returns the settings in a `generation_config.json`, by the name of the option."""
    settings = {name: Setting(name, values[name]) for name in FROM_MODEL if values.get(name) is not None}
    if values.get("do_sample") is False:
        settings["temperature"] = Setting("do_sample", 0.0)
    return settings


def settings_from_gguf(metadata: Mapping[str, Any]) -> dict[str, Setting]:
    """Returns the settings in the metadata of a GGUF file, by the name of the option."""
    settings: dict[str, Setting] = {}
    for name in FROM_MODEL:
        key = _GGUF_PREFIX + _GGUF_NAMES.get(name, name)
        if key in metadata:
            value = metadata[key]
            # Stored as float32, in which 0.9 is 0.899999976: six digits give back what was written.
            settings[name] = Setting(key, float(f"{value:.6g}") if isinstance(value, float) else value)
    return settings
