"""The flags that commands share: which model, how it is computed, and what is printed and kept."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glassloop.cli import loading
from glassloop.cli.flags import Flags, flag
from glassloop.cli.help import INPUT, MODEL, OUTPUT
from glassloop.cli.show import Show
from glassloop.cli.terminal import Color
from glassloop.model import registry
from glassloop.model.registry.catalog import DEFAULT_MODEL as DEFAULT_MODEL

if TYPE_CHECKING:
    from glassloop.api.llm import LLM
    from glassloop.upstream import UpstreamEngine


def complete_model(start: str) -> list[str]:
    """Returns the names of models that begin like this, for shell completion."""
    names = dict.fromkeys([*registry.CATALOG, *(item.name for item in registry.installed())])
    return [name for name in names if name.startswith(start)]


def _model(help: str) -> Any:
    return typer.Option(
        "--model", "-m", metavar="MODEL", help=help, autocompletion=complete_model, rich_help_panel=MODEL
    )


Model = Annotated[str, _model("The model: a name, a .gguf file or a folder with safetensors.")]
RunModel = Annotated[str | None, _model("Model name or path, if the model has moved since the run.")]
AnyModel = Annotated[str | None, _model(f"Model name or path. Default: that of the run, or {DEFAULT_MODEL}.")]
Ops = Annotated[
    str | None,
    typer.Option(
        "--ops",
        metavar="NAME",
        help="The op set: torch (on a GPU), native or reference.",
        rich_help_panel=MODEL,
    ),
]
Holes = Annotated[
    Path | None,
    typer.Option(
        "--holes",
        metavar="FILE",
        help="The adapter for masked rows; by default the one that comes with the model.",
        rich_help_panel=INPUT,
    ),
]
Keep = Annotated[
    bool,
    typer.Option(
        "--store/--no-store",
        help="Whether to keep the run in the store, for explain, fork, replay and runs.",
        rich_help_panel=OUTPUT,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.", rich_help_panel=OUTPUT)]
Colors = Annotated[
    Color,
    typer.Option(
        "--color",
        metavar="WHEN",
        help="When to write colours: auto (on a terminal), always (in a pipe too) or never.",
        rich_help_panel=OUTPUT,
    ),
]


@dataclass(frozen=True)
class EngineFlags(Flags, group=MODEL):
    """How a model is loaded and computed. Each command takes some of these flags."""

    model_defaults: bool = flag(
        True,
        "Whether options that are not given have the model's own settings, if it has any, or temperature 1"
        " and no filters.",
        "--model-defaults/--no-model-defaults",
    )
    ops: Ops = None
    kv_memory: str | None = flag(
        None, "Memory for the KV cache, such as 2GB. Default: a part of the free memory.", metavar="SIZE"
    )
    draft: str | None = flag(
        None,
        "A smaller model or a drafter's file for speculative decoding, or 'off'. Default: the model's own"
        " drafter, if there is one, and what came before.",
        metavar="MODEL|off",
    )
    plugin: list[Path] | None = flag(
        None,
        "Load stages, verifiers and methods of your own from this Python file; may be repeated. The file is"
        " run as a program, with all your rights.",
    )
    upstream: str | None = flag(
        None,
        "Let another engine compute: the URL of an OpenAI-compatible API (vLLM, llama.cpp, Ollama, a hosted"
        " one). --model is the name there.",
        metavar="URL",
    )
    upstream_key_env: str = flag(
        loading.UPSTREAM_KEY, "The environment variable that has the API key of the upstream.", metavar="NAME"
    )
    adapter: list[str] | None = flag(
        None,
        "Load this LoRA adapter, a folder of PEFT or a file, under a name; may be repeated.",
        metavar="[NAME=]PATH",
    )
    holes: Holes = None

    def load_plugins(self) -> None:
        """Loads the files of `--plugin`."""
        if self.plugin:
            from glassloop.decode.plugins import load_plugin

            for path in self.plugin:
                load_plugin(path)

    @property
    def drafter(self) -> bool | str:
        """The `draft` argument of `LLM`: a model or the file of a drafter, False for "off"; else True."""
        return True if self.draft is None else False if self.draft == "off" else self.draft

    def load(self, model: str) -> LLM:
        """Loads a model into an engine here."""
        return loading.load(model, self.ops, self.kv_memory, self.drafter, self.model_defaults, self.holes)

    def connect(self, model: str | None, **others: object) -> UpstreamEngine:
        """Connects to the engine of `--upstream`. Raises if a flag is given that only an engine here takes,
        such as these `others` of the command."""
        assert self.upstream is not None
        here = {"ops": self.ops, "kv-memory": self.kv_memory, "draft": self.draft, "plugin": self.plugin}
        return loading.load_upstream(self.upstream, model, self.upstream_key_env, {**here, **others})

    def open(self, model: str) -> loading.AnyEngine:
        """Loads a model, or connects to the engine of `--upstream`."""
        return self.load(model) if self.upstream is None else self.connect(model)


@dataclass(frozen=True)
class OutputFlags(Flags, group=OUTPUT):
    """What a command prints and keeps of its runs. Each command takes some of these flags."""

    json_output: bool = flag(False, "Print one JSON object instead of the text.", "--json")
    trace: Path | None = flag(None, "Save the run as a .glass file.")
    show: Show | None = flag(
        None,
        "Show the surprise of each token in colours, its alternatives, accepted and refused drafts, or the"
        " text as indented JSON: surprise, alternatives, drafts or json.",
        metavar="WHAT",
    )
    color: Colors = Color.AUTO
    store: Keep = True


AsText = Annotated[
    bool,
    typer.Option(
        "--text", help="Treat the argument as a text, even if it looks like a run.", rich_help_panel=INPUT
    ),
]
AsChat = Annotated[
    bool,
    typer.Option(
        "--chat",
        help="Ask the model: the prompt is a message, and the model's chat template is applied.",
        rich_help_panel=INPUT,
    ),
]
System = Annotated[
    str | None,
    typer.Option(
        "--system",
        metavar="TEXT",
        help="The system message of a chat. Implies --chat.",
        rich_help_panel=INPUT,
    ),
]
