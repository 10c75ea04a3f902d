"""The options that a request takes from its model: the authors of a model may publish how to sample from it.
These settings apply to options that the caller does not give.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from glassloop.decode.sampling import Sampling
from glassloop.errors import SamplingError
from glassloop.model.registry.catalog import CATALOG
from glassloop.model.sampling_defaults import FROM_MODEL, Setting
from glassloop.util.shown import shown

if TYPE_CHECKING:
    from glassloop.model.loader import ModelFiles

_LOG = logging.getLogger(__name__)
_PLAIN = Sampling()
_STAGES = {"xtc_probability": "xtc", "xtc_threshold": "xtc", "no_repeat_ngram_size": "no_repeat_ngram"}
_ALIKE = 0.8  # similarity from which on a name is taken for a misspelt option


def default_sampling(where: str, settings: Mapping[str, Setting]) -> Sampling:
    """Returns the settings of a model as options. A value that `Sampling` does not take is left out, with a
    warning in the log that names the file and the field."""
    kept: dict[str, Any] = {}
    for name, setting in settings.items():
        try:
            Sampling.from_dict({name: setting.value})
            kept[name] = setting.value
        except SamplingError as error:
            value = shown(setting.value)
            message = "%s: %s is %s, which is ignored; %s is expected"
            _LOG.warning(message, where, setting.key, value, error.expected)
    return Sampling.from_dict(kept)


def sampling_of_model(name: str, files: ModelFiles) -> Sampling:
    """Returns the settings that are published for a model: those of the catalogue, else of its files."""
    model_defaults = (CATALOG[name].sampling if name in CATALOG else None) or {}
    return with_defaults(model_defaults, default_sampling(str(files.path), files.settings))


def with_defaults(options: Mapping[str, Any], defaults: Sampling) -> Sampling:
    """Returns the options that a caller gives, with `defaults` for the others. A beam search takes none of
    the model's settings: it compares the probabilities that the model itself gives. An own order of stages
    takes the settings of its stages only."""
    beams, stages = options.get("beam_width", defaults.beam_width), options.get("stages")
    left_out: Collection[str] = ()
    if isinstance(beams, int) and beams > 1:
        left_out = FROM_MODEL
    elif isinstance(stages, Sequence) and "default" not in stages:
        left_out = [name for name in FROM_MODEL if _STAGES.get(name, name) not in stages]
    kept = {name: value for name, value in non_default(defaults).items() if name not in left_out}
    return Sampling.from_dict({**kept, **options})


def resolve(sampling: Sampling | None, options: Mapping[str, Any], defaults: Sampling) -> Sampling:
    """Returns the options of a call from Python: a `sampling` as it is, or else the defaults, with the
    keyword arguments in place of some."""
    if sampling is None:
        return with_defaults(options, defaults)
    check_sampling(sampling, "Sampling(temperature=0), or temperature=0 by itself,")
    return replace(sampling, **options) if options else sampling


def check_sampling(sampling: object, expected: str = "a Sampling") -> None:
    """Raises unless these are the options of a request."""
    if not isinstance(sampling, Sampling):
        raise SamplingError.about("sampling", f"is {shown(sampling)}; {expected} is expected")


def non_default(sampling: Sampling) -> dict[str, Any]:
    """Returns the options that differ from those of `Sampling()`."""
    values = {field.name: getattr(sampling, field.name) for field in fields(Sampling)}
    return {name: value for name, value in values.items() if value != getattr(_PLAIN, name)}


def split_options(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Splits keyword arguments into options of `Sampling` and others. A name that is almost that of an option
    is an error."""
    from difflib import get_close_matches

    field_names = [field.name for field in fields(Sampling)]
    others = {name: value for name, value in arguments.items() if name not in field_names}
    for name in others:
        if near := get_close_matches(name, field_names, n=1, cutoff=_ALIKE):
            raise SamplingError.about(name, f"is not a sampling option; did you mean {near[0]}?")
    return {name: value for name, value in arguments.items() if name in field_names}, others
