"""The options that commands share. Those of `Sampling` are made from its fields; each one is a flag."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import MISSING, fields
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any

import typer

from glassloop.cli.help import (
    CHOOSING,
    CONSTRAINTS,
    INPUT,
    MODEL,
    OUTPUT,
    PENALTIES,
    SAMPLES,
    STOPPING,
    print_all_help,
)
from glassloop.cli.terminal import Color, visible
from glassloop.decode.defaults import non_default
from glassloop.decode.sampling import Sampling
from glassloop.errors import SamplingError, TextError
from glassloop.model import registry
from glassloop.model.registry.catalog import DEFAULT_MODEL as DEFAULT_MODEL
from glassloop.model.sampling_defaults import FROM_MODEL
from glassloop.util.shown import shown

# The group of each option in `--help`; all others choose tokens.
_GROUPS = {
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
# The options that decide how a token is chosen, for a line of statistics.
_SHOWN = (*FROM_MODEL, *(name for name, group in _GROUPS.items() if group == PENALTIES), "top_n_sigma")
# Names of flags, where they are not the name of the field: `-n` and `--n` would look alike.
_FLAGS = {
    "max_tokens": ("--max-tokens", "-n"),
    "n": ("--samples",),
    "stage_options": ("--stage-options", "--stage-option"),
}
_OLD_SAMPLES = "old_samples"  # the hidden option --n, which is what --samples was called
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


def complete_model(start: str) -> list[str]:
    """Returns the names of models that begin like this, for shell completion."""
    names = dict.fromkeys([*registry.CATALOG, *(item.name for item in registry.installed())])
    return [name for name in names if name.startswith(start)]


def _model(help: str) -> Any:
    return typer.Option(
        "--model", "-m", metavar="MODEL", help=help, autocompletion=complete_model, rich_help_panel=MODEL
    )


Model = Annotated[str, _model("The model: a name, a .gguf file or a folder with safetensors.")]
RunModel = Annotated[str | None, _model("Model name or path, if the model has moved since the run.")]
AnyModel = Annotated[str | None, _model(f"Model name or path. Default: that of the run, or {DEFAULT_MODEL}.")]
Upstream = Annotated[
    str | None,
    typer.Option(
        "--upstream",
        metavar="URL",
        help="Let another engine compute: the URL of an OpenAI-compatible API (vLLM, llama.cpp, Ollama, a"
        " hosted one). --model is the name there.",
        rich_help_panel=MODEL,
    ),
]
UpstreamKey = Annotated[
    str,
    typer.Option(
        "--upstream-key-env",
        metavar="NAME",
        help="The environment variable that has the API key of the upstream.",
        rich_help_panel=MODEL,
    ),
]
UPSTREAM_KEY = "GLASSLOOP_UPSTREAM_KEY"
Ops = Annotated[
    str | None,
    typer.Option(
        "--ops",
        metavar="NAME",
        help="The op set: torch (on a GPU), native or reference.",
        rich_help_panel=MODEL,
    ),
]
KVMemory = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Memory for the KV cache, such as 2GB. Default: a part of the free memory.",
        rich_help_panel=MODEL,
    ),
]
Draft = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL|off",
        help="A smaller model or a drafter's file for speculative decoding, or 'off'. Default: the model's"
        " own drafter, if there is one, and what came before.",
        rich_help_panel=MODEL,
    ),
]
Keep = Annotated[
    bool,
    typer.Option(
        "--store/--no-store",
        help="Whether to keep the run in the store, for explain, fork, replay and runs.",
        rich_help_panel=OUTPUT,
    ),
]
Colors = Annotated[
    Color,
    typer.Option(
        "--color",
        metavar="WHEN",
        help="When to write colours: auto (on a terminal), always (in a pipe too) or never.",
        rich_help_panel=OUTPUT,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.", rich_help_panel=OUTPUT)]
ModelDefaults = Annotated[
    bool,
    typer.Option(
        "--model-defaults/--no-model-defaults",
        help="Whether options that are not given have the model's own settings, if it has any, or temperature"
        " 1 and no filters.",
        rich_help_panel=MODEL,
    ),
]
AsText = Annotated[
    bool,
    typer.Option(
        "--text",
        help="Treat the argument as a text, even if it looks like a run.",
        rich_help_panel=INPUT,
    ),
]
AsChat = Annotated[
    bool,
    typer.Option(
        "--chat",
        help="Ask the model: the prompt is a message, and the model's chat template is applied.",
        rich_help_panel=INPUT,
    ),
]
System = Annotated[
    str | None,
    typer.Option(
        "--system",
        metavar="TEXT",
        help="The system message of a chat. Implies --chat.",
        rich_help_panel=INPUT,
    ),
]
Plugins = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin",
        metavar="FILE",
        help="Load stages, verifiers and methods of your own from this Python file; may be repeated. The file"
        " is run as a program, with all your rights.",
        show_default=False,
        rich_help_panel=MODEL,
    ),
]


def load_plugins(paths: list[Path] | None) -> None:
    """Loads the files of `--plugin`."""
    if paths:
        from glassloop.decode.plugins import load_plugin

        for path in paths:
            load_plugin(path)


def read_text(text: str) -> str:
    """Returns the text of an argument; '-' stands for stdin."""
    if text != "-":
        return text
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise TextError(f"stdin is not UTF-8 text: byte {error.start} is 0x{byte:02X}") from None


def takes_sampling(command: Callable[..., None], prefix: str = "", unset: bool = False) -> None:
    """Gives a command with `**options` a flag for each field of `Sampling`, in groups of the help whose names
    begin with `prefix`. If `unset`, flags have no defaults, and options that are not given are None."""
    own = signature(command, eval_str=True)
    parameters = [each for each in own.parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
    taken = {each.name for each in parameters}
    if "n" in taken:  # a command that has --n of its own
        taken.add(_OLD_SAMPLES)
    flags = [flag for flag in _flags(prefix, unset) if flag.name not in taken]
    command.__signature__ = own.replace(parameters=[*parameters, *flags])  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in [*parameters, *flags]}


def given(options: dict[str, Any]) -> dict[str, Any]:
    """Returns the options that were given on the command line, as `Sampling` takes them."""
    found = {name: value for name, value in options.items() if value not in (None, [])}
    if _OLD_SAMPLES in found:
        print("glassloop: --n is deprecated; use --samples (-n is --max-tokens)", file=sys.stderr)
        found["n"] = found.pop(_OLD_SAMPLES)
    if "logit_bias" in found:
        found["logit_bias"] = dict(map(_bias, found["logit_bias"]))
    for name in ("json_schema", "grammar"):
        if name in found and (path := Path(found[name])).suffix and is_file(path):
            found[name] = path.read_text(encoding="utf-8")
        elif name in found and name == "json_schema" and isinstance(json_or_text(found[name]), str):
            problem = f"{shown(found[name])} is neither an existing file nor JSON"
            raise SamplingError(f"--json-schema: {problem}", field="json_schema")
    if "adapter" in found:
        from glassloop.cli.adapters import remember

        found["adapter"] = remember([found["adapter"]])[0]
    if "stages" in found:
        found["stages"] = [name for part in found["stages"] for name in part.split(",") if name]
    if "stage_options" in found:
        found["stage_options"] = stage_options_of(found["stage_options"])
    return found


def options_line(sampling: Sampling, defaults: Sampling | None) -> str:
    """Returns the temperature and all options that differ from those of `Sampling()`, in one line. Those that
    are the settings of the model, `defaults`, are marked; None if these are not known."""
    plain = Sampling().to_dict()
    values = {
        name: value
        for name, value in sampling.to_dict().items()
        if value != plain[name] or (name == "temperature" and sampling.beam_width == 1)
    }
    own = {} if defaults is None else non_default(defaults)
    by_model = [f"{name}={value}" for name, value in values.items() if own.get(name) == value]
    others = [f"{name}={value}" for name, value in values.items() if own.get(name) != value]
    if by_model:
        by_model[-1] += f" (the model's default{'s' if len(by_model) > 1 else ''})"
    return visible(", ".join(by_model + others), newlines=False)


def sampling_words(sampling: Sampling, defaults: Sampling) -> str:
    """Returns how tokens are chosen, in short: "temperature 0.5 (the model's default)", with the stages of
    one's own. `defaults` are those of the model."""
    from glassloop.decode.chain import DEFAULT_ORDER

    values = {name: value for name, value in non_default(sampling).items() if name in _SHOWN}
    if sampling.greedy:
        values = {name: value for name, value in values.items() if _GROUPS.get(name) == PENALTIES}
    elif sampling.beam_width == 1:
        values = {"temperature": sampling.temperature, **values}
    own = non_default(defaults)
    stages = [name for name in sampling.stages or () if name not in ("default", *DEFAULT_ORDER)]
    by_model = [name for name, value in values.items() if own.get(name) == value]
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


