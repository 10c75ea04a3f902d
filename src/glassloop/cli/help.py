"""The text of `--help`: options in groups (`rich_help_panel`), with their names in one column and what they
do in another, so that it can be read on a terminal of 80 columns. For a command with very many options, it
shows those that are used most; `--help-all` shows all.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup

from glassloop.errors import GlassloopError

if TYPE_CHECKING:
    from rich.panel import Panel
    from rich.text import Text

# The groups that commands share, in the order of the help. A command's own groups come before them.
INPUT = "What to generate"
CHOOSING, PENALTIES, CONSTRAINTS = "Choosing tokens", "Penalties", "Constraints"
SAMPLES, STOPPING = "Samples and beams", "When to stop"
OUTPUT, MODEL = "Output and record", "Model and memory"
_OTHER, _SHORT = "Options", "Common options"
_ORDER = [
    each.lower()
    for each in (INPUT, CHOOSING, PENALTIES, CONSTRAINTS, SAMPLES, STOPPING, OUTPUT, MODEL, _OTHER)
]
_FEW = 9  # arguments and options that need no groups
_MANY = 40  # arguments and options from which on `--help` shows only some
# Options of the shared groups that it then shows. A command's own groups are shown in full.
_COMMON = frozenset(
    (
        *(
            "prompts",
            "chat",
            "system",
            "temperature",
            "top_p",
            "seed",
            "n",
            "max_tokens",
            "stop",
            "json_schema",
        ),
        *("model", "show", "trace", "json_output", "as_json", "record", "server", "question", "help"),
    )
)
_NAMES = 24  # the width of the column with the names of options
_HIDDEN_VALUES: tuple[Any, ...] = (None, False, "", [], ())  # defaults that say nothing


_UsageError: Any = typer.BadParameter.__base__  # of click, or of typer's own copy of it


@contextmanager
def _in_one_line() -> Iterator[None]:
    """Turns a wrong command line into an error that is printed in one line, as all others are."""
    try:
        yield
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # the help was printed
            raise
        where = "" if error.ctx is None else f"; {error.ctx.command_path} -h has the options"
        raise GlassloopError(f"{error.format_message().rstrip('.')}{where}") from None


class _Command(TyperCommand):
    def make_context(self, *args: Any, **options: Any) -> Any:
        with _in_one_line():
            return super().make_context(*args, **options)

    def invoke(self, ctx: Any) -> Any:
        """Runs the command. Ctrl-C in one that does not handle it prints a notice."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            print("glassloop: interrupted", file=sys.stderr)
            raise typer.Exit(130) from None

    def format_help(self, ctx: Any, formatter: Any) -> None:
        _print_help(self, ctx)


