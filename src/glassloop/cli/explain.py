"""`glassloop explain`: why a token of a recorded run was chosen, stage by stage, or what would have come."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glassloop.cli.diffusion import Holes
from glassloop.cli.help import OUTPUT
from glassloop.cli.kept import Name, Which
from glassloop.cli.options import Json, Ops, Plugins, RunModel, given, load_plugins, takes_sampling
from glassloop.cli.remote import ServerKey, ServerKeyFile, ServerURL, connect
from glassloop.errors import GlassloopError

if TYPE_CHECKING:
    from glassloop.api.llm import LLM
    from glassloop.cli.remote import RemoteServer
    from glassloop.decode.explain import Explanation
    from glassloop.record.run import Run

_WHAT = "What to explain"
_BEFORE = 60  # characters of the text before the token that are shown


def explain(
    name: Name,
    step: Annotated[
        str | None,
        typer.Option(
            "--step",
            "-s",
            metavar="N|TEXT",
            help="Which token: its number, from 0 (-1 is the last), or its text (the first one that has it)."
            " Default: the most surprising one.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    in_prompt: Annotated[
        bool,
        typer.Option(
            "--prompt", help="Explain a token of the prompt, not of the answer.", rich_help_panel=_WHAT
        ),
    ] = False,
    new_luck: Annotated[
        bool,
        typer.Option(
            "--new-luck",
            help="What if: use the luck that a fork at this token would have.",
            rich_help_panel=_WHAT,
        ),
    ] = False,
    number: Annotated[
        int | None,
        typer.Option(
            "--pass",
            metavar="N",
            min=0,
            help="Of a text that was written by diffusion: what this pass thought of the place. Default: the"
            " pass that filled it.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    which: Which = "",
    shown: Annotated[
        int,
        typer.Option(
            "--shown",
            metavar="N",
            min=1,
            max=1000,
            help="How many candidates to show.",
            rich_help_panel=OUTPUT,
        ),
    ] = 10,
    model: RunModel = None,
    as_json: Json = False,
    plugin: Plugins = None,
    holes: Holes = None,
    ops: Ops = None,
    server: ServerURL = None,
    api_key: ServerKey = None,
    api_key_file: ServerKeyFile = None,
    **options: Any,
) -> None:
    """Say why a token was chosen: what each stage did, how much luck each candidate drew, and which one won.

    Any option of generate makes it a what-if question: with --temperature 0.3, for example, it says which
    token the same luck would have chosen.
    """
    from glassloop.cli.kept import beam_pieces, find_run, found_as, is_path, load, model_of
    from glassloop.cli.terminal import print_json, print_notes, quoted, visible
    from glassloop.engine.replay import token_at

    here = {"model": model, "ops": ops, "plugin": plugin, "holes": holes, "adapter": options.get("adapter")}
    there = connect(server, api_key, api_key_file, **here)
    load_plugins(plugin)
    overrides = given(options)
    run = find_run(name, which, there)
    # A file is explained here; the runs of a server are explained there.
    there = None if there is not None and is_path(name) else there
    if number is not None and (run.diffusion is None or in_prompt):
        raise GlassloopError("--pass is given; a token that was filled by a pass of diffusion is expected")
    if overrides.get("adapter") == run.sampling.adapter:  # it was given to be loaded, not as a what-if
        overrides.pop("adapter", None)
    if run.upstream is not None:
        _print_told(run, step, in_prompt, new_luck, shown, overrides, as_json)
        return
    llm = None if there is not None else load(model or model_of(name, run), ops, holes=holes)
    maker: Any = there if llm is None else llm
    if in_prompt:
        of, pieces = "prompt", _prompt_pieces(llm, there, run)
    else:
        of, pieces = "answer", [each.piece for each in (*run.tokens, *([run.end] if run.end else []))]
    at = _place(run, step, pieces, of)
    asked_pass: dict[str, Any] = {} if number is None else {"number": number}
    luck = "new" if new_luck else "same"
    with _naming_step():
        told = maker.explain(run, at, of=of, luck=luck, shown=shown, **asked_pass, **overrides)
    print_notes(told.notes)
    token = None if in_prompt else token_at(run, at)
    if as_json:
        record = None if token is None else token.to_dict()
        print_json({"run": run.id, "step": at, "of": of, "recorded": record, **told.to_dict()})
        return
    actual = run.prompt_ids[at] if in_prompt else None if token is None else token.id
    piece = pieces[at] if in_prompt else None if token is None else token.piece
    if in_prompt:
        before = "".join(pieces[:at])
        place, source = f"token {at} of the prompt", "prompt"
    else:
        before = (run.prompt or "") + "".join([each.text for each in run.tokens[:at]])
        place, source = f"token {at}", "to come" if token is None else token.source
    _print(run, f"{place} of run {run.id[:8]}", before, piece, source, told, step is None)
    if token is not None and token.source == "beam" and run.beams:
        from glassloop.cli.beams import print_beams

        print()
        print_beams(run, llm.piece if llm else beam_pieces(found_as(name, run, there), run), until=at)
    asked = [f"{name}={value}" for name, value in overrides.items()] + ["new luck"] * new_luck
    if asked:
        came = quoted(told.winner.text)
        if piece is not None:
            came = "nothing changes" if told.winner.id == actual else f"{came} instead of {quoted(piece)}"
        print(visible(f"What if {', '.join(asked)}: {came}.", newlines=False))


takes_sampling(explain, prefix="What if", unset=True)


def _prompt_pieces(llm: LLM | None, server: RemoteServer | None, run: Run) -> list[str]:
    """Returns the text of each token of the prompt, from the model here or from the server."""
    from glassloop.engine.compatibility import check_run

    if llm is None:
        return [] if server is None else server.prompt_pieces(run)
    check_run(llm, run)  # before its token ids are looked up
    return list(map(llm.piece, run.prompt_ids))


def _place(run: Run, step: str | None, pieces: list[str], of: str) -> int:
    """Returns the place of the token that `--step` names; by default that of the most surprising one. The
    tokens of a prompt are scored only if that was asked for."""
    from glassloop.cli.naming import find_place
    from glassloop.record.worst import most_surprising

    if step is not None:
        return find_place(step, pieces, f"the {of}", "--step")
    if of == "answer":
        return next(iter(most_surprising(run.tokens)), 0)
    if not run.prompt_tokens:
        raise GlassloopError(
            "--prompt is given without --step; the number or the text of a token is expected"
        )
    return 1 + next(iter(most_surprising(run.prompt_tokens)), 0)  # the first token has no record


@contextmanager
def _naming_step() -> Iterator[None]:
    """Calls the place of a token by the option that gives it."""
    from glassloop.record.run import NoSuchToken

    try:
        yield
    except NoSuchToken as error:
        raise NoSuchToken(str(error).replace("at is", "--step is", 1), field="--step") from None


def _print_told(
    run: Run,
    step: str | None,
    in_prompt: bool,
    new_luck: bool,
    shown: int,
    overrides: dict[str, Any],
    as_json: bool,
) -> None:
    """Explains a token of a run that another engine computed, which needs no model: only its record is
    known."""
    from glassloop.cli.terminal import print_json

    of, tokens = ("prompt", run.prompt_tokens) if in_prompt else ("answer", run.tokens)
    first = [""] if in_prompt else []  # of a prompt, the first token has no record
    at = _place(run, step, [*first, *(each.piece for each in tokens)], of)
    with _naming_step():
        told = run.explain(at, of=of, luck="new" if new_luck else "same", shown=shown, **overrides)
    token = tokens[at - len(first)]
    if as_json:
        print_json({"run": run.id, "step": at, "of": of, "recorded": token.to_dict(), **told.to_dict()})
        return
    before = "".join([each.text for each in tokens[: at - len(first)]])
    place = f"token {at}{' of the prompt' if in_prompt else ''} of run {run.id[:8]}"
    source = "prompt" if in_prompt else token.source
    _print(
        run, place, ("" if in_prompt else run.prompt or "") + before, token.piece, source, told, step is None
    )


def _print(
    run: Run,
    place: str,
    before: str,
    piece: str | None,
    source: str,
    told: Explanation,
    by_default: bool,
) -> None:
    """Prints the token in its text, the tables and the sentence. `by_default` tells that the token was not
    named: it is the most surprising one."""
    from glassloop.cli.terminal import quoted, visible, wrapped

    cut = "…" if len(before) > _BEFORE else ""
    print(f"{cut}{visible(before[-_BEFORE:], newlines=False)} {'…' if piece is None else quoted(piece)}")
    model = visible(run.model, newlines=False)
    chosen = " · the most surprising one; --step N explains another" if by_default and piece else ""
    print(wrapped(f"{place} · {model} · seed {told.seed} · {source}{chosen}") + "\n")
    print_reasons(told)


def print_reasons(told: Explanation) -> None:
    """Prints the tables of the stages and of the race, and the sentence. Where the record differs from what
    is computed now, the sentence, which says so, comes first."""
    from glassloop.cli.terminal import print_table, visible, wrapped
    from glassloop.decode.explain_text import race_table, stage_table

    said = wrapped(visible(told.sentence))
    if told.difference is not None:
        print(said + "\n")
    if told.stages:
        stages = stage_table(told)
        print_table(stages.header, stages.rows, right=stages.right, fold=("removed", "moved"))
        print()
    race = race_table(told)
    won = next(place for place, racer in enumerate(told.candidates) if racer.id == told.taken.id)
    print_table(race.header, race.rows, right=race.right, bold=won)
    if told.difference is None:
        print("\n" + said)
