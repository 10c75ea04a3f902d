"""`glassloop models`: what can be pulled, what is here, and the commands that change it.

Every command prints for people on a terminal, plain columns into a pipe, and one JSON value with `--json`;
progress and notices go to stderr, so stdout can always be used by the next program.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from glassloop.cli.terminal import print_json, visible, working
from glassloop.errors import RegistryError
from glassloop.model import registry
from glassloop.model.registry.catalog import Entry
from glassloop.model.registry.store import sha256_of, size_text, tree_size

app = typer.Typer(help="The models on this machine and those that can be pulled.", no_args_is_help=True)


def _complete(start: str) -> list[str]:
    names = dict.fromkeys([*registry.CATALOG, *(item.name for item in registry.installed())])
    return [name for name in names if name.startswith(start)]


_NAME_HELP = (
    "A name from 'glassloop models list', or on Hugging Face: owner/repo, owner/repo@revision or "
    "owner/repo:file.gguf."
)
Name = Annotated[
    str, typer.Argument(metavar="NAME", help=_NAME_HELP, autocompletion=_complete, show_default=False)
]
NameOrPath = Annotated[
    str,
    typer.Argument(
        metavar="NAME_OR_PATH",
        help=_NAME_HELP + " Or a .gguf file or a folder with safetensors.",
        autocompletion=_complete,
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command(name="list")
def list_models(as_json: Json = False) -> None:
    """All known names and everything else in the cache."""
    here = {item.name: item for item in registry.installed()}
    known = [_known(entry) for entry in registry.CATALOG.values() if entry.name not in here]
    first = {name: place for place, name in enumerate(registry.CATALOG)}
    rows = sorted(known + [_here(item) for item in here.values()], key=lambda row: _order(row, first))
    if as_json:
        print_json(rows)
        return
    header = ("name", "kind", "size", "pulled", "licence")
    _print_table(header, [[str(row["name"]), str(row["kind"]), *_cells(row)] for row in rows])
    for row in rows:
        if row["problem"]:
            problem = visible(f"{row['name']}: {row['problem']}", newlines=False)
            print(f"glassloop: {problem}", file=sys.stderr)


@app.command()
def pull(
    name: Name,
    force: Annotated[bool, typer.Option("--force", help="Pull again what is already here.")] = False,
    as_json: Json = False,
) -> None:
    """Download a model or tokenizer into the cache; prints its path."""
    path = registry.pull(name, force=force)
    if as_json:
        print_json({"name": name, "path": str(path), "size": _size(path)})
    else:
        print(path)


@app.command()
def show(
    name: NameOrPath,
    verify: Annotated[bool, typer.Option("--verify", help="Check the SHA-256 of every file.")] = False,
    as_json: Json = False,
) -> None:
    """Where a model is, where it comes from, and what it is made of."""
    with working("verifying" if verify else "reading"):
        facts = _facts(name, verify)
    if as_json:
        print_json(facts)
    else:
        _print_facts(facts)


@app.command()
def path(name: NameOrPath, as_json: Json = False) -> None:
    """Print the path of what is already here; never downloads."""
    found = registry.find(name)
    if found is None:
        raise RegistryError(f"{name!r} is not pulled; 'glassloop models pull {name}' pulls it")
    if as_json:
        print_json({"name": name, "path": str(found)})
    else:
        print(found)


@app.command()
def rm(name: Name, as_json: Json = False) -> None:
    """Remove a model or tokenizer from the cache."""
    freed = registry.remove(name)
    if as_json:
        print_json({"name": name, "freed": freed})
    else:
        print(f"removed {name}, {size_text(freed)} freed")


def _known(entry: Entry) -> dict[str, object]:
    size = sum(file.size for file in entry.files)
    return {
        "name": entry.name,
        "kind": entry.kind,
        "size": size,
        "pulled": False,
        "path": None,
        "licence": entry.licence,
        "source": entry.source,
        "problem": None,
    }


def _here(item: registry.Installed) -> dict[str, object]:
    return {
        "name": item.name,
        "kind": item.kind,
        "size": item.size,
        "pulled": True,
        "path": str(item.path),
        "licence": item.licence,
        "source": item.source,
        "problem": item.problem or None,
    }


def _order(row: Mapping[str, object], first: Mapping[str, int]) -> tuple[int, str]:
    name = str(row["name"])
    return first.get(name, len(first)), name


def _cells(row: Mapping[str, object]) -> list[str]:
    pulled = "damaged" if row["problem"] else "yes" if row["pulled"] else "no"
    return [size_text(float(str(row["size"]))), pulled, str(row["licence"])]


def _facts(name: str, verify: bool) -> dict[str, object]:
    """What `show` prints, in order: the registry's facts, then the loader's about the model inside."""
    source = registry.resolve(name)
    if isinstance(source, Path):
        facts: dict[str, object] = {"path": str(source.absolute()), "size": _size(source)}
        if verify and source.is_file():
            facts["sha256"] = sha256_of(source)
        return facts | _describe(source)
    item = registry.verify(name) if verify else registry.stored(name)
    if item is None:
        if not isinstance(source, Entry):
            raise RegistryError(f"{name!r} is not pulled; 'glassloop models pull {name}' pulls it")
        known = _known(source)
        return {key: known[key] for key in ("name", "kind", "pulled", "size", "source", "licence")} | {
            "sha256": {file.name: file.sha256 for file in source.files}
        }
    if item.problem:
        raise RegistryError(item.problem)
    here = _here(item)
    facts = {key: here[key] for key in ("name", "kind", "pulled", "path", "size", "source", "licence")}
    facts["sha256"] = {file.name: file.sha256 for file in item.files}
    if verify:
        facts["verified"] = True
    return facts | (_describe(item.path) if item.kind == "model" else {})


def _describe(path: Path) -> dict[str, object]:
    if path.suffix != ".gguf" and not (path / "config.json").is_file():
        return {}
    from glassloop.model.loader import describe

    return describe(path)


def _size(path: Path) -> int:
    return tree_size(path) if path.is_dir() else path.stat().st_size


def _print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    rows = [[visible(cell, newlines=False) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
        for row in (header, *rows):
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    colour = {"yes": "green", "no": "dim", "damaged": "bold red"}
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for title in header:
        table.add_column(title, justify="right" if title == "size" else "left", no_wrap=title != "licence")
    for row in rows:
        cells = [Text(row[0], style="bold"), *(Text(cell, style=colour.get(cell, "")) for cell in row[1:])]
        table.add_row(*cells)
    Console().print(table)


def _print_facts(facts: Mapping[str, object]) -> None:
    rows = [
        (visible(key.replace("_", " "), newlines=False), visible(_text(key, value)))
        for key, value in facts.items()
        if value is not None
    ]
    width = max(len(label) for label, _ in rows)
    if not sys.stdout.isatty():
        for label, value in rows:
            print(f"{label.ljust(width)}  {value}")
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    for label, value in rows:
        grid.add_row(Text(label, style="dim"), Text(value, overflow="fold"))
    Console().print(grid)


def _text(key: str, value: object) -> str:
    if key == "size" and isinstance(value, int):
        return f"{size_text(value)} ({value:,} bytes)"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        if key == "sha256":
            return "\n".join(f"{digest}  {name}" for name, digest in value.items())
        return ", ".join(f"{name} {_text('', count)}" for name, count in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"  # token ids, mostly
    return f"{value:,}" if isinstance(value, int) else str(value)
