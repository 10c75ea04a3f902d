"""The flags of `Sampling`, one for each of its fields, and the options that were given with them."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from dataclasses import MISSING, Field, fields
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any

import typer

from glassloop.cli.adapters import remember_adapters
from glassloop.cli.arguments import is_file, json_or_text
from glassloop.cli.help import (
    CHOOSING,
    CONSTRAINTS,
    MODEL,
    OUTPUT,
    PENALTIES,
    SAMPLES,
    STOPPING,
    print_all_help,
)
from glassloop.decode.sampling import Sampling
from glassloop.errors import SamplingError
from glassloop.model.generation import FROM_MODEL
from glassloop.util.shown import shown

# The group of each option in `--help`; all others choose tokens.
GROUPS = {
    **dict.fromkeys(("seed", "n", "beam_width", "length_penalty", "early_stopping"), SAMPLES),
    **dict.fromkeys(("revise", "revise_window", "revise_bits"), SAMPLES),
    **dict.fromkeys(("repetition_penalty", "presence_penalty", "frequency_penalty"), PENALTIES),
    **dict.fromkeys(("no_repeat_ngram_size", "dry_multiplier", "dry_base", "dry_allowed_length"), PENALTIES),
    **dict.fromkeys(("max_tokens", "min_tokens", "stop", "stop_token_ids", "include_stop"), STOPPING),
    **dict.fromkeys(("ignore_eos", "timeout", "stop_on_repetition"), STOPPING),
    **dict.fromkeys(("json_schema", "regex", "choice", "grammar"), CONSTRAINTS),
    **dict.fromkeys(("allowed_token_ids", "bad_words"), CONSTRAINTS),
    **dict.fromkeys(("logprobs", "prompt_logprobs"), OUTPUT),
    "adapter": MODEL,
}
# Names of flags, where they are not the name of the field: `-n` and `--n` would look alike.
_FLAGS = {
    "max_tokens": ("--max-tokens", "-n"),
    "n": ("--samples",),
    "stage_options": ("--stage-options", "--stage-option"),
}
_OLD_SAMPLES = "old_samples"  # the hidden flag --n, which is what --samples was called
# The type of a flag for each kind of option; `Sampling` checks the values.
_TYPES: dict[str, Any] = {
    "number": float,
    "whole": int,
    "flag": bool,
    "text": str,
    "texts": list[str],
    "ids": list[int],
    "biases": list[str],
    "schema": str,
    "stage_options": list[str],
}
_METAVARS = {
    "number": "X",
    "whole": "N",
    "text": "TEXT",
    "texts": "TEXT",
    "ids": "ID",
    "biases": "ID=X",
    "schema": "FILE|JSON",
    "stage_options": "STAGE.NAME=X",
}
_OWN_METAVARS = {
    "stages": "NAMES",
    "regex": "REGEX",
    "grammar": "FILE|TEXT",
    "timeout": "SECONDS",
    "adapter": "[NAME=]PATH",
}
# Help where a flag takes something else than the field: paths, since a command loads what it uses.
_OWN_HELP = {"adapter": "Use this LoRA adapter: a folder of PEFT, or a file."}


def sampling_parameters(prefix: str, unset: bool, taken: Collection[str]) -> list[Parameter]:
    """Returns a parameter of a command for each field of `Sampling` whose name is not `taken`, and for
    `--help-all`. `takes_flags` describes `prefix` and `unset`."""
    parameters = [_parameter(_OLD_SAMPLES, None, int | None, typer.Option("--n", hidden=True))]
    if "n" in taken:  # a command that has --n of its own
        parameters.clear()
    for field in fields(Sampling):
        # `--diffusion` is a flag of the commands that can write so, with `--fill` beside it.
        if field.name not in taken and field.name != "diffusion":
            parameters.append(_of_field(field, prefix, unset))
    show_all = typer.Option(
        "--help-all",
        is_eager=True,
        expose_value=False,
        callback=print_all_help,
        help="Show all options of this command, and exit.",
    )
    return [*parameters, _parameter("help_all", None, bool | None, show_all)]


def _of_field(field: Field[Any], prefix: str, unset: bool) -> Parameter:
    kind, name = field.metadata["kind"], "--" + field.name.replace("_", "-")
    names = _FLAGS.get(field.name, (f"{name}/--no-{name[2:]}" if kind == "flag" else name,))
    group = GROUPS.get(field.name, CHOOSING)
    by_model = field.name in FROM_MODEL and not unset
    default = None if unset or by_model or field.default in (MISSING, ()) else field.default
    option = typer.Option(
        *names,
        help=_OWN_HELP.get(field.name, field.metadata["help"]),
        show_default="the model's" if by_model else default not in (None, False),
        metavar=_OWN_METAVARS.get(field.name, _METAVARS.get(kind)),
        rich_help_panel=f"{prefix}: {group.lower()}" if prefix and group != OUTPUT else group,
    )
    return _parameter(
        field.name, default, _TYPES[kind] if default is not None else _TYPES[kind] | None, option
    )


def _parameter(name: str, default: Any, value_type: Any, option: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[value_type, option])


def sampling_options(flags: dict[str, Any]) -> dict[str, Any]:
    """Returns the options that were given on the command line, as `Sampling` takes them."""
    options = {name: value for name, value in flags.items() if value not in (None, [])}
    if _OLD_SAMPLES in options:
        print("glassloop: --n is deprecated; use --samples (-n is --max-tokens)", file=sys.stderr)
        options["n"] = options.pop(_OLD_SAMPLES)
    if "logit_bias" in options:
        options["logit_bias"] = dict(map(_bias, options["logit_bias"]))
    for name in ("json_schema", "grammar"):
        if name in options and (path := Path(options[name])).suffix and is_file(path):
            options[name] = path.read_text(encoding="utf-8")
        elif name in options and name == "json_schema" and isinstance(json_or_text(options[name]), str):
            problem = f"{shown(options[name])} is neither an existing file nor JSON"
            raise SamplingError(f"--json-schema: {problem}", field="json_schema")
    if "adapter" in options:
        options["adapter"] = remember_adapters([options["adapter"]])[0]
    if "stages" in options:
        options["stages"] = [name for part in options["stages"] for name in part.split(",") if name]
    if "stage_options" in options:
        options["stage_options"] = stage_options_of(options["stage_options"])
    return options


def stage_options_of(texts: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Returns the options of stages that were written as STAGE.NAME=VALUE. A value is JSON or a text."""
    by_stage: dict[str, dict[str, Any]] = {}
    for text in texts:
        place, equals, value = text.partition("=")
        stage, _, name = place.strip().rpartition(".")
        if not (equals and stage and name):
            example = "STAGE.NAME=VALUE, such as new_opening.words=3,"
            raise SamplingError(f"--stage-option is {text!r}; {example} is expected")
        by_stage.setdefault(stage, {})[name] = json_or_text(value.strip())
    return by_stage


def _bias(text: str) -> tuple[str, float]:
    token, _, value = text.partition("=")
    try:
        return str(int(token)), float(value)
    except ValueError:
        raise SamplingError(f"--logit-bias is {text!r}; ID=NUMBER, such as 42=-1.5, is expected") from None
