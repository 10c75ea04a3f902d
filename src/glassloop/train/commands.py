"""The commands of `glassloop train` and `python -m glassloop.train`, with argparse: a machine that trains may
have torch and NumPy and nothing else.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from glassloop.train.config import TrainConfig, TrainError, TrainingInterrupted, make_config, options
from glassloop.train.flags import add_flag, add_output, config_file, given_settings
from glassloop.train.presets import FITTED, PRESETS, fitted
from glassloop.train.research.drafter_command import add_drafter, run_drafter
from glassloop.train.research.exposure_command import add_exposure, run_exposure
from glassloop.train.research.holes_command import add_holes, run_holes
from glassloop.train.research.sweep_command import add_sweep, run_sweep
from glassloop.train.run_folder import RunFolder
from glassloop.util.check import one_of, require
from glassloop.util.shown import shown

# Commands that are `run` with a preset of their own.
_KINDS: dict[str, tuple[str | None, str]] = {
    "pretrain": (None, "Train a new model."),
    "finetune": ("fine-tune", "Train all weights of a model further."),
    "lora": ("lora", "Train an adapter for a model."),
    "distil": (None, "Train a new model on the probabilities of another one."),
}
_FITTED = ("fine-tune", "lora")  # presets that train a model further
# The first setting of each group of `run --help`.
_GROUPS = {
    "model": "What is trained",
    "data": "Data",
    "steps": "Steps",
    "lora_rank": "Adapter (LoRA)",
    "validate_every": "On the way",
    "seed": "Machine",
}


class _Help(argparse.HelpFormatter):
    """Help that looks like that of the other commands: "Usage:", and names in a column of their own."""

    def __init__(self, prog: str, **settings: Any) -> None:
        super().__init__(prog, max_help_position=26, **settings)

    def add_usage(self, usage: Any, actions: Any, groups: Any, prefix: str | None = None) -> None:
        words = [
            " ".join([*action.option_strings[:1], str(action.metavar or action.dest.upper())])
            for action in actions
            if action.required
        ]
        super().add_usage(usage or " ".join([self._prog, "[OPTIONS]", *words]), (), (), "Usage: ")


class _Parser(argparse.ArgumentParser):
    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=_Help, add_help=False, **settings)
        self._positionals.title, self._optionals.title = "Arguments", "Options"
        self.add_argument("-h", "--help", action="help", help="Show this message and exit.")


def parser(program: str = "glassloop train") -> argparse.ArgumentParser:
    """Returns the parser of all commands."""
    top = _Parser(
        prog=program,
        description="Train a model: a tokenizer, a new model, all weights of one, or an adapter (LoRA).",
    )
    commands = top.add_subparsers(
        dest="command", metavar="COMMAND", required=True, title="Commands", parser_class=_Parser, prog=program
    )

    run = commands.add_parser("run", help="Start a run.", description="Start a training run in a new folder.")
    run.add_argument("out", metavar="FOLDER", help="The folder of the run.")
    _add_run_flags(run, {})
    for name, (preset, help) in _KINDS.items():
        kind = commands.add_parser(
            name,
            help=help,
            description=f"{help} The result lies in the folder itself, beside all that `run` writes. Given"
            " again with the same folder, the command goes on where it was.",
        )
        kind.add_argument("--out", required=True, metavar="FOLDER", help="The folder of the run.")
        _add_run_flags(kind, PRESETS[preset][1] if preset else {})

    again = commands.add_parser("resume", help="Go on with a run.", description="Go on with a stopped run.")
    again.add_argument("out", metavar="FOLDER", help="The folder of the run.")
    add_output(again)

    add_sweep(commands)
    add_exposure(commands)

    show = commands.add_parser(
        "show",
        help="Show what a run has learned.",
        description="Show losses, probabilities of the end of text, neighbours of words and samples.",
    )
    show.add_argument("out", metavar="FOLDER", help="The folder of the run.")
    show.add_argument("--json", action="store_true", help="Print it as JSON.")

    prepare = commands.add_parser(
        "prepare",
        help="Write token files.",
        description="Encode text into token files, which are trained on without a tokenizer.",
    )
    prepare.add_argument("out", metavar="FOLDER", help="Where to write the token files.")
    prepare.add_argument("--data", nargs="+", required=True, metavar="PATH", help="Files and folders.")
    prepare.add_argument("--tokenizer", required=True, metavar="NAME", help="A model, a folder or a file.")
    prepare.add_argument("--longest", type=int, metavar="N", help="Refuse documents of more tokens.")

    words = commands.add_parser(
        "tokenizer", help="Make a tokenizer.", description="Make a tokenizer from text."
    )
    words.add_argument("out", metavar="FOLDER", help="Where to write it.")
    words.add_argument("--data", nargs="+", required=True, metavar="PATH", help="Files and folders.")
    words.add_argument(
        "--vocab-size", type=int, default=8192, metavar="N", help="Tokens of the BPE (default: 8192)."
    )
    words.add_argument("--characters", action="store_true", help="One token per character instead.")

    add_holes(commands)
    add_drafter(commands)

    export = commands.add_parser(
        "export",
        help="Write a model in another format.",
        description="Write a model as safetensors (a folder) or GGUF (a file), an adapter merged into it.",
    )
    export.add_argument("model", metavar="MODEL", help="A model folder, a .gguf file or a name.")
    export.add_argument("out", metavar="PATH", help="A new folder, or a file that ends in .gguf.")
    export.add_argument("--adapter", metavar="FOLDER", help="A LoRA adapter to merge into the weights.")
    export.add_argument(
        "--format", default="f32", choices=("f32", "f16", "bf16", "q8", "q4"), metavar="NAME",
        help="f32, f16 or bf16; q8 and q4 for GGUF (default: f32).",
    )  # fmt: skip
    return top


def main(arguments: Sequence[str], program: str = "glassloop train") -> None:
    """Runs a command. Errors are GlassloopErrors; the caller prints them."""
    parsed = parser(program).parse_args(arguments)
    match parsed.command:
        case "run":
            _run(parsed)
        case name if name in _KINDS:
            _run_or_resume(parsed)
        case "resume":
            from glassloop.train.train import resume

            _print_result(resume(parsed.out, quiet=parsed.quiet), parsed.json)
        case "sweep":
            run_sweep(parsed)
        case "exposure":
            run_exposure(parsed)
        case "show":
            from glassloop.train.run_history import history, show_text

            entries = history(Path(parsed.out))
            print(json.dumps(entries) if parsed.json else show_text(entries))
        case "prepare":
            _prepare(parsed)
        case "tokenizer":
            from glassloop.train.new_tokenizer import train_bpe, train_characters

            if parsed.characters:
                print(train_characters(parsed.data, Path(parsed.out)))
            else:
                print(train_bpe(parsed.data, Path(parsed.out), parsed.vocab_size))
        case "holes":
            run_holes(parsed)
        case "drafter":
            run_drafter(parsed)
        case "export":
            from glassloop.train.convert import export

            print(export(parsed.model, Path(parsed.out), parsed.format, parsed.adapter))


def _add_run_flags(command: argparse.ArgumentParser, preset: Mapping[str, Any]) -> None:
    """Adds a flag for each setting of a run. `preset` has the values that differ from the usual ones."""
    command.add_argument("--config", metavar="FILE", help="A TOML file with the settings below as keys.")
    command.add_argument("--preset", choices=PRESETS, metavar="NAME", help=_preset_help())
    group: Any = command
    for each, kind, several in options():
        if each.name in _GROUPS:
            group = command.add_argument_group(_GROUPS[each.name])
        default = preset.get(each.name, each.default)
        if preset and each.name in FITTED:
            default = "fits the data and the machine"
        add_flag(group, each.name, kind, several, default, each.metadata["help"])
    add_output(command)


def _run(parsed: argparse.Namespace) -> None:
    from glassloop.train.train import train

    config = _config_of(parsed, None)
    _print_result(train(config, parsed.out, quiet=parsed.quiet), parsed.json)


def _run_or_resume(parsed: argparse.Namespace) -> None:
    """Starts a run, or goes on with the one in the folder, and puts the result into the folder itself."""
    from glassloop.train.train import resume, train

    folder = Path(parsed.out)

    def copy(result: Path) -> None:
        for file in result.iterdir():
            part = folder / f"{file.name}.part"
            shutil.copyfile(file, part)
            part.replace(folder / file.name)

    try:
        if RunFolder(folder).has_begun:
            _check_same_settings(parsed, RunFolder(folder).read_config())
            result = resume(folder, quiet=parsed.quiet, on_weights=copy)
        else:
            result = train(_kind_config(parsed), folder, quiet=parsed.quiet, on_weights=copy)
    except TrainingInterrupted as stopped:
        raise TrainingInterrupted(stopped.step, "the same command goes on") from None
    if parsed.command == "lora" and not parsed.quiet:
        print(f'try it: glassloop generate "…" --adapter {shlex.quote(parsed.out)}', file=sys.stderr)
    _print_result(replace(result, folder=folder), parsed.json)


def _kind_config(parsed: argparse.Namespace) -> TrainConfig:
    """Returns the config of a new run of one of the kinds."""
    from glassloop.model.registry import DEFAULT_MODEL

    further = {"model": DEFAULT_MODEL} if parsed.command in ("finetune", "lora") else {}
    config = _config_of(parsed, _KINDS[parsed.command][0], further)
    if parsed.command == "distil" and config.teacher is None:
        raise TrainError.about("teacher", "is missing; distil needs a model (--teacher NAME)")
    if parsed.command == "distil" and config.tokenizer == "bpe" and config.model is None:
        return replace(config, tokenizer=str(config.teacher))
    return config


def _check_same_settings(parsed: argparse.Namespace, config: TrainConfig) -> None:
    """Raises if a flag says something else than the run in the folder has, which it goes on with."""
    for name, value in given_settings(parsed).items():
        wanted, kept = tuple(value) if isinstance(value, list) else value, getattr(config, name)
        if wanted not in (kept, "auto") and (name, wanted) != ("threads", 0):
            raise TrainError.about(
                name, f"is {shown(value)}, but the run in {parsed.out} has {shown(kept)}; give another folder"
            )


def _config_of(
    parsed: argparse.Namespace, otherwise: str | None, further: Mapping[str, Any] | None = None
) -> TrainConfig:
    """Returns the config of the flags, the file and the preset, `otherwise` if none is given, with the values
    of `further` where nothing else gives one."""
    file = config_file(parsed)
    preset = parsed.preset or file.get("preset", otherwise)
    file.pop("preset", None)
    if preset is not None:
        require("preset", preset, one_of(*PRESETS), TrainError)
    settings = dict(PRESETS[preset][1]) if preset else {}
    where, flags = parsed.config or "flags", given_settings(parsed)
    config = make_config(where, further or {}, settings, file, flags)
    if preset not in _FITTED or not config.data:
        return config
    from glassloop.train.train import load_torch

    load_torch(parsed.quiet)
    from glassloop.train.machine import choose_device

    chosen = fitted(settings, {**file, **flags}, config.data, choose_device(config))
    return make_config(where, further or {}, chosen, file, flags)


def _prepare(parsed: argparse.Namespace) -> None:
    from glassloop.model.loader import load_tokenizer
    from glassloop.train.prepare import prepare_tokens

    tokenizer = load_tokenizer(parsed.tokenizer)
    files = prepare_tokens(
        parsed.data,
        Path(parsed.out),
        tokenizer,
        longest=parsed.longest,
        tokenizer_files={name: text.encode() for name, text in tokenizer.json_files().items()},
        report=lambda line: print(line, file=sys.stderr),
    )
    print(f"{files.folder}: {files.documents:,} documents, {files.tokens:,} tokens, SHA-256 {files.sha256}")


def _print_result(result: Any, as_json: bool) -> None:
    values = {**vars(result), "folder": str(result.folder)}
    print(json.dumps(values) if as_json else values["folder"])


def _preset_help() -> str:
    return "Settings to begin with: " + "; ".join(f"{name} ({text})" for name, (text, _) in PRESETS.items())
