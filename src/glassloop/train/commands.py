"""The commands of `glassloop train` and `python -m glassloop.train`, with argparse: a machine that trains may
have torch and NumPy and nothing else.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from glassloop.train.config import TrainConfig, TrainError, make_config, options, read_config
from glassloop.train.drafter_command import add_drafter
from glassloop.train.holes_command import add_holes
from glassloop.train.presets import PRESETS

# Commands that are `run` with a preset of their own.
_KINDS: dict[str, tuple[str | None, str]] = {
    "pretrain": (None, "Train a new model."),
    "finetune": ("fine-tune", "Train all weights of a model further."),
    "lora": ("lora", "Train an adapter for a model."),
    "distil": (None, "Train a new model on the probabilities of another one."),
}
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
        words = [action.metavar or action.dest.upper() for action in actions if not action.option_strings]
        super().add_usage(usage or f"{self._prog} [OPTIONS] {' '.join(map(str, words))}", (), (), "Usage: ")


class _Parser(argparse.ArgumentParser):
    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=_Help, **settings)
        self._positionals.title, self._optionals.title = "Arguments", "Options"


def parser(program: str = "glassloop train") -> argparse.ArgumentParser:
    """Returns the parser of all commands."""
    made = _Parser(
        prog=program,
        description="Train a model: a tokenizer, a new model, all weights of one, or an adapter (LoRA).",
    )
    commands = made.add_subparsers(
        dest="command", metavar="COMMAND", required=True, title="Commands", parser_class=_Parser, prog=program
    )

    run = commands.add_parser("run", help="Start a run.", description="Start a training run in a new folder.")
    run.add_argument("out", metavar="FOLDER", help="The folder of the run.")
    _add_run_flags(run)
    for name, (_, help) in _KINDS.items():
        kind = commands.add_parser(
            name,
            help=help,
            description=f"{help} The result lies in the folder itself, beside all that `run` writes. Given"
            " again with the same folder, the command goes on where it was.",
        )
        kind.add_argument("--out", required=True, metavar="FOLDER", help="The folder of the run.")
        _add_run_flags(kind)

    again = commands.add_parser("resume", help="Go on with a run.", description="Go on with a stopped run.")
    again.add_argument("out", metavar="FOLDER", help="The folder of the run.")
    _add_output(again)

    sweep = commands.add_parser(
        "sweep",
        help="Fit a scaling law and predict a larger run.",
        description="Train several sizes with several budgets, fit the scaling law, predict the loss of a"
        " larger run, and make it. Started again with the same folder, it goes on where it was.",
    )
    _add_sweep_flags(sweep)

    bias = commands.add_parser(
        "exposure",
        help="Measure the exposure bias of a student.",
        description="Measure KL(teacher ‖ student) by position, on texts that the teacher writes and on texts"
        " that the student writes itself. Several students see the same prompts.",
    )
    bias.add_argument("students", nargs="+", metavar="MODEL", help="Models that were distilled.")
    bias.add_argument("--teacher", required=True, metavar="MODEL", help="The model that they learned from.")
    bias.add_argument("--data", nargs="+", required=True, metavar="PATH", help="Where prompts come from.")
    for name, default, text in (
        ("texts", 128, "Texts that each model writes"),
        ("prompt-tokens", 8, "Tokens of the data that each text begins with"),
        ("tokens", 120, "Tokens of each text"),
        ("seed", 0, "Decides prompts and texts"),
    ):
        bias.add_argument(
            f"--{name}", type=int, default=default, metavar="N", help=f"{text} (default: {default})."
        )
    bias.add_argument("--svg", metavar="FILE", help="Write a picture of the curves.")
    bias.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"), help="Where to compute.")
    bias.add_argument("--json", action="store_true", help="Print the result as JSON.")

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
    words.add_argument("--vocab-size", type=int, default=8192, metavar="N", help="Tokens of the BPE.")
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
    return made


def main(arguments: Sequence[str], program: str = "glassloop train") -> None:
    """Runs a command. Errors are GlassloopErrors; the caller prints them."""
    given = parser(program).parse_args(arguments)
    match given.command:
        case "run":
            _run(given)
        case name if name in _KINDS:
            _run_or_resume(given)
        case "resume":
            from glassloop.train.train import resume

            _print_result(resume(given.out, quiet=given.quiet), given.json)
        case "sweep":
            _sweep(given)
        case "exposure":
            _exposure(given)
        case "show":
            from glassloop.train.show import history, show_text

            entries = history(Path(given.out))
            print(json.dumps(entries) if given.json else show_text(entries))
        case "prepare":
            _prepare(given)
        case "tokenizer":
            from glassloop.train.tokenizer import train_bpe, train_characters

            if given.characters:
                print(train_characters(given.data, Path(given.out)))
            else:
                print(train_bpe(given.data, Path(given.out), given.vocab_size))
        case "holes":
            from glassloop.train.holes_command import run_holes

            run_holes(given)
        case "drafter":
            from glassloop.train.drafter_command import run_drafter

            run_drafter(given)
        case "export":
            from glassloop.train.convert import export

            print(export(given.model, Path(given.out), given.format, given.adapter))


def _add_run_flags(command: argparse.ArgumentParser) -> None:
    command.add_argument("--config", metavar="FILE", help="A TOML file with the settings below as keys.")
    command.add_argument("--preset", choices=PRESETS, metavar="NAME", help=_preset_help())
    group: Any = command
    for each, kind, several in options():
        if each.name in _GROUPS:
            group = command.add_argument_group(_GROUPS[each.name])
        _add_flag(group, each.name, kind, several, each.default, each.metadata["help"])
    _add_output(command)


def _run(given: argparse.Namespace) -> None:
    from glassloop.train.train import train

    config = _given_config(given, None)
    _print_result(train(config, given.out, quiet=given.quiet), given.json)


def _run_or_resume(given: argparse.Namespace) -> None:
    """Starts a run, or goes on with the one in the folder, and puts the result into the folder itself."""
    from glassloop.train.train import resume, train

    folder = Path(given.out)
    if any((folder / "checkpoints").glob("step-*")):
        result = resume(folder, quiet=given.quiet)
    else:
        config = _given_config(given, _KINDS[given.command][0])
        wanted = {"finetune": "model", "lora": "model", "distil": "teacher"}.get(given.command)
        if wanted is not None and getattr(config, wanted) is None:
            raise TrainError.about(wanted, f"is missing; {given.command} needs a model")
        if given.command == "distil" and config.tokenizer == "bpe" and config.model is None:
            config = replace(config, tokenizer=str(config.teacher))
        result = train(config, folder, quiet=given.quiet)
    for file in result.folder.iterdir():
        part = folder / f"{file.name}.part"
        shutil.copyfile(file, part)
        part.replace(folder / file.name)
    _print_result(replace(result, folder=folder), given.json)


def _given_config(given: argparse.Namespace, otherwise: str | None) -> TrainConfig:
    """Returns the config of the flags, the file and the preset, `otherwise` if none is given."""
    file = read_config(Path(given.config)) if given.config else {}
    preset = given.preset or file.get("preset", otherwise)
    file.pop("preset", None)
    if preset is not None and preset not in PRESETS:
        raise TrainError.about("preset", f"is {preset!r}; one of {', '.join(PRESETS)} is expected")
    names = [each.name for each, _, _ in options()]
    flags = {name: getattr(given, name) for name in names if getattr(given, name) is not None}
    settings = PRESETS[preset][1] if preset else {}
    return make_config(given.config or "flags", settings, file, flags)


def _add_sweep_flags(command: argparse.ArgumentParser) -> None:
    from glassloop.train.config import SWEPT

    command.add_argument("out", metavar="FOLDER", help="The folder of the sweep.")
    command.add_argument(
        "--sizes",
        nargs="+",
        metavar="LxD",
        help="Layers and width of each size (default: 2x32 2x48 3x64 4x96).",
    )
    command.add_argument(
        "--budgets", nargs="+", type=int, metavar="N",
        help="Tokens to train each size with (default: 100000 200000 400000).",
    )  # fmt: skip
    command.add_argument(
        "--times", type=float, default=4.0, metavar="X",
        help="How many times larger than the largest size the predicted model is (default: 4).",
    )  # fmt: skip
    command.add_argument("--jobs", type=int, default=1, metavar="N", help="Runs at a time (default: 1).")
    command.add_argument("--fit-only", action="store_true", help="Predict the larger run without making it.")
    command.add_argument("--config", metavar="FILE", help="A TOML file with the settings below as keys.")
    group = command.add_argument_group("Settings of all runs")
    for each, kind, several in options():
        if each.name not in SWEPT:
            _add_flag(group, each.name, kind, several, each.default, each.metadata["help"])
    _add_output(command)


def _sweep(given: argparse.Namespace) -> None:
    from glassloop.train import sweep as sweeps
    from glassloop.train.config import SWEPT

    for name, least, most in (("times", 1, 1e6), ("jobs", 1, 256)):
        if not least <= getattr(given, name) <= most:
            raise TrainError.about(name, f"is {getattr(given, name)}; {least} to {most:g} is expected")
    if any(budget < 1 for budget in given.budgets or ()):
        raise TrainError.about("budgets", "has a number below 1; numbers of tokens are expected")
    file = read_config(Path(given.config)) if given.config else {}
    names = [each.name for each, _, _ in options() if each.name not in SWEPT]
    flags = {name: getattr(given, name) for name in names if getattr(given, name) is not None}
    config = make_config(given.config or "flags", sweeps.SETTINGS, file, flags)
    made = sweeps.sweep(
        config,
        given.out,
        sizes=[sweeps.Size.parse(text) for text in given.sizes or ()] or sweeps.SIZES,
        budgets=given.budgets or sweeps.BUDGETS,
        times=given.times,
        jobs=given.jobs,
        run_target=not given.fit_only,
        quiet=given.quiet,
    )
    print(json.dumps(sweeps.sweep_facts(made)) if given.json else sweeps.sweep_text(made))


def _exposure(given: argparse.Namespace) -> None:
    from glassloop.files import write_text
    from glassloop.train.exposure import exposure_svg, exposure_text, load_network, measure_exposure
    from glassloop.train.machine import choose_device
    from glassloop.train.prompts import data_prompts

    for name, most in (("texts", 1 << 16), ("prompt_tokens", 1 << 16), ("tokens", 1 << 16)):
        if not 1 <= getattr(given, name) <= most:
            raise TrainError.about(name, f"is {getattr(given, name)}; 1 to {most} is expected")
    device = choose_device(TrainConfig(device=given.device))
    prompts, ends = data_prompts(given.data, given.teacher, given.texts, given.prompt_tokens, given.seed)
    teacher, found = load_network(given.teacher, device), {}
    for path in given.students:
        student = load_network(path, device)
        found[path] = measure_exposure(teacher, student, prompts, given.tokens, ends=ends, seed=given.seed)
    if given.svg:
        write_text(Path(given.svg), exposure_svg(found))
    facts = {name: each.facts() for name, each in found.items()}
    print(json.dumps(facts) if given.json else exposure_text(found))


def _prepare(given: argparse.Namespace) -> None:
    from glassloop.model.loader import load_tokenizer
    from glassloop.train.prepare import prepare_tokens

    tokenizer = load_tokenizer(given.tokenizer)
    files = prepare_tokens(
        given.data,
        Path(given.out),
        tokenizer,
        longest=given.longest,
        tokenizer_files={name: text.encode() for name, text in tokenizer.json_files().items()},
        report=lambda line: print(line, file=sys.stderr),
    )
    print(f"{files.folder}: {files.documents:,} documents, {files.tokens:,} tokens, SHA-256 {files.sha256}")


def _print_result(result: Any, as_json: bool) -> None:
    values = {**vars(result), "folder": str(result.folder)}
    print(json.dumps(values) if as_json else values["folder"])


def _add_flag(group: Any, name: str, kind: type, several: bool, default: Any, help: str) -> None:
    flag = f"--{name.replace('_', '-')}"
    shown = " ".join(default) if several else "yes" if default is True else default
    if default not in (None, "", (), False):
        help += f" (default: {shown})"
    help = help.replace("%", "%%")
    # The default is None, so that a flag that is not given leaves a preset's value.
    if kind is bool:
        group.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=help)
    else:
        metavar = {int: "N", float: "X", str: "PATH" if name in ("data", "validation") else "NAME"}[kind]
        group.add_argument(
            flag, type=kind, nargs="+" if several else None, default=None, metavar=metavar, help=help
        )


def _add_output(command: argparse.ArgumentParser) -> None:
    command.add_argument("--quiet", action="store_true", help="Show no progress.")
    command.add_argument("--json", action="store_true", help="Print the result as JSON.")


def _preset_help() -> str:
    return "Settings to begin with: " + "; ".join(f"{name} ({text})" for name, (text, _) in PRESETS.items())
