"""`glassloop train exposure`: measures the exposure bias of students."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from glassloop.train.config import TrainConfig, TrainError, need_torch
from glassloop.util.check import check_count

_NUMBERS = (
    ("texts", 128, "Texts that each model writes"),
    ("prompt-tokens", 8, "Tokens of the data that each text begins with"),
    ("tokens", 120, "Tokens of each text"),
    ("seed", 0, "Decides prompts and texts"),
)


def add_exposure(commands: Any) -> None:
    """Adds the command to the parser."""
    bias = commands.add_parser(
        "exposure",
        help="Measure the exposure bias of a student.",
        description="Measure KL(teacher ‖ student) by position, on texts that the teacher writes and on texts"
        " that the student writes itself. Several students see the same prompts.",
    )
    bias.add_argument("students", nargs="+", metavar="MODEL", help="Models that were distilled.")
    bias.add_argument("--teacher", required=True, metavar="MODEL", help="The model that they learned from.")
    bias.add_argument("--data", nargs="+", required=True, metavar="PATH", help="Where prompts come from.")
    for name, default, text in _NUMBERS:
        bias.add_argument(
            f"--{name}", type=int, default=default, metavar="N", help=f"{text} (default: {default})."
        )
    bias.add_argument("--svg", metavar="FILE", help="Write a picture of the curves.")
    bias.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"), help="Where to compute.")
    bias.add_argument("--json", action="store_true", help="Print the result as JSON.")


def run_exposure(arguments: argparse.Namespace) -> None:
    """Measures all students and prints the figures."""
    need_torch()
    from glassloop.train.machine import choose_device
    from glassloop.train.research.data_prompts import data_prompts
    from glassloop.train.research.exposure import exposure_svg, exposure_text, load_network, measure_exposure
    from glassloop.util.files import write_text

    for name in ("texts", "prompt_tokens", "tokens"):
        check_count(name, getattr(arguments, name), 1, 1 << 16, error=TrainError)
    device = choose_device(TrainConfig(device=arguments.device))
    prompts, ends = data_prompts(
        arguments.data, arguments.teacher, arguments.texts, arguments.prompt_tokens, arguments.seed
    )
    teacher, exposures = load_network(arguments.teacher, device), {}
    for path in arguments.students:
        student = load_network(path, device)
        exposures[path] = measure_exposure(
            teacher, student, prompts, arguments.tokens, ends=ends, seed=arguments.seed
        )
    if arguments.svg:
        write_text(Path(arguments.svg), exposure_svg(exposures))
    facts = {name: each.facts() for name, each in exposures.items()}
    print(json.dumps(facts) if arguments.json else exposure_text(exposures))
