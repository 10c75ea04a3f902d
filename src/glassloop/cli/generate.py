"""`glassloop generate`: the text alone on stdout as it comes, one line of statistics on stderr."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from glassloop.engine.llm import LLM
    from glassloop.engine.run import Run

_DEFAULT_MODEL = "smollm2-135m-instruct"


def generate(
    prompt: Annotated[str, typer.Argument(help="What to continue; '-' reads it from stdin.")],
    model: Annotated[
        str, typer.Option("--model", "-m", help="A name, a .gguf file or a folder with safetensors.")
    ] = _DEFAULT_MODEL,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 1.0,
    seed: Annotated[int | None, typer.Option(help="Fixes the luck; drawn and shown if absent.")] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", "-n", help="Stop after so many tokens.")] = 256,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> None:
    """Continue a text with a model, token by token."""
    from glassloop.cli.terminal import working
    from glassloop.decode.sampling import Sampling

    sampling = Sampling(temperature=temperature, seed=seed, max_tokens=max_tokens)
    text = sys.stdin.read() if prompt == "-" else prompt
    with working(f"Loading {model}"):
        from glassloop.engine.llm import LLM

        llm = LLM(model)
    run = llm.start(text, sampling)
    try:
        for token in llm.loop(run, sampling):
            if not json_output:
                sys.stdout.write(token.text)
                sys.stdout.flush()
    except KeyboardInterrupt:
        # The text so far is worth keeping: finish the line, tell the figures, and say that it was cut.
        _finish(llm, run, json_output)
        raise typer.Exit(130) from None
    _finish(llm, run, json_output)


def _finish(llm: LLM, run: Run, json_output: bool) -> None:
    if json_output:
        print(json.dumps(run.to_dict(), ensure_ascii=False))
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
        f"ended by {run.finish_reason}" + (f" ({run.stop_reason})" if run.stop_reason else ""),
    ]
    return " · ".join(part for part in parts if part)