def json_or_text(value: str) -> Any:
    """Returns the value of a JSON text, or the text itself if it is not JSON."""
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a text that cannot be a path
        return False


def _flags(prefix: str, unset: bool) -> list[Parameter]:
    show_all = typer.Option(
        "--help-all",
        is_eager=True,
        expose_value=False,
        callback=print_all_help,
        help="Show all options of this command, and exit.",
    )
    flags = [_flag(_OLD_SAMPLES, None, int | None, typer.Option("--n", hidden=True))]
    for field in fields(Sampling):
        if field.name == "diffusion":  # a flag of the commands that can write so, with --fill beside it
            continue
        kind, flag = field.metadata["kind"], "--" + field.name.replace("_", "-")
        names = _FLAGS.get(field.name, (f"{flag}/--no-{flag[2:]}" if kind == "flag" else flag,))
        group = _GROUPS.get(field.name, CHOOSING)
        by_model = field.name in FROM_MODEL and not unset
        default = None if unset or by_model or field.default in (MISSING, ()) else field.default
        option = typer.Option(
            *names,
            help=_OWN_HELP.get(field.name, field.metadata["help"]),
            show_default="the model's" if by_model else default not in (None, False),
            metavar=_OWN_METAVARS.get(field.name, _METAVARS.get(kind)),
            rich_help_panel=f"{prefix}: {group.lower()}" if prefix and group != OUTPUT else group,
        )
        takes = _TYPES[kind] if default is not None else _TYPES[kind] | None
        flags.append(_flag(field.name, default, takes, option))
    return [*flags, _flag("help_all", None, bool | None, show_all)]


def stage_options_of(texts: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Returns the options of stages that were written as STAGE.NAME=VALUE. A value is JSON or a text."""
    found: dict[str, dict[str, Any]] = {}
    for text in texts:
        place, equals, value = text.partition("=")
        stage, _, name = place.strip().rpartition(".")
        if not (equals and stage and name):
            example = "STAGE.NAME=VALUE, such as new_opening.words=3,"
            raise SamplingError(f"--stage-option is {text!r}; {example} is expected")
        found.setdefault(stage, {})[name] = json_or_text(value.strip())
    return found


def _flag(name: str, default: Any, takes: Any, option: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[takes, option])


def _bias(text: str) -> tuple[str, float]:
    token, _, value = text.partition("=")
    try:
        return str(int(token)), float(value)
    except ValueError:
        raise SamplingError(f"--logit-bias is {text!r}; ID=NUMBER, such as 42=-1.5, is expected") from None
