"""`glassloop receipt` writes the receipt of a run; `glassloop verify` checks one with the model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glassloop.cli import loading
from glassloop.cli.options import Json, Ops, RunModel
from glassloop.cli.run_model import model_of
from glassloop.cli.stored_runs import Name, find_runs, is_path
from glassloop.cli.terminal import print_result, visible
from glassloop.errors import GlassloopError, TraceError

if TYPE_CHECKING:
    from glassloop.api.llm import LLM
    from glassloop.record.receipt import Receipt
    from glassloop.record.run import Run


def receipt(
    name: Name,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="The file to write.", show_default=False)
    ],
    with_text: Annotated[
        bool,
        typer.Option(
            "--with-text", help="Add the run, prompt and answer included, so that the file suffices."
        ),
    ] = False,
    key: Annotated[
        Path | None, typer.Option("--key", metavar="FILE", help="Sign it with this Ed25519 key, in PEM.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write the receipt of a run: digests of its prompt, options, tokens and numbers.

    With the model, 'glassloop verify' says whether the receipt is true.
    """
    run = find_runs(name)[0]
    written = run.receipt(key=key)
    written.save(out, with_text=with_text)
    size = out.stat().st_size
    signed = f", signed by {written.key}" if written.key else ""
    text = visible(f"{out}: {size:,} bytes{signed}", newlines=False)
    print_result({"run": run.id, "path": str(out), "size": size, "key": written.key}, text, as_json)


def verify(
    file: Annotated[Path, typer.Argument(metavar="RECEIPT", help="The receipt.", show_default=False)],
    text: Annotated[
        str | None,
        typer.Option(
            "--text",
            metavar="FILE|RUN",
            help="The run of the receipt: a .glass file or a run in the store; or the answer as a text file,"
            " which is compared too. By default the run is in the receipt or in the store.",
        ),
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="HEX", help="The public key that must have signed it.")
    ] = None,
    model: RunModel = None,
    ops: Ops = None,
    as_json: Json = False,
) -> None:
    """Check a receipt: whether the model computes the same tokens with the same numbers, to the last bit.

    The exit code is 0 if it does, 1 if not, and 2 if that could not be computed.
    """
    from glassloop.engine.receipts import verify_with
    from glassloop.record.receipt import load_receipt
    from glassloop.record.run import Run

    receipt = load_receipt(file, Run)
    run, name = _run_of(receipt, text)

    def load() -> LLM:
        return loading.load(model or model_of(name, run), ops)

    verdict = verify_with(load, receipt, run, key)
    print_result(verdict.to_dict(), visible(verdict.sentence, newlines=False), as_json)
    if not verdict:
        raise typer.Exit(1)


def _run_of(receipt: Receipt, text: str | None) -> tuple[Run, str]:
    """Returns the run of a receipt, and the name that `model_of` takes for it."""
    from glassloop.record.run import Run

    if text is not None and _is_plain_text(text):
        if not receipt.is_text(_read_text(text)):
            raise TraceError(f"--text is {text}, which is not the text of the receipt's answer")
    elif text is not None:
        return next((each for each in find_runs(text) if each.id == receipt.run), find_runs(text)[0]), text
    if isinstance(receipt.content, Run):
        return receipt.content, f"{receipt.run}.glass"  # it is trusted as little as a file
    try:
        return find_runs(receipt.run)[0], receipt.run
    except GlassloopError:
        raise TraceError(
            f"the receipt does not have its run, {receipt.run}, and neither has the store:"
            " --text FILE is expected, a .glass file with the run"
        ) from None


def _is_plain_text(name: str) -> bool:
    return is_path(name) and not name.endswith(".glass")


def _read_text(name: str) -> str:
    from glassloop.util.files import read_at_most

    data = read_at_most(name, 64 << 20, TraceError)
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise TraceError(f"--text is {name}; a .glass file or a text in UTF-8 is expected") from None
