"""`glassloop models`: the models that can be pulled and those that are here, and commands that change them.

Every command prints tables on a terminal, plain columns into a pipe, and one JSON value with `--json`.
Progress and notices go to stderr, so that stdout can be read by other programs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glassloop.cli.help import App
from glassloop.cli.options import Json, Ops, complete_model
from glassloop.cli.terminal import print_json, print_result, print_table, progress_bar, visible, working
from glassloop.errors import GlassloopError, RegistryError
from glassloop.model import registry
from glassloop.model.registry.catalog import CatalogEntry
from glassloop.model.registry.store import size_text, tree_size
from glassloop.util.files import sha256_of

if TYPE_CHECKING:
    from glassloop.model.check import Finding

app = App(help="List, pull, check, convert and remove models.")


_STYLES = {"yes": "green", "no": "dim", "damaged": "bold red"}  # of cells in the list
_NAME_HELP = (
    "A name from 'glassloop models list', or on Hugging Face: owner/repo, owner/repo@revision or "
    "owner/repo:file.gguf."
)
Name = Annotated[
    str, typer.Argument(metavar="NAME", help=_NAME_HELP, autocompletion=complete_model, show_default=False)
]
NameOrPath = Annotated[
    str,
    typer.Argument(
        metavar="NAME_OR_PATH",
        help=_NAME_HELP + " Or a .gguf file or a folder with safetensors.",
        autocompletion=complete_model,
        show_default=False,
    ),
]


@app.command(name="list")
def list_models(as_json: Json = False) -> None:
    """List all known names and everything else in the cache."""
    here = {item.name: item for item in registry.installed()}
    not_pulled = [entry for entry in registry.CATALOG.values() if entry.name not in here]
    first = {name: place for place, name in enumerate(registry.CATALOG)}  # then the others, by name
    items: list[CatalogEntry | registry.Installed] = [*not_pulled, *here.values()]
    items.sort(key=lambda item: (first.get(item.name, len(first)), item.name))
    rows = [_row(item) for item in items]
    if as_json:
        print_json(rows)
        return
    header = ("name", "kind", "size", "pulled", "licence")
    cells = [
        (
            str(row["name"]),
            str(row["kind"]),
            size_text(float(str(row["size"]))),
            "damaged" if row["problem"] else "yes" if row["pulled"] else "no",
            str(row["licence"]),
        )
        for row in rows
    ]
    print_table(header, cells, right=("size",), fold=("licence",), styles=_STYLES)
    for row in rows:
        if row["problem"]:
            problem = visible(f"{row['name']}: {row['problem']}", newlines=False)
            print(f"glassloop: {problem}", file=sys.stderr)


@app.command()
def pull(
    name: Name,
    force: Annotated[
        bool, typer.Option("--force", help="Download it again if it is already in the cache.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Download a model or tokenizer into the cache and print its path."""
    path = registry.pull(name, force=force)
    print_result({"name": name, "path": str(path), "size": _size(path)}, path, as_json)


@app.command()
def show(
    name: NameOrPath,
    verify: Annotated[bool, typer.Option("--verify", help="Check the SHA-256 of every file.")] = False,
    as_json: Json = False,
) -> None:
    """Show where a model is, where it comes from, and which files it has."""
    with working("verifying" if verify else "reading"):
        facts = _facts(name, verify)
    if as_json:
        print_json(facts)
    else:
        _print_facts(facts)


@app.command()
def check(name: NameOrPath, ops: Ops = None, as_json: Json = False) -> None:
    """Check that a model can be used here: its files, tokenizer and template, every weight, one step.

    It also says which types the tensors have and how much memory the weights take. The exit code is 0 if the
    model can be used, and 2 if not; one line on stderr says why, and what can be used instead.
    """
    from glassloop.model.check import check_model

    source = registry.find(name)
    if source is None:
        raise RegistryError(f"{name!r} is not in the cache; 'glassloop models pull {name}' downloads it")
    findings = check_model(source, ops)
    results: dict[str, object] = {}
    try:
        while finding := _next(findings):
            results[finding.what] = finding.found
            if not as_json:
                print(visible(f"{finding.what:<9}  {finding.found}", newlines=False), flush=True)
    except GlassloopError as error:
        if as_json:
            print_json({"path": str(source), "usable": False, **results, "problem": str(error)})
        raise
    if as_json:
        print_json({"path": str(source), "usable": True, **results})


