"""`glassloop lens`: what happens inside the model, computed on demand."""

from __future__ import annotations

from collections.abc import Iterable
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glassloop.cli.help import App
from glassloop.cli.kept import complete_run
from glassloop.cli.naming import find_place, number_in
from glassloop.cli.options import DEFAULT_MODEL, AnyModel, AsText, Json, Ops, read_text
from glassloop.cli.terminal import percent, print_json, print_table, quoted, visible
from glassloop.errors import GlassloopError
from glassloop.util.chart import GridCell, grid, save_svg

if TYPE_CHECKING:
    from glassloop.api.llm import LLM
    from glassloop.engine.lens import AttentionWeights, Layers, Neighbour, Neighbours, Piece
    from glassloop.record.run import Run

_BAR = 14  # characters, so that a table fits 80 columns
_SHOWN = 40  # tokens of a long text: those with the most attention
_TOKEN_HELP = (
    "The token: its number, from 0 (-1 is the last), or its text. Of a run, those of the answer count."
)

app = App(help="Look inside the model: attention, the prediction of each layer, neighbours of tokens.")
TextOrRun = Annotated[
    str,
    typer.Argument(
        metavar="PROMPT|RUN|FILE",
        help="A text; or a run: a .glass file, its id in the store (8 digits or more), or 'last'.",
        autocompletion=complete_run,
        show_default=False,
    ),
]
Place = Annotated[str, typer.Option("--token", "-t", metavar="N|TEXT", help=_TOKEN_HELP)]
InPrompt = Annotated[
    bool, typer.Option("--prompt", help="Of a run: count the tokens of the prompt, not of the answer.")
]
Picture = Annotated[
    Path | None, typer.Option("--picture", "-p", metavar="FILE", help="Draw a picture into this .svg file.")
]


@app.command()
def attention(
    source: TextOrRun,
    token: Place = "-1",
    in_prompt: InPrompt = False,
    layer: Annotated[
        int | None,
        typer.Option("--layer", "-l", metavar="N", min=1, help="Show the heads of this layer, from 1."),
    ] = None,
    model: AnyModel = None,
    ops: Ops = None,
    as_text: AsText = False,
    picture: Picture = None,
    as_json: Json = False,
) -> None:
    """Show how much each head of each layer attends from a token to itself and to the tokens before it."""
    text, llm = _open(source, model, ops, as_text)
    seen = llm.lens.attention(text, _place(llm, text, token, in_prompt))
    if layer is not None:
        seen.layer(layer)  # raises before anything is written
    if picture is not None:
        save_svg(_draw_attention(seen, layer), picture)
    if as_json:
        print_json(seen.to_dict(layer))
    elif layer is None:
        _print_attention(seen, _told_place(text, seen.token))
    else:
        _print_heads(seen, layer, _told_place(text, seen.token))


@app.command()
def layers(
    source: TextOrRun,
    token: Place = "-1",
    in_prompt: InPrompt = False,
    count: Annotated[
        int, typer.Option("--count", "-c", metavar="N", min=1, max=1000, help="How many tokens per layer.")
    ] = 4,
    model: AnyModel = None,
    ops: Ops = None,
    as_text: AsText = False,
    picture: Picture = None,
    as_json: Json = False,
) -> None:
    """Show the logit lens: what each layer would predict next if it were the last one."""
    text, llm = _open(source, model, ops, as_text)
    seen = llm.lens.layers(text, _place(llm, text, token, in_prompt), count)
    if picture is not None:
        save_svg(_draw_layers(seen), picture)
    if as_json:
        print_json(seen.to_dict())
    else:
        _print_layers(seen, _told_place(text, seen.token))


