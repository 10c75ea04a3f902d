"""`glassloop train sweep`: fits a scaling law and predicts a larger run."""

from __future__ import annotations

import argparse
import json
from typing import Any

from glassloop.train.config import SWEPT, TrainError, make_config, options
from glassloop.train.flags import add_flag, add_output, config_file, given_settings
from glassloop.util.check import check_count, check_number

# Minutes on two cores.
_SIZES = ("2x32", "2x48", "3x64", "4x96")
_BUDGETS = (100_000, 200_000, 400_000)
# The settings of all runs, before those of the caller.
_SETTINGS: dict[str, Any] = {
    "tokenizer": "characters", "length": 64, "batch": 12, "lr": 1e-2, "warmup": 100, "validation_share": 0.1,
}  # fmt: skip


def add_sweep(commands: Any) -> None:
    """Adds the command to the parser."""
    command = commands.add_parser(
        "sweep",
        help="Fit a scaling law and predict a larger run.",
        description="Train several sizes with several budgets, fit the scaling law, predict the loss of a"
        " larger run, and make it. Started again with the same folder, it goes on where it was.",
    )
    command.add_argument("out", metavar="FOLDER", help="The folder of the sweep.")
    command.add_argument(
        "--sizes", nargs="+", default=_SIZES, metavar="LxD",
        help=f"Layers and width of each size (default: {' '.join(_SIZES)}).",
    )  # fmt: skip
    command.add_argument(
        "--budgets", nargs="+", type=int, default=_BUDGETS, metavar="N",
        help=f"Tokens to train each size with (default: {' '.join(map(str, _BUDGETS))}).",
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
            default = _SETTINGS.get(each.name, each.default)
            add_flag(group, each.name, kind, several, default, each.metadata["help"])
    add_output(command)


def run_sweep(arguments: argparse.Namespace) -> None:
    """Makes the sweep and prints the law and the prediction."""
    from glassloop.train.research.sweep import Size, sweep, sweep_facts, sweep_text

    check_number("times", arguments.times, 1, 1e6, TrainError)
    check_count("jobs", arguments.jobs, 1, 256, error=TrainError)
    if any(budget < 1 for budget in arguments.budgets):
        raise TrainError.about("budgets", "has a number below 1; numbers of tokens are expected")
    flags = given_settings(arguments, left_out=SWEPT)
    result = sweep(
        make_config(arguments.config or "flags", _SETTINGS, config_file(arguments), flags),
        arguments.out,
        sizes=[Size.parse(text) for text in arguments.sizes],
        budgets=arguments.budgets,
        times=arguments.times,
        jobs=arguments.jobs,
        run_target=not arguments.fit_only,
        quiet=arguments.quiet,
    )
    print(json.dumps(sweep_facts(result)) if arguments.json else sweep_text(result))
