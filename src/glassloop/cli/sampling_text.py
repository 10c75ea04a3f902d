"""Decoding options in words: all of them in one line, or in short how tokens are chosen."""

from __future__ import annotations

from glassloop.cli.help import PENALTIES
from glassloop.cli.sampling_flags import GROUPS
from glassloop.decode.defaults import non_default
from glassloop.decode.sampling import Sampling
from glassloop.model.generation import FROM_MODEL
from glassloop.util.plain_text import visible

# The options that decide how a token is chosen, for a line of statistics.
_SHOWN = (*FROM_MODEL, *(name for name, group in GROUPS.items() if group == PENALTIES), "top_n_sigma")


def options_line(sampling: Sampling, defaults: Sampling | None) -> str:
    """Returns the temperature and all options that differ from those of `Sampling()`, in one line. Those that
    are the settings of the model, `defaults`, are marked; None if these are not known."""
    plain = Sampling().to_dict()
    values = {
        name: value
        for name, value in sampling.to_dict().items()
        if value != plain[name] or (name == "temperature" and sampling.beam_width == 1)
    }
    of_model = {} if defaults is None else non_default(defaults)
    by_model = [f"{name}={value}" for name, value in values.items() if of_model.get(name) == value]
    others = [f"{name}={value}" for name, value in values.items() if of_model.get(name) != value]
    if by_model:
        by_model[-1] += f" (the model's default{'s' if len(by_model) > 1 else ''})"
    return visible(", ".join(by_model + others), newlines=False)


def sampling_words(sampling: Sampling, defaults: Sampling) -> str:
    """Returns how tokens are chosen, in short: "temperature 0.5 (the model's default)", with the stages of
    one's own. `defaults` are those of the model."""
    from glassloop.decode.chain import DEFAULT_ORDER

    values = {name: value for name, value in non_default(sampling).items() if name in _SHOWN}
    if sampling.greedy:
        values = {name: value for name, value in values.items() if GROUPS.get(name) == PENALTIES}
    elif sampling.beam_width == 1:
        values = {"temperature": sampling.temperature, **values}
    of_model = non_default(defaults)
    stages = [name for name in sampling.stages or () if name not in ("default", *DEFAULT_ORDER)]
    by_model = [name for name, value in values.items() if of_model.get(name) == value]
    parts = ["greedy"] if sampling.greedy else []
    parts += [f"{sampling.beam_width} beams"] if sampling.beam_width > 1 else []
    parts += [_value_in_words(name, value) for name, value in values.items() if name not in by_model]
    if by_model:
        note = f"the model's default{'s' if len(by_model) > 1 else ''}"
        parts.append(f"{', '.join(_value_in_words(name, values[name]) for name in by_model)} ({note})")
    parts += [f"stage{'s' if len(stages) > 1 else ''} {', '.join(stages)}"] if stages else []
    return ", ".join(parts)


def _value_in_words(name: str, value: float) -> str:
    return f"{name.replace('_', '-' if len(name) < 6 else ' ')} {value:g}"