@app.command()
def neighbours(
    of: Annotated[
        str,
        typer.Argument(metavar="TEXT", help='A token, such as " king". Of several tokens, the mean is used.'),
    ],
    count: Annotated[
        int, typer.Option("--count", "-c", metavar="N", min=1, max=1000, help="How many tokens.")
    ] = 10,
    model: AnyModel = None,
    ops: Ops = None,
    picture: Picture = None,
    as_json: Json = False,
) -> None:
    """Show the tokens with the most similar embeddings (cosine, over the whole vocabulary)."""
    from glassloop.cli.kept import load

    seen = load(model or DEFAULT_MODEL, ops).lens.neighbours(of, count)
    if picture is not None:
        save_svg(_draw_neighbours(seen), picture)
    if as_json:
        print_json(seen.to_dict())
    else:
        _print_neighbours(seen)


def _open(source: str, model: str | None, ops: str | None, as_text: bool) -> tuple[Run | str, LLM]:
    """Returns a text or a run, and the model to look into."""
    from glassloop.cli.kept import find_runs, load, model_of, names_run

    if not as_text and names_run(source):
        run = find_runs(source)[0]
        return run, load(model or model_of(source, run), ops)
    return source if as_text else read_text(source), load(model or DEFAULT_MODEL, ops)


def _place(llm: LLM, text: Run | str, token: str, in_prompt: bool) -> int | str:
    """Returns the token that `--token` names, as a lens takes it. Numbers are those of all commands: of a run
    they count the tokens of the answer, or of the prompt."""
    number = number_in(token)
    if isinstance(text, str):
        if in_prompt:
            raise GlassloopError("--prompt is given with a text; it is for the prompt of a run")
        return token if number is None else number
    before, made = len(text.prompt_ids), len(text.tokens)
    if in_prompt:
        at = find_place(token, list(map(llm.piece, text.prompt_ids)), "the prompt", "--token")
        if not 0 <= at < before:
            raise GlassloopError(
                f"--token is {token}; a token of the prompt from 0 to {before - 1} is expected"
            )
        return at
    if number is None or (number < 0 and before + made + number >= 0):
        return token if number is None else number
    if not 0 <= number < made:
        raise GlassloopError(f"--token is {token}; a token of the answer from 0 to {made - 1} is expected")
    return before + number


def _told_place(text: Run | str, at: int) -> str:
    """Returns where the token is in a run, in the words of all commands."""
    if isinstance(text, str):
        return ""
    before = len(text.prompt_ids)
    of = f"{at} of the prompt" if at < before else f"{at - before} of the answer"
    return f"token {of} of run {text.id[:8]}"


# ── tables ─────────────────────────────────────────────────────────────────────────────────────────────────


def _print_attention(seen: AttentionWeights, where: str) -> None:
    mean, elsewhere = seen.mean, seen.elsewhere
    most = float(elsewhere.max()) or 1.0
    rows = []
    for at in _shown(seen):
        layer, head, weight = seen.strongest(at)
        rows.append(
            (
                str(at),
                quoted(seen.tokens[at].text),
                f"{100 * mean[at]:.1f} %",
                f"{100 * elsewhere[at]:.1f} %" if at else "",
                "▉" * round(_BAR * float(elsewhere[at]) / most),
                f"layer {layer}, head {head}: {100 * weight:.0f} %",
            )
        )
    _print_head(f"Where {quoted(seen.tokens[-1].text)} looks", seen, where)
    columns = ("n", "token", "mean", "no first", "", "strongest head")
    print_table(columns, rows, right=("n", "mean", "no first"), cut=("token",))
    layers, heads, _ = seen.weights.shape
    print(f"\nmean: of {layers} layers with {heads} heads each; no first: the same without the first token.")


def _shown(seen: AttentionWeights) -> list[int]:
    """Returns the places to show: all, or in a long text those with the most attention."""
    mean = seen.mean
    return sorted(sorted(range(len(mean)), key=lambda at: -mean[at])[:_SHOWN])


