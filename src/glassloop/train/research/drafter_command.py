"""`glassloop train drafter`: lets a model write text, trains its drafter on it, and writes the drafter's
file."""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassloop.train.config import TrainError, need_torch
from glassloop.util.check import check_count

if TYPE_CHECKING:
    from glassloop.train.token_files import TokenFiles

_NUMBERS = (
    ("tokens", 20_000_000, "Tokens to write"),
    ("processes", 1, "Processes that write"),
    ("slots", 256, "Conversations that each of them writes at a time"),
    ("length", 768, "Tokens of a conversation, at most"),
    ("vocab-size", 8192, "Tokens that can be drafted"),
    ("steps", 12_000, "Steps of the optimizer"),
    ("batch", 8192, "Rows of a batch"),
    ("seed", 0, "Of the text and of the order of training"),
)


def add_drafter(commands: Any) -> None:
    """Adds the command to a parser."""
    command = commands.add_parser(
        "drafter",
        help="Train a drafter for a model.",
        description="Train a drafter: a layer that guesses the next tokens of a model from what that has "
        "computed. The model writes the text itself. FOLDER gets the text, the drafter and its recipe.",
    )
    command.add_argument("out", metavar="FOLDER", help="Where to write.")
    command.add_argument(
        "--for",
        dest="model",
        metavar="MODEL",
        help="The model (default: the default model).",
    )
    command.add_argument("--text", metavar="FOLDER", help="Token files to use instead of writing some.")
    command.add_argument(
        "--seeds", nargs="+", default=[], metavar="FILE", help="JSONL files of questions to answer."
    )
    for name, default, help in _NUMBERS:
        command.add_argument(
            f"--{name}", type=int, default=default, metavar="N", help=f"{help} (default: %(default)s)."
        )
    command.add_argument(
        "--seconds", type=float, default=math.inf, metavar="X", help="End the training by then."
    )
    command.add_argument("--ops", metavar="NAME", help="The op set that writes the text.")
    command.add_argument("--json", action="store_true", help="Print the recipe as JSON.")


def run_drafter(arguments: argparse.Namespace) -> None:
    """Runs the command."""
    for name in ("tokens", "processes", "slots", "length", "vocab_size", "steps", "batch"):
        check_count(name, getattr(arguments, name), 1, 1 << 40, error=TrainError)
    need_torch()
    import torch

    from glassloop.model.drafter import model_key
    from glassloop.model.loader import ModelFiles
    from glassloop.model.registry import DEFAULT_MODEL, fetch
    from glassloop.train.research.drafter_training import DrafterTrainer, DrafterTraining, Target
    from glassloop.train.token_files import TokenFiles

    arguments.model = arguments.model or DEFAULT_MODEL
    out = Path(arguments.out)
    files = ModelFiles(fetch(arguments.model))
    text = (
        TokenFiles(Path(arguments.text))
        if arguments.text
        else _written(arguments, out / "text", files.config.vocab_size)
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    training = DrafterTraining(
        vocab_size=arguments.vocab_size,
        steps=arguments.steps,
        seconds=arguments.seconds,
        batch=arguments.batch,
        length=arguments.length,
        warm_up=min(200, max(1, arguments.steps // 10)),
        seed=arguments.seed,
    )
    target = Target(files.config, files.weights, device, bf16=device == "cuda")
    trainer = DrafterTrainer(target, text, training, _say)
    if trainer.features_fit():
        _say("computing the features of the text once")
        trainer.keep_features()
    reached = trainer.train()
    held = trainer.held_out_batches()
    rates = {str(t): [round(rate, 4) for rate in trainer.acceptance(held, t)] for t in (0.0, 0.8)}
    path = out / f"drafter-{model_key(files.weights)}.gguf"
    out.mkdir(parents=True, exist_ok=True)
    recipe = trainer.export(path, files.weights, {"reached": reached, "accepted": rates})
    print(json.dumps(recipe) if arguments.json else path)


def _written(arguments: argparse.Namespace, folder: Path, vocab_size: int) -> TokenFiles:
    """Lets the model write the text, in as many processes as asked for; returns that of an earlier call."""
    from multiprocessing import get_context

    from glassloop.train.research.self_text import merge
    from glassloop.train.token_files import TokenFiles, is_token_folder

    if is_token_folder(folder):
        return TokenFiles(folder)
    parts = [folder.with_name(f"{folder.name}-{number}") for number in range(arguments.processes)]
    if len(parts) == 1:
        _write_part(arguments, folder, 0)
        return TokenFiles(folder)
    context = get_context("spawn")  # a process that has used a GPU cannot be forked
    writers = [
        context.Process(target=_write_part, args=(arguments, part, at)) for at, part in enumerate(parts)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    written = [part for part in parts if is_token_folder(part)]
    if not written:
        raise TrainError("no process has written text; its error is above")
    return merge(written, folder, vocab_size)


def _write_part(arguments: argparse.Namespace, folder: Path, number: int) -> None:
    """Writes the share of one process."""
    from glassloop.model.loader import ModelFiles
    from glassloop.model.registry import fetch
    from glassloop.ops import choose_ops
    from glassloop.train.research.self_text import ChatFrame, TextWriter, seed_ids, write_text

    files = ModelFiles(fetch(arguments.model))
    transformer, tokenizer = files.load(choose_ops(arguments.ops))
    if tokenizer.chat_template is None:
        raise TrainError(
            f"{arguments.model} has no chat template, so it cannot be made to ask and answer; use --text"
        )
    writer = TextWriter(
        transformer,
        ChatFrame.of(tokenizer),
        tokenizer.eos_ids,
        seeds=seed_ids(tokenizer, [Path(seed) for seed in arguments.seeds]),
        slots=arguments.slots,
        length=min(arguments.length, files.config.context),
        seed=arguments.seed + number,
    )
    share = -(-arguments.tokens // arguments.processes)
    write_text(writer, folder, files.config.vocab_size, tokens=share, report=_say if number == 0 else None)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
