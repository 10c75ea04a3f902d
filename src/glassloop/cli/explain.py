"""`glassloop explain`: why a token of a recorded run was chosen, stage by stage, or what would have come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from glassloop.cli.kept import Name
from glassloop.cli.options import Json, complete_model, given, takes_sampling

if TYPE_CHECKING:
    from glassloop.decode.explain import Change, Explanation, StageReport
    from glassloop.trace.run import Run

_BEFORE = 60  # characters of the text before the token that are shown


def explain(
    name: Name,
    step: Annotated[int, typer.Option("--step", "-s", help="Which token, from 0; -1 is the last.")] = 0,
    which: Annotated[
        str, typer.Option("--run", help="Of a file with several: the run, by its id or how that begins.")
    ] = "",
    shown: Annotated[int, typer.Option("--shown", min=1, max=1000, help="How many candidates.")] = 10,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="Where its model is now.", autocompletion=complete_model),
    ] = None,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Say why a token was chosen: what each stage did, who raced with how much luck, and who won.

    Any option of generate makes it a what-if: the same luck with, say, --temperature 0.3.
    """
    from glassloop.cli.kept import find_run, load, model_of
    from glassloop.cli.terminal import print_json

    overrides = given(options)
    run = find_run(name, which)
    places = len(run.tokens) + (run.end is not None)
    at = step + places if step < 0 else step
    llm = load(model or model_of(name, run))
    told = llm.explain(run, at, shown=shown, **overrides)
    if as_json:
        print_json({"run": run.id, "step": at, "recorded": _recorded(run, at), **told.to_dict()})
        return
    _print(run, at, told, overrides)


takes_sampling(explain, panel="What if", unset=True)


def _recorded(run: Run, at: int) -> dict[str, Any]:
    return [*run.tokens, run.end][at].to_dict()  # type: ignore[union-attr]


def _print(run: Run, at: int, told: Explanation, overrides: dict[str, Any]) -> None:
    from glassloop.cli.terminal import quoted, visible

    token = [*run.tokens, run.end][at]
    assert token is not None
    before = (run.prompt or "") + "".join([each.text for each in run.tokens[:at]])
    cut = "…" if len(before) > _BEFORE else ""
    print(f"{cut}{visible(before[-_BEFORE:], newlines=False)} {quoted(token.piece)}")
    model = visible(run.model, newlines=False)
    print(f"token {at} of run {run.id[:8]} · {model} · seed {told.seed} · {token.source}\n")
    print_reasons(told)
    print("\n" + visible(told.sentence))
    if overrides:
        asked = ", ".join(f"{name}={value}" for name, value in overrides.items())
        same = told.winner.id == token.id
        came = "nothing changes" if same else f"{quoted(told.winner.text)} instead of {quoted(token.piece)}"
        print(visible(f"What if {asked}: {came}.", newlines=False))


def print_reasons(told: Explanation) -> None:
    """The stages, and who raced."""
    from glassloop.cli.terminal import percent, print_table, quoted

    if told.stages:
        stages = [_stage(report) for report in told.stages]
        header = ("stage", "left", "mass kept", "removed", "moved")
        print_table(header, stages, right=("left", "mass kept"), fold=("removed", "moved"))
        print()
    rows = [
        (
            quoted(racer.text),
            str(racer.rank),
            percent(racer.raw_logprob),
            f"removed by {racer.removed_by}" if racer.removed_by else percent(racer.logprob),
            f"{racer.luck:+.2f}",
            "" if racer.score is None else f"{racer.score:.2f}",
        )
        for racer in told.candidates
    ]
    won = next(place for place, racer in enumerate(told.candidates) if racer.id == told.taken.id)
    columns = ("token", "rank", "model", "after the stages", "luck", "score")
    print_table(columns, rows, right=("rank", "model", "luck", "score"), bold=won)


def _stage(report: StageReport) -> tuple[str, ...]:
    return (
        report.name,
        f"{report.survivors:,}",
        f"{100 * report.mass_kept:.1f} %",
        _some(report.removed, report.removed_count),
        _some(report.moved, report.moved_count) if report.kind == "bias" else "",
    )


def _some(changes: tuple[Change, ...], count: int) -> str:
    """The likeliest few by name."""
    from glassloop.cli.terminal import quoted

    if not count:
        return ""
    named = ", ".join(quoted(change.text) for change in changes[:3])
    return f"{count:,}: {named}" + (" …" if count > 3 else "")
