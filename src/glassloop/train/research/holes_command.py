"""`glassloop train holes`: trains a gated adapter that fills masked rows."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from glassloop.train.config import TrainConfig, TrainError, make_config, need_torch

# Settings of a run that the command takes, with their defaults here.
_SETTINGS: dict[str, Any] = {
    "length": 384,
    "batch": 128,
    "steps": 3000,
    "lr": 2e-3,
    "warmup": 100,
    "final_lr": 0.02,
    "weight_decay": 0.0,
    "beta2": 0.98,
    "lora_rank": 32,
    "lora_alpha": 64.0,
    "checkpoint_every": 500,
    "seed": 0,
    "device": "auto",
    "precision": "auto",
    "threads": 0,
}
_HELP = {
    "length": "Rows of a text, clean and masked: a multiple of 96.",
    "batch": "Texts of a step.",
    "steps": "Steps of the optimizer.",
    "lr": "The highest learning rate.",
    "warmup": "Steps in which the learning rate rises.",
    "final_lr": "The last learning rate, as a share of the highest.",
    "weight_decay": "Weight decay.",
    "beta2": "AdamW's second decay rate.",
    "lora_rank": "The rank of the adapter.",
    "lora_alpha": "The adapter is scaled by alpha / rank.",
    "checkpoint_every": "Steps between checkpoints.",
    "seed": "Decides the first adapter, the texts and what is masked.",
    "device": "Where to train: auto, cpu, cuda.",
    "precision": "f32, or bf16 (auto: bf16 on a GPU).",
    "threads": "Threads of the CPU; 0: all cores.",
}


def add_holes(commands: Any) -> None:
    """Adds the command to the parser."""
    holes = commands.add_parser(
        "holes",
        help="Train an adapter that fills holes.",
        description="Train a gated adapter: it acts on masked rows alone and fills holes and blocks. The same"
        " command again goes on where it was stopped.",
    )
    holes.add_argument("out", metavar="FOLDER", help="The folder of the run.")
    holes.add_argument(
        "--model", "--for", required=True, metavar="NAME", help="The model to adapt: a name, file or folder."
    )
    holes.add_argument(
        "--data", nargs="+", required=True, metavar="PATH", help="Files, folders, or folders of token files."
    )
    holes.add_argument(
        "--mix", nargs="+", type=float, default=(), metavar="X",
        help="How often each of the data is used (default: by its number of tokens).",
    )  # fmt: skip
    holes.add_argument(
        "--mask-token", type=int, default=None, metavar="N",
        help="The token that masked rows carry (default: the end of text).",
    )  # fmt: skip
    holes.add_argument(
        "--block-share", type=float, default=0.3, metavar="X",
        help="The share of steps that mask blocks at the end of texts (default: 0.3).",
    )  # fmt: skip
    holes.add_argument(
        "--seconds", type=float, default=0.0, metavar="X",
        help="End within this time: the learning rate falls faster if steps are slow (default: no limit).",
    )  # fmt: skip
    for name, value in _SETTINGS.items():
        metavar = {int: "N", float: "X", str: "NAME"}[type(value)]
        flag = f"--{name.replace('_', '-')}"
        text = f"{_HELP[name]} (default: {value})"
        holes.add_argument(flag, type=type(value), default=value, metavar=metavar, help=text)
    holes.add_argument(
        "--deterministic", action=argparse.BooleanOptionalAction, default=True,
        help="Use only kernels that give the same bits every time.",
    )  # fmt: skip
    holes.add_argument(
        "--compile", action=argparse.BooleanOptionalAction, default=False,
        help="Compile the layers with torch.compile, if that gives the same gradients.",
    )  # fmt: skip
    holes.add_argument("--quiet", action="store_true", help="Show no progress.")
    holes.add_argument("--json", action="store_true", help="Print the result as JSON.")


def run_holes(arguments: argparse.Namespace) -> None:
    """Trains as the flags say and prints the path of the file, or the result as JSON."""
    need_torch()
    from glassloop.train.research.hole_training import HolesConfig, train_holes

    settings = {
        name: getattr(arguments, name) for name in (*_SETTINGS, "model", "data", "deterministic", "compile")
    }
    run: TrainConfig = make_config("flags", settings)
    mask = _end_of_text(arguments.model) if arguments.mask_token is None else arguments.mask_token
    config = HolesConfig(run, arguments.block_share, tuple(arguments.mix), mask, arguments.seconds)
    trained = train_holes(config, Path(arguments.out), quiet=arguments.quiet)
    values = {**vars(trained), "file": str(trained.file)}
    print(json.dumps(values) if arguments.json else values["file"])


def _end_of_text(model: str) -> int:
    """Returns the token that masked rows carry by default: `<|endoftext|>`, or else what ends an answer."""
    from glassloop.model.loader import load_tokenizer

    tokenizer = load_tokenizer(model)
    ids = tokenizer.encode("<|endoftext|>", add_special=False, parse_special=True)
    end_ids = ids if len(ids) == 1 else list(tokenizer.eos_ids[:1])
    if not end_ids:
        raise TrainError.about("mask_token", "is missing; the model's tokenizer has no end of text")
    return end_ids[0]