def _next(findings: Iterator[Finding]) -> Finding | None:
    with working("checking"):
        return next(findings, None)


_CONVERTED = "q8_0, q6_k, q5_k, q4_k, q4_0, q4_1, iq4_nl, mxfp4, f16, bf16 or f32"


@app.command()
def convert(
    name: NameOrPath,
    out: Annotated[
        Path,
        typer.Argument(metavar="OUT.gguf", help="The file to write; it must not exist.", show_default=False),
    ],
    weights: Annotated[
        str, typer.Option("--weights", metavar="FORMAT", help=f"The format of the matrices: {_CONVERTED}.")
    ] = "q4_k",
    as_json: Json = False,
) -> None:
    """Write any model as a GGUF file with quantized weights, and print the error of each matrix.

    The embedding and the head get more bits than the other matrices. The file appears when it is complete,
    and is read back.
    """
    from glassloop.train.quantize_file import convert as write

    with progress_bar("converting") as advance:
        reports = write(name, out, weights, advance)
    size = out.stat().st_size
    if as_json:
        print_json({"path": str(out), "size": size, "tensors": [each._asdict() for each in reports]})
        return
    cells = [
        (each.name, each.format, f"{each.error:.2%}", f"{each.largest:.2g}", size_text(each.size))
        for each in reports
        if len(each.shape) == 2
    ]
    print_table(("matrix", "format", "error", "largest", "size"), cells, right=("error", "largest", "size"))
    print(f"{out}: {size_text(size)}, {len(reports)} tensors, read back")


@app.command()
def path(name: NameOrPath, as_json: Json = False) -> None:
    """Print the path of a model that is already in the cache, or on disk. Never downloads."""
    location = registry.find(name)
    if location is None:
        raise RegistryError(f"{name!r} is not in the cache; 'glassloop models pull {name}' downloads it")
    print_result({"name": name, "path": str(location)}, location, as_json)


@app.command()
def rm(name: Name, as_json: Json = False) -> None:
    """Remove a model or tokenizer from the cache."""
    freed = registry.remove(name)
    print_result({"name": name, "freed": freed}, f"removed {name}, {size_text(freed)} freed", as_json)


def _row(item: CatalogEntry | registry.Installed) -> dict[str, object]:
    """Returns what the list and `show` print of a model that can be pulled or is here, in order."""
    here = item if isinstance(item, registry.Installed) else None
    return {
        "name": item.name,
        "kind": item.kind,
        "size": here.size if here else sum(file.size for file in item.files),
        "pulled": here is not None,
        "path": str(here.path) if here else None,
        "licence": item.licence,
        "source": item.source,
        "problem": (here.problem or None) if here else None,
    }


def _facts(name: str, verify: bool) -> dict[str, object]:
    """Returns what `show` prints, in order: facts from the registry, then from the files of the model."""
    source = registry.resolve(name)
    if isinstance(source, Path):
        facts: dict[str, object] = {"path": str(source.absolute()), "size": _size(source)}
        if verify and source.is_file():
            facts["sha256"] = sha256_of(source)
        return facts | _describe(source)
    stored = registry.verify(name) if verify else registry.stored(name)
    item = source if stored is None and isinstance(source, CatalogEntry) else stored
    if item is None:
        raise RegistryError(f"{name!r} is not in the cache; 'glassloop models pull {name}' downloads it")
    if stored is not None and stored.problem:
        raise RegistryError(stored.problem)
    row = _row(item)
    facts = {key: row[key] for key in ("name", "kind", "pulled", "path", "size", "source", "licence")}
    facts["sha256"] = {file.name: file.sha256 for file in item.files}
    if verify and stored:
        facts["verified"] = True
    return facts | (_describe(stored.path) if stored and stored.kind == "model" else {})


def _describe(path: Path) -> dict[str, object]:
    if path.suffix not in (".gguf", ".safetensors") and not (path / "config.json").is_file():
        return {}
    from glassloop.model.loader import describe

    return describe(path)


def _size(path: Path) -> int:
    return tree_size(path) if path.is_dir() else path.stat().st_size


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