class _Group(TyperGroup):
    def make_context(self, *args: Any, **options: Any) -> Any:
        with _in_one_line():
            return super().make_context(*args, **options)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        with _in_one_line():
            return super().resolve_command(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        _print_help(self, ctx)


class App(typer.Typer):
    """A group of commands whose help is printed by this module."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(cls=_Group, no_args_is_help=True, **settings)

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Any], Any]:
        return super().command(name, cls=_Command, **settings)


def print_all_help(ctx: typer.Context, wanted: bool) -> None:
    """Prints the help with all options of a command, if that is wanted, and ends: `--help-all`."""
    if wanted and not ctx.resilient_parsing:
        command: Any = ctx.command
        _print_help(command, ctx, everything=True)
        raise typer.Exit


def _print_help(command: TyperCommand | TyperGroup, ctx: Any, everything: bool = False) -> None:
    """Prints the help of a command: all of its options, or, if there are many, those that are used most."""
    from rich.console import Console
    from rich.text import Text

    visible = [each for each in command.get_params(ctx) if not getattr(each, "hidden", False)]
    arguments = [each for each in visible if each.param_type_name == "argument"]
    is_short = len(visible) > _MANY and not everything and any(each.name == "help_all" for each in visible)
    parameters = [each for each in visible if _is_common(each)] if is_short else visible
    panels: dict[str, list[tuple[Text, Text]]] = {}
    for each in parameters:
        title = getattr(each, "rich_help_panel", None) if len(parameters) > _FEW else None
        title = title or ("Arguments" if each in arguments else _OTHER)
        if len(parameters) < len(visible) and _place(title) >= 0:
            title = _SHORT  # a group for each of the few that are left would be longer than they are
        panels.setdefault(title, []).append((_names(each), _description(each)))
    panels = dict(sorted(panels.items(), key=lambda panel: _place(panel[0])))
    subcommands = getattr(command, "commands", {}).values()
    if subcommands:
        rows = [(Text(each.name, "bold cyan"), Text(_first_paragraph(each.help))) for each in subcommands]
        panels["Commands"] = rows
    console = Console(highlight=False)
    taken = "COMMAND …" if subcommands else " ".join(map(_argument, arguments))
    console.print(Text(f"\nUsage: {ctx.command_path} [OPTIONS] {taken}".rstrip(), "bold"))
    console.print(Text("\n" + _paragraphs(command.help) + "\n"))
    for title, rows in panels.items():
        console.print(_panel(title, rows, 11 if rows is panels.get("Commands") else _NAMES))
    if len(parameters) < len(visible):
        more = f"{len(visible) - len(parameters)} more options: {ctx.command_path} --help-all"
        console.print(Text(f"{more}\n", "bold"))


def _is_common(parameter: Any) -> bool:
    """Returns whether a parameter is shown where there are many: an argument, one of the command's own
    groups, or one that is used often."""
    title = getattr(parameter, "rich_help_panel", None)
    is_own = title is not None and _place(title) < 0
    return parameter.param_type_name == "argument" or is_own or parameter.name in (*_COMMON, "help_all")


def _place(title: str) -> int:
    group = title.rpartition(": ")[2].lower()
    return _ORDER.index(group) if group in _ORDER else -1


def _panel(title: str, rows: Iterable[tuple[Text, Text]], width: int) -> Panel:
    from rich.panel import Panel
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 0), expand=True)
    table.add_column(width=width, overflow="fold")
    table.add_column(ratio=1)
    for row in rows:
        table.add_row(*row)
    return Panel(table, title=title, title_align="left", border_style="dim")


def _names(parameter: Any) -> Text:
    """Returns the names of an option with its value, or of an argument; of a switch both on a line each."""
    from rich.text import Text

    if parameter.param_type_name == "argument":
        return Text(_argument(parameter).replace("[", "").replace("]", ""), "bold cyan")
    names = Text(", ".join(sorted(parameter.opts, key=len)), "bold cyan")
    if parameter.secondary_opts:
        names.append("\n" + ", ".join(parameter.secondary_opts))
    elif not parameter.is_flag:
        names.append(f" {parameter.metavar or 'VALUE'}", "yellow")
    return names


def _argument(parameter: Any) -> str:
    name: str = parameter.metavar or parameter.name.upper()
    return name if parameter.required or name.startswith("[") else f"[{name}]"


def _description(parameter: Any) -> Text:
    from rich.text import Text

    text = Text(" ".join((parameter.help or "").split()))
    default = parameter.default
    if isinstance(parameter.show_default, str):  # in words, where it is not known yet
        text.append(f" [default:\u00a0{parameter.show_default}]", "dim")
    elif parameter.required and parameter.param_type_name == "option":
        text.append(" [required]", "dim red")
    elif parameter.show_default and not callable(default) and default not in _HIDDEN_VALUES:
        value = parameter.opts[0] if default is True else getattr(default, "value", default)
        text.append(" " + f"[default: {value}]".replace(" ", "\u00a0"), "dim")
    return text


def _first_paragraph(text: str | None) -> str:
    return _paragraphs(text).split("\n\n")[0]


def _paragraphs(text: str | None) -> str:
    """Returns a docstring with each paragraph on one line."""
    return "\n\n".join(" ".join(part.split()) for part in (text or "").split("\n\n"))
