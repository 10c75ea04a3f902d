"""`glassloop lens`: what happens inside the model, computed on demand."""

from __future__ import annotations

from collections.abc import Iterable
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glassloop.cli import loading
from glassloop.cli.arguments import read_text
from glassloop.cli.help import App
from glassloop.cli.naming import find_place, number_in
from glassloop.cli.options import DEFAULT_MODEL, AnyModel, AsText, Json, Ops
from glassloop.cli.run_model import model_of
from glassloop.cli.stored_runs import complete_run, find_runs, names_run
from glassloop.cli.terminal import percent, print_json, print_table, quoted, visible
from glassloop.errors import GlassloopError
from glassloop.util.chart import GridCell, grid, save_svg

if TYPE_CHECKING:
    from glassloop.api.llm import LLM
    from glassloop.engine.expert_routes import ExpertRoutes
    from glassloop.engine.lens_results import AttentionWeights, Layers, Neighbour, Neighbours, Piece
    from glassloop.record.run import Run

_BAR = 14  # characters, so that a table fits 80 columns
_SHOWN = 40  # tokens of a long text: those with the most attention
_TOKEN_HELP = (
    "The token: its number, from 0 (-1 is the last), or its text. Of a run, those of the answer count."
)

app = App(help="Look inside the model: attention, each layer's prediction, experts, neighbours of tokens.")
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
    attended = llm.lens.attention(text, _place(llm, text, token, in_prompt))
    if layer is not None:
        attended.layer(layer)  # raises before anything is written
    if picture is not None:
        save_svg(_draw_attention(attended, layer), picture)
    if as_json:
        print_json(attended.to_dict(layer))
    elif layer is None:
        _print_attention(attended, _place_in_words(text, attended.token))
    else:
        _print_heads(attended, layer, _place_in_words(text, attended.token))


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
    by_layer = llm.lens.layers(text, _place(llm, text, token, in_prompt), count)
    if picture is not None:
        save_svg(_draw_layers(by_layer), picture)
    if as_json:
        print_json(by_layer.to_dict())
    else:
        _print_layers(by_layer, _place_in_words(text, by_layer.token))


@app.command()
def experts(
    source: TextOrRun,
    token: Place = "-1",
    in_prompt: InPrompt = False,
    model: AnyModel = None,
    ops: Ops = None,
    as_text: AsText = False,
    as_json: Json = False,
) -> None:
    """Show which experts a token took in each layer of a mixture of experts, and with which weights."""
    text, llm = _open(source, model, ops, as_text)
    routes = llm.lens.experts(text, _place(llm, text, token, in_prompt))
    if as_json:
        print_json(routes.to_dict())
        return
    where = _place_in_words(text, routes.token)
    _print_head(f"The experts of {quoted(routes.tokens[-1].text)}", routes, where)
    rows = [(str(route.layer), route.in_words, str(route.among)) for route in routes.layers]
    print_table(("layer", "experts", "among"), rows, right=("layer", "among"), cut=("experts",))
    print("\nThe expert with the highest weight comes first; its weight is in brackets.")


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
    nearest = loading.load(model or DEFAULT_MODEL, ops).lens.neighbours(of, count)
    if picture is not None:
        save_svg(_draw_neighbours(nearest), picture)
    if as_json:
        print_json(nearest.to_dict())
    else:
        _print_neighbours(nearest)


def _open(source: str, model: str | None, ops: str | None, as_text: bool) -> tuple[Run | str, LLM]:
    """Returns a text or a run, and the model to look into."""
    if not as_text and names_run(source):
        run = find_runs(source)[0]
        return run, loading.load(model or model_of(source, run), ops)
    return source if as_text else read_text(source), loading.load(model or DEFAULT_MODEL, ops)


def _place(llm: LLM, text: Run | str, token: str, in_prompt: bool) -> int | str:
    """Returns the token that `--token` names, as a lens takes it. Numbers are those of all commands: of a run
    they count the tokens of the answer, or of the prompt."""
    number = number_in(token)
    if isinstance(text, str):
        if in_prompt:
            raise GlassloopError("--prompt is given with a text; it is for the prompt of a run")
        return token if number is None else number
    prompt_length, answer_length = len(text.prompt_ids), len(text.tokens)
    if in_prompt:
        at = find_place(token, list(map(llm.piece, text.prompt_ids)), "the prompt", "--token")
        if not 0 <= at < prompt_length:
            raise GlassloopError(
                f"--token is {token}; a token of the prompt from 0 to {prompt_length - 1} is expected"
            )
        return at
    if number is None or (number < 0 and prompt_length + answer_length + number >= 0):
        return token if number is None else number
    if not 0 <= number < answer_length:
        raise GlassloopError(
            f"--token is {token}; a token of the answer from 0 to {answer_length - 1} is expected"
        )
    return prompt_length + number


def _place_in_words(text: Run | str, at: int) -> str:
    """Returns where the token is in a run, in the words of all commands."""
    if isinstance(text, str):
        return ""
    before = len(text.prompt_ids)
    of = f"{at} of the prompt" if at < before else f"{at - before} of the answer"
    return f"token {of} of run {text.id[:8]}"


# ── tables ─────────────────────────────────────────────────────────────────────────────────────────────────


