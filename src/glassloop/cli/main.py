"""The `glassloop` command: its subcommands, and errors as one line with exit code 2.

Command modules import heavy libraries (NumPy, tokenizers) inside their functions, so that `--help` and shell
completion are fast.
"""

from __future__ import annotations

import os
import sys

import typer

from glassloop.cli import (
    chat,
    compare,
    contrast,
    diff,
    diffusion,
    edit,
    eval,
    explain,
    export,
    fork,
    generate,
    lens,
    models,
    receipt,
    replay,
    runs,
    serve,
    solve,
    tokenize,
    train,
    watch,
)
from glassloop.cli.help import App
from glassloop.cli.serve.config import PREFIX
from glassloop.cli.terminal import visible
from glassloop.errors import GlassloopError

app = App(
    name="glassloop",
    help="A text-generation engine you can see through.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(name="generate")(generate.generate)
app.command(name="chat")(chat.chat)
app.command(name="solve")(solve.solve)
app.command(name="watch")(watch.watch)
app.command(name="explain")(explain.explain)
app.command(name="fork")(fork.fork)
app.command(name="infill")(edit.infill)
app.command(name="edit")(edit.edit)
app.command(name="replay")(replay.replay)
app.command(name="receipt")(receipt.receipt)
app.command(name="verify")(receipt.verify)
app.command(name="passes")(diffusion.passes)
app.command(name="compare")(compare.compare)
app.command(name="contrast")(contrast.contrast)
app.command(name="diff")(diff.diff)
app.command(name="eval")(eval.evaluate)
app.command(name="export")(export.export)
app.command(name="serve", context_settings={"auto_envvar_prefix": PREFIX})(serve.serve)
app.command(name="tokenize")(tokenize.tokenize)
app.command(name="train", context_settings=train.SETTINGS)(train.train)
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
        # The message may quote an untrusted file or model.
        print(f"glassloop: {visible(str(error), newlines=False)}", file=sys.stderr)
        sys.exit(2)
    except MemoryError:
        print(
            "glassloop: there is no memory left: end other programs, or give less --kv-memory",
            file=sys.stderr,
        )
        sys.exit(2)
    except Exception as error:
        from glassloop.decode.stage import authors_traceback

        written = authors_traceback(error)
        if written is None:
            raise
        print(visible(written), end="", file=sys.stderr)  # by the author of a plugin, who looks for a mistake
        sys.exit(2)
    except SystemExit as ending:
        # The reader of a pipe closed it (`glassloop runs list | head`). Typer exits with 1 for that; it is
        # not an error.
        if not isinstance(ending.__context__, BrokenPipeError):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
