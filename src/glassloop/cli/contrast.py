"""`glassloop contrast A B`: the same prompts with the same luck under two models, and what differs then."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glassloop.cli import loading
from glassloop.cli.flags import REQUIRED, Flags, Only, flag, takes_flags
from glassloop.cli.help import INPUT, OUTPUT
from glassloop.cli.options import EngineFlags, Json
from glassloop.cli.sampling_flags import sampling_options
from glassloop.cli.terminal import print_result, visible, working

if TYPE_CHECKING:
    from glassloop.api.llm import LLM
    from glassloop.contrast.report import ContrastReport, Parting, Side

_MODELS = "The two models"
_LISTED = 10  # partings that are printed
_ENGINE = Only("ops", "kv_memory", "model_defaults", "plugin")


@dataclass(frozen=True)
class ContrastFlags(Flags, group=INPUT):
    """What is compared, and how closely."""

    prompts: str = flag(
        REQUIRED,
        "The prompts, one on each line, as text or as JSON; '-' is stdin.",
        metavar="FILE",
        show_default=False,
    )
    chat: bool = flag(False, "Each line is a message to the model, by its chat template.", "--chat")
    limit: int | None = flag(None, "Only the first N prompts.", min=1)
    weights_a: str | None = flag(
        None, "The format that A's weights are brought to: q8, q4 or f32.", metavar="FORMAT", group=_MODELS
    )
    weights_b: str | None = flag(
        None, "The format that B's weights are brought to.", metavar="FORMAT", group=_MODELS
    )
    ops_b: str | None = flag(None, "The op set of B. Default: as A.", metavar="NAME", group=_MODELS)
    adapter_b: Path | None = flag(None, "A LoRA adapter with which B answers.", metavar="PATH", group=_MODELS)
    extract: str | None = flag(
        None,
        "Compare the values of the answers, not their texts: number, choice, json, regex:PATTERN …",
        metavar="NAME",
        group=OUTPUT,
    )
    tensors: int = flag(
        5, "For so many partings, find the weights that turned the token; 0: for none.", min=0, group=OUTPUT
    )
    measured: int = flag(1000, "Measure KL over about so many tokens.", min=0, group=OUTPUT)

    def open(self, model: str, engine: EngineFlags, is_second: bool) -> LLM:
        """Loads one of the models."""
        weights, ops = (
            (self.weights_b, self.ops_b or engine.ops) if is_second else (self.weights_a, engine.ops)
        )
        llm = loading.load(model, ops, engine.kv_memory, False, engine.model_defaults, weights=weights)
        if is_second and self.adapter_b is not None:
            llm.load_adapter("b", self.adapter_b)
        return llm


@takes_flags(prefix="Options of both", unset=True)
def contrast(
    first: Annotated[
        str, typer.Argument(metavar="A", help="The first model: a name or a path.", show_default=False)
    ],
    second: Annotated[
        str, typer.Argument(metavar="B", help="The second model. It may be the same.", show_default=False)
    ],
    *,
    flags: ContrastFlags,
    engine: Annotated[EngineFlags, _ENGINE],
    as_json: Json = False,
    **options: Any,
) -> None:
    """Answer the same prompts with two models and the same luck, and say where the answers part, how far the
    models are apart, and which weights did it.

    Files, quantizations, op sets and adapters can be compared, as long as both models have the same tokens.
    """
    from glassloop.cli.batch import read_prompts

    engine.load_plugins()
    sampling_changes = sampling_options(options)
    entries = read_prompts(flags.prompts, sampling_changes, flags.chat)[: flags.limit]
    prompts = [entry.prompt if entry.messages is None else entry.messages for entry in entries]
    with closing(flags.open(first, engine, False)) as llm, closing(flags.open(second, engine, True)) as other:
        sampling = llm.default_sampling.changed(sampling_changes)
        with working(f"{len(prompts)} prompts with two models"):
            report = llm.contrast(
                other,
                prompts,
                sampling,
                adapter=None if flags.adapter_b is None else "b",
                extract=flags.extract,
                tensors=flags.tensors,
                measured=flags.measured,
                progress=False,
            )
    print_result(report.to_dict(), _text(report), as_json)


def _text(report: ContrastReport) -> str:
    """Returns the report as the terminal shows it: a sentence, then the partings, the changed ones first."""
    flips = sorted(report.flips, key=lambda each: (not each.changed, each.tensor is None, each.prompt))
    lines = [visible(report.sentence), ""] + [_line(each) for each in flips[:_LISTED]]
    if len(flips) > _LISTED:
        lines.append(f"… and {len(flips) - _LISTED} more; --json has all of them")
    return "\n".join(lines).rstrip()


def _line(parting: Parting) -> str:
    how = (
        ""
        if parting.tensor is None
        else f", by {parting.tensor}{'' if parting.alone else ' and those before it'}"
    )
    values = "" if parting.values == (None, None) else f" ({parting.values[0]} → {parting.values[1]})"
    tokens = f"{_side(parting.first)} → {_side(parting.second)}"
    return visible(f"prompt {parting.prompt}, token {parting.at}: {tokens}{how}{values}", newlines=False)


def _side(side: Side | None) -> str:
    if side is None or side.id is None:
        return "the end"
    return f"{side.text!r} {100 * side.probability:.2g} %"