def _print_attention(attended: AttentionWeights, where: str) -> None:
    mean, elsewhere = attended.mean, attended.elsewhere
    most = float(elsewhere.max()) or 1.0
    rows = []
    for at in _shown(attended):
        layer, head, weight = attended.strongest(at)
        rows.append(
            (
                str(at),
                quoted(attended.tokens[at].text),
                f"{100 * mean[at]:.1f} %",
                f"{100 * elsewhere[at]:.1f} %" if at else "",
                "▉" * round(_BAR * float(elsewhere[at]) / most),
                f"layer {layer}, head {head}: {100 * weight:.0f} %",
            )
        )
    _print_head(f"Where {quoted(attended.tokens[-1].text)} looks", attended, where)
    columns = ("n", "token", "mean", "no first", "", "strongest head")
    print_table(columns, rows, right=("n", "mean", "no first"), cut=("token",))
    layers, heads, _ = attended.weights.shape
    print(f"\nmean: of {layers} layers with {heads} heads each; no first: the same without the first token.")


def _shown(attended: AttentionWeights) -> list[int]:
    """Returns the places to show: all, or in a long text those with the most attention."""
    mean = attended.mean
    return sorted(sorted(range(len(mean)), key=lambda at: -mean[at])[:_SHOWN])


def _print_heads(attended: AttentionWeights, layer: int, where: str) -> None:
    rows = []
    for head, weights in enumerate(attended.layer(layer), 1):
        best = sorted(range(len(weights)), key=lambda at: -weights[at])[:4]
        rows.append(
            (
                str(head),
                ", ".join(f"{quoted(attended.tokens[at].text)} {100 * weights[at]:.0f} %" for at in best),
            )
        )
    _print_head(f"Where {quoted(attended.tokens[-1].text)} looks in layer {layer}", attended, where)
    print_table(("head", "at"), rows, right=("head",), fold=("at",))


def _print_layers(by_layer: Layers, where: str) -> None:
    rows = [
        (
            str(prediction.layer) if prediction.layer else "none",
            ", ".join(f"{quoted(one.text)} {percent(one.logprob)}" for one in prediction.top),
            f"{prediction.entropy:.2f}",
            str(prediction.rank),
            percent(prediction.logprob),
        )
        for prediction in by_layer.layers
    ]
    _print_head(f"What comes after {quoted(by_layer.tokens[-1].text)}, by layer", by_layer, where)
    follows = quoted(by_layer.follows.text)
    header = ("layer", "would say", "entropy", "rank", follows)
    print_table(header, rows, right=("layer", "entropy", "rank", follows), cut=("would say",))
    why = "which comes next in the text" if by_layer.given else "the favourite of the last layer"
    print(f"\nRank and probability are those of {follows}, {why}; entropy is in nats.")


def _print_neighbours(nearest: Neighbours) -> None:
    rows = [
        (quoted(one.text), str(one.id), f"{one.cosine:.3f}", "▉" * round(_BAR * max(one.cosine, 0.0)))
        for one in nearest.found
    ]
    _print_head(f"Near {_names(nearest.of)}", nearest)
    print_table(("token", "id", "cosine", ""), rows, right=("id", "cosine"))


def _print_head(
    what: str, result: AttentionWeights | Layers | ExpertRoutes | Neighbours, where: str = ""
) -> None:
    print(_line(" · ".join(filter(None, (what, where, result.model, result.ops)))) + "\n")


# ── pictures ───────────────────────────────────────────────────────────────────────────────────────────────


def _draw_attention(attended: AttentionWeights, layer: int | None) -> str:
    """Draws a row for each layer, the mean of its heads, or for each head of one layer."""
    weights = attended.weights.mean(axis=1) if layer is None else attended.layer(layer)
    name, places = "layer" if layer is None else "head", _shown(attended)
    rows = [
        (f"{name} {number}", [GridCell(float(row[at]), f"{100 * row[at]:.0f}") for at in places])
        for number, row in enumerate(weights, 1)
    ]
    where = "" if layer is None else f" in layer {layer}"
    title = f"Where {_names(attended.tokens[-1:])} looks{where}, in % · {attended.model}"
    return grid(_line(title), [_label(attended.tokens[at].text) for at in places], rows)


def _draw_layers(by_layer: Layers) -> str:
    from glassloop.decode.sentence import ordinal

    rows = [
        (
            f"layer {prediction.layer}" if prediction.layer else "embedding",
            [
                GridCell(exp(one.logprob), f"{_label(one.text)} {100 * exp(one.logprob):.0f}%")
                for one in prediction.top
            ],
        )
        for prediction in by_layer.layers
    ]
    title = f"What each layer would say after {_names(by_layer.tokens[-1:])} · {by_layer.model}"
    return grid(_line(title), [ordinal(number) for number in range(1, len(rows[0][1]) + 1)], rows)


def _draw_neighbours(nearest: Neighbours) -> str:
    rows = [(_names([one]), [GridCell(max(one.cosine, 0.0), f"{one.cosine:.3f}")]) for one in nearest.found]
    return grid(_line(f"Near {_names(nearest.of)} · {nearest.model}"), ["cosine"], rows)


def _names(pieces: Iterable[Piece | Neighbour]) -> str:
    return " ".join(quoted(piece.text) for piece in pieces)


def _label(piece: str) -> str:
    """Returns a token for a narrow place: without spaces around it, unless it is nothing else."""
    return _line(piece.strip()) or quoted(piece)


def _line(text: str) -> str:
    return visible(text, newlines=False)
