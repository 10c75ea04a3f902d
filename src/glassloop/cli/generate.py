"""`glassloop generate`: prints the text on stdout while it is generated, and statistics on stderr."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from glassloop.cli.arguments import read_text
from glassloop.cli.diffusion import DiffusionFlags, print_diffused
from glassloop.cli.flags import Only, takes_flags
from glassloop.cli.help import INPUT
from glassloop.cli.loading import chat_messages
from glassloop.cli.options import DEFAULT_MODEL, AsChat, EngineFlags, Model, OutputFlags, System
from glassloop.cli.run_output import print_runs
from glassloop.cli.sampling_flags import sampling_options
from glassloop.cli.stored_runs import note_name
from glassloop.cli.terminal import set_color
from glassloop.decode.defaults import with_defaults
from glassloop.decode.sampling import Sampling
from glassloop.errors import GlassloopError

_ENGINE = Only(
    *("model_defaults", "ops", "kv_memory", "draft", "plugin", "upstream", "upstream_key_env", "holes")
)


@takes_flags()
def generate(
    prompt: Annotated[
        str | None,
        typer.Argument(
            metavar="[PROMPT]", help="The text to continue; '-' reads it from stdin.", show_default=False
        ),
    ] = None,
    prompts: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="Continue many texts in one batch. Each line of the file ('-' is stdin) is a prompt, or JSON"
            ' such as {"prompt": "...", "temperature": 0}. With --json, one object is printed for each.',
            rich_help_panel=INPUT,
        ),
    ] = None,
    chat: AsChat = False,
    system: System = None,
    model: Model = DEFAULT_MODEL,
    *,
    masks: DiffusionFlags,
    engine: Annotated[EngineFlags, _ENGINE],
    output: OutputFlags,
    **options: Any,
) -> None:
    """Continue a text with a model, token by token, or, with --chat, answer a message."""
    set_color(output.color)
    if (prompt is None) == (prompts is None):
        raise GlassloopError("either a prompt or --from FILE is expected")
    engine.load_plugins()
    overrides, chat = sampling_options(options), chat or system is not None
    Sampling.from_dict(overrides)  # errors in the options come before the model is loaded
    if not masks.diffusion and (masks.fill or engine.holes):
        raise GlassloopError("--fill and --holes are for --diffusion, which is not given")
    if masks.diffusion and (output.show is not None or engine.upstream is not None):
        raise GlassloopError("--diffusion is given; --show and --upstream are not expected with it")
    if masks.diffusion:
        overrides["diffusion"] = masks.filling
    if prompts is not None:
        from glassloop.cli.batch import print_batch, read_prompts

        if engine.upstream is not None:
            raise GlassloopError("--upstream is given with --from; one prompt at a time is expected")
        entries = read_prompts(prompts, overrides, chat, system)
        print_batch(engine.load(model), entries, output)
        return
    text = read_text(prompt or "")
    if prompt != "-":
        note_name(text)
    llm = engine.open(model)
    sampling = with_defaults(overrides, llm.default_sampling)
    if chat:
        request = llm.prepare_chat(chat_messages(llm, text, system), sampling)
    else:
        request = llm.prepare(text, sampling)
    (print_diffused if masks.diffusion else print_runs)(llm, request, output)
