"""`glassloop generate`: the text alone on stdout as it comes, one line of statistics on stderr.

Its flags are the fields of `Sampling`, read off their declarations, so there is none too many or too few.
"""

from __future__ import annotations

import json
import sys
from dataclasses import MISSING, fields
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glassloop.decode.sampling import Sampling
from glassloop.errors import SamplingError

if TYPE_CHECKING:
    from glassloop.engine.llm import LLM
    from glassloop.trace.run import Run

_DEFAULT_MODEL = "smollm2-135m-instruct"
_SHORT = {"max_tokens": "-n"}
# What a flag of each kind of option takes, before `Sampling` checks it.
_TAKES: dict[str, Any] = {
    "number": float,
    "whole": int,
    "flag": bool,
    "text": str,
    "texts": list[str],
    "ids": list[int],
    "biases": list[str],
    "schema": str,
}


def generate(
    prompt: Annotated[str, typer.Argument(help="What to continue; '-' reads it from stdin.")],
    model: Annotated[
        str, typer.Option("--model", "-m", help="A name, a .gguf file or a folder with safetensors.")
    ] = _DEFAULT_MODEL,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
    **options: Any,
) -> None:
    """Continue a text with a model, token by token."""
    from glassloop.cli.terminal import working

    sampling = Sampling.from_dict(_given(options))
    text = sys.stdin.read() if prompt == "-" else prompt
    with working(f"Loading {model}"):
        from glassloop.engine.llm import LLM

        llm = LLM(model)
    request = llm.prepare(text, sampling)
    run = request.runs[0]
    try:
        for token in llm.follow(request):
            if not json_output:
                sys.stdout.write(token.text)
                sys.stdout.flush()
    except KeyboardInterrupt:
        # The text so far is worth keeping: finish the line, tell the figures, and say that it was cut.
        _finish(llm, run, json_output)
        raise typer.Exit(130) from None
    _finish(llm, run, json_output)


def _flags() -> list[Parameter]:
    """A parameter for each field of `Sampling`, as typer wants it."""
    made = []
    for field in fields(Sampling):
        kind, flag = field.metadata["kind"], "--" + field.name.replace("_", "-")
        names = [flag, _SHORT[field.name]] if field.name in _SHORT else [flag]
        if kind == "flag":
            names = [f"{flag}/--no-{flag[2:]}"]
        default = None if field.default in (MISSING, ()) else field.default
        option = typer.Option(
            *names,
            help=field.metadata["help"],
            show_default=default not in (None, False),
            metavar={"biases": "ID=VALUE", "schema": "FILE|JSON"}.get(kind),
        )
        takes = _TAKES[kind] if default is not None else _TAKES[kind] | None
        made.append(
            Parameter(
                field.name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[takes, option]
            )
        )
    return made


def _given(options: dict[str, Any]) -> dict[str, Any]:
    """What was asked for on the command line, as `Sampling` takes it."""
    given = {name: value for name, value in options.items() if value not in (None, [])}
    if "logit_bias" in given:
        given["logit_bias"] = dict(map(_bias, given["logit_bias"]))
    for name in ("json_schema", "grammar"):
        if name in given and (path := Path(given[name])).suffix and _is_file(path):
            given[name] = path.read_text(encoding="utf-8")
    if "stages" in given:
        given["stages"] = [name for part in given["stages"] for name in part.split(",") if name]
    return given


def _bias(text: str) -> tuple[str, float]:
    token, _, value = text.partition("=")
    try:
        return str(int(token)), float(value)
    except ValueError:
        raise SamplingError(f"logit_bias is {text!r}; ID=VALUE, such as 42=-1.5, is expected") from None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a text that could not be a path
        return False


def _finish(llm: LLM, run: Run, json_output: bool) -> None:
    if json_output:
        print(json.dumps(run.to_dict(), ensure_ascii=False, allow_nan=False))
        return
    print(run.tail, flush=True)
    print(_statistics(llm, run), file=sys.stderr)


def _statistics(llm: LLM, run: Run) -> str:
    usage, speed = run.usage, run.timings.tokens_per_second(len(run.tokens))
    parts = [
        run.model,
        f"{llm.ops} ops",
        f"{usage.prompt_tokens} + {usage.completion_tokens} tokens",
        f"first after {run.timings.prefill:.2f} s",
        f"{speed:.1f} tokens/s" if speed else "",
        f"seed {run.seed}",
        f"ended by {run.finish_reason}" + (f" ({run.stop_reason!r})" if run.stop_reason else ""),
    ]
    return " · ".join(part for part in parts if part)


def _take_the_flags_of_sampling() -> None:
    """What typer reads: the signature above with `options` spelled out."""
    own = signature(generate, eval_str=True)
    parameters = [each for each in own.parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
    flags = _flags()
    generate.__signature__ = own.replace(parameters=[*parameters, *flags])  # type: ignore[attr-defined]
    generate.__annotations__ = {each.name: each.annotation for each in [*parameters, *flags]}


_take_the_flags_of_sampling()
