"""`glassloop tokenize`: the tokens of a text, each with its id and its bytes.

On a terminal neighbouring tokens have different colours (or bars between them, without colours) and invisible
characters are shown. In a pipe it is one token per line, with tabs between the fields.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from glassloop.cli.arguments import read_text
from glassloop.cli.help import MODEL
from glassloop.cli.options import DEFAULT_MODEL, Colors, Json, complete_model
from glassloop.cli.terminal import Color, always_colours, escaped, print_json, set_color, working

if TYPE_CHECKING:
    from rich.console import Console

_COLOURS = (
    "black on bright_cyan",
    "black on bright_yellow",
    "black on bright_green",
    "black on bright_magenta",
)
_SPECIAL = "bold white on red"
_VISIBLE = str.maketrans({" ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍"})


def tokenize(
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help="The text to tokenize; '-' reads it from stdin.")
    ],
    model: Annotated[
        str,
        typer.Option(
            "--model",
            "-m",
            metavar="MODEL",
            help="A model, a tokenizer such as cl100k_base, or a path to either.",
            rich_help_panel=MODEL,
            autocompletion=complete_model,
        ),
    ] = DEFAULT_MODEL,
    special: Annotated[
        bool,
        typer.Option(
            "--special/--no-special",
            help="Whether the names of special tokens, such as <|im_end|>, are read as these tokens.",
        ),
    ] = True,
    bos: Annotated[
        bool,
        typer.Option(
            "--bos/--no-bos",
            help="Whether to add the tokens that the model expects around a text, such as BOS.",
        ),
    ] = True,
    color: Colors = Color.AUTO,
    json_output: Json = False,
) -> None:
    """Show the tokens of a text."""
    set_color(color)
    whole = read_text(text)
    with working(f"Loading {model}"):
        from glassloop.model.loader import load_tokenizer

        tokenizer = load_tokenizer(model)
    ids = tokenizer.encode(whole, add_special=bos, parse_special=special)
    tokens: list[dict[str, Any]] = []
    for token_id in ids:
        data = tokenizer.token_bytes(token_id)
        tokens.append(
            {
                "id": token_id,
                "piece": tokenizer.piece(token_id),
                "text": data.decode("utf-8", "replace"),
                "bytes": data.hex(),
                "special": token_id in tokenizer.special_ids,
            }
        )
    if json_output:
        print_json({"model": model, "text": whole, "count": len(tokens), "tokens": tokens})
        return

    from rich.console import Console

    always = True if always_colours() else None  # None: rich looks at stdout and at NO_COLOR
    console = Console(highlight=False, force_terminal=always, no_color=False if always else None)
    if console.is_terminal:
        _show(console, model, tokens)
    else:
        for token in tokens:
            print(token["id"], shown(token["piece"]), token["bytes"], sep="\t")


def shown(piece: str) -> str:
    """Returns a piece in which spaces and line ends can be seen and nothing can move the cursor."""
    return "".join(each if each.isprintable() else escaped(each) for each in piece.translate(_VISIBLE))


def _show(console: Console, model: str, tokens: list[dict[str, Any]]) -> None:
    from rich.table import Table
    from rich.text import Text

    coloured = console.color_system is not None and not console.no_color
    line = Text()
    for place, token in enumerate(tokens):
        if place and not coloured:
            line.append("│")
        line.append(shown(token["piece"]), _style(place, token) if coloured else "")
        if "\n" in token["piece"] and place + 1 < len(tokens):
            line.append("\n")
    console.print(line)

    table = Table(box=None, pad_edge=False, header_style="bold" if coloured else "")
    for header in ("", "id", "piece", "bytes"):
        table.add_column(header, justify="left" if header in ("piece", "bytes") else "right", overflow="fold")
    for place, token in enumerate(tokens):
        piece = Text().append(shown(token["piece"]), _style(place, token) if coloured else "")
        data = bytes.fromhex(token["bytes"]).hex(" ")
        table.add_row(str(place), str(token["id"]), piece, "special" if token["special"] else data)
    if tokens:
        console.print()
        console.print(table)
    console.print(f"\n{len(tokens)} token{'' if len(tokens) == 1 else 's'} · {shown(model)}", markup=False)


def _style(place: int, token: dict[str, Any]) -> str:
    return _SPECIAL if token["special"] else _COLOURS[place % len(_COLOURS)]
