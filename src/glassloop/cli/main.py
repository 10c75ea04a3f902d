"""The `glassloop` command: puts the subcommands together and turns our errors into one line and exit code 2.

Command modules import what is heavy (NumPy, tokenizers, the model) inside their functions, so that `--help`
and shell completion answer at once.
"""

from __future__ import annotations

import os
import sys

import typer

from glassloop.cli import chat, compare, explain, generate, lens, models, replay, runs, serve, tokenize, watch
from glassloop.errors import GlassloopError

app = typer.Typer(
    name="glassloop",
    help="A text-generation engine you can see through.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(name="generate")(generate.generate)
app.command(name="chat")(chat.chat)
app.command(name="watch")(watch.watch)
app.command(name="explain")(explain.explain)
app.command(name="replay")(replay.replay)
app.command(name="compare")(compare.compare)
app.command(name="serve")(serve.serve)
app.command(name="tokenize")(tokenize.tokenize)
app.add_typer(lens.app, name="lens")
app.add_typer(runs.app, name="runs")
app.add_typer(models.app, name="models")


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"glassloop {version('glassloop')}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version."
    ),
) -> None:
    pass


def main() -> None:
    try:
        app()
    except GlassloopError as error:
        from glassloop.cli.terminal import visible

        # What is wrong may quote a file or a model that somebody else made.
        print(f"glassloop: {visible(str(error), newlines=False)}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("\nglassloop: interrupted", file=sys.stderr)
        sys.exit(130)
    except SystemExit as ending:
        # The reader of a pipe went away (`glassloop runs list | head`): not an error of ours or theirs,
        # though Typer takes it for one.
        if not isinstance(ending.__context__, BrokenPipeError):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
