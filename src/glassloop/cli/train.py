"""`glassloop train`: hands its arguments to `train/commands.py`, which also runs where only torch is
installed."""

from __future__ import annotations

from typing import Annotated

import typer

# The parser of `train/commands.py` reads all arguments, `--help` included.
SETTINGS = {"ignore_unknown_options": True, "help_option_names": []}


def train(
    arguments: Annotated[list[str] | None, typer.Argument(metavar="COMMAND …", show_default=False)] = None,
) -> None:
    """Train a model: from text, further on your own data, or an adapter."""
    from glassloop.train.commands import main

    main(arguments or ["--help"])