def _print_heads(seen: AttentionWeights, layer: int, where: str) -> None:
    rows = []
    for head, weights in enumerate(seen.layer(layer), 1):
        best = sorted(range(len(weights)), key=lambda at: -weights[at])[:4]
        rows.append(
            (str(head), ", ".join(f"{quoted(seen.tokens[at].text)} {100 * weights[at]:.0f} %" for at in best))
        )
    _print_head(f"Where {quoted(seen.tokens[-1].text)} looks in layer {layer}", seen, where)
    print_table(("head", "at"), rows, right=("head",), fold=("at",))


def _print_layers(seen: Layers, where: str) -> None:
    rows = [
        (
            str(said.layer) if said.layer else "none",
            ", ".join(f"{quoted(one.text)} {percent(one.logprob)}" for one in said.top),
            f"{said.entropy:.2f}",
            str(said.rank),
            percent(said.logprob),
        )
        for said in seen.layers
    ]
    _print_head(f"What comes after {quoted(seen.tokens[-1].text)}, by layer", seen, where)
    follows = quoted(seen.follows.text)
    header = ("layer", "would say", "entropy", "rank", follows)
    print_table(header, rows, right=("layer", "entropy", "rank", follows), cut=("would say",))
    why = "which comes next in the text" if seen.given else "the favourite of the last layer"
    print(f"\nRank and probability are those of {follows}, {why}; entropy is in nats.")


def _print_neighbours(seen: Neighbours) -> None:
    rows = [
        (quoted(one.text), str(one.id), f"{one.cosine:.3f}", "▉" * round(_BAR * max(one.cosine, 0.0)))
        for one in seen.found
    ]
    _print_head(f"Near {_names(seen.of)}", seen)
    print_table(("token", "id", "cosine", ""), rows, right=("id", "cosine"))


def _print_head(what: str, seen: AttentionWeights | Layers | Neighbours, where: str = "") -> None:
    print(_line(" · ".join(filter(None, (what, where, seen.model, seen.ops)))) + "\n")


# ── pictures ───────────────────────────────────────────────────────────────────────────────────────────────


def _draw_attention(seen: AttentionWeights, layer: int | None) -> str:
    """Draws a row for each layer, the mean of its heads, or for each head of one layer."""
    weights = seen.weights.mean(axis=1) if layer is None else seen.layer(layer)
    name, places = "layer" if layer is None else "head", _shown(seen)
    rows = [
        (f"{name} {number}", [GridCell(float(row[at]), f"{100 * row[at]:.0f}") for at in places])
        for number, row in enumerate(weights, 1)
    ]
    where = "" if layer is None else f" in layer {layer}"
    title = f"Where {_names(seen.tokens[-1:])} looks{where}, in % · {seen.model}"
    return grid(_line(title), [_label(seen.tokens[at].text) for at in places], rows)


def _draw_layers(seen: Layers) -> str:
    from glassloop.decode.sentence import ordinal

    rows = [
        (
            f"layer {said.layer}" if said.layer else "embedding",
            [
                GridCell(exp(one.logprob), f"{_label(one.text)} {100 * exp(one.logprob):.0f}%")
                for one in said.top
            ],
        )
        for said in seen.layers
    ]
    title = f"What each layer would say after {_names(seen.tokens[-1:])} · {seen.model}"
    return grid(_line(title), [ordinal(number) for number in range(1, len(rows[0][1]) + 1)], rows)


def _draw_neighbours(seen: Neighbours) -> str:
    rows = [(_names([one]), [GridCell(max(one.cosine, 0.0), f"{one.cosine:.3f}")]) for one in seen.found]
    return grid(_line(f"Near {_names(seen.of)} · {seen.model}"), ["cosine"], rows)


def _names(pieces: Iterable[Piece | Neighbour]) -> str:
    return " ".join(quoted(piece.text) for piece in pieces)


def _label(piece: str) -> str:
    """Returns a token for a narrow place: without spaces around it, unless it is nothing else."""
    return _line(piece.strip()) or quoted(piece)


def _line(text: str) -> str:
    return visible(text, newlines=False)
