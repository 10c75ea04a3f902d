"""What is known of a stored model: its name, where it came from, and what each of its files must be.

For the catalog these facts are in the code. For a repository of Hugging Face they are written beside the
model when it is pulled, as the last file of its folder: a folder without them is not a model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from glassloop.errors import RegistryError
from glassloop.model.registry.catalog import CATALOG, Kind

MANIFEST = "glassloop.json"


class FileFacts(NamedTuple):
    name: str
    size: int
    sha256: str


class Manifest(NamedTuple):
    name: str  # what a person types: owner/repo@revision:file
    kind: Kind
    commit: str
    licence: str
    main: str  # the .gguf file that the name stands for; "" where it is the whole folder
    files: tuple[FileFacts, ...]

    @property
    def source(self) -> str:
        if entry := CATALOG.get(self.name):
            return entry.source
        return f"Hugging Face: {self.name} at {self.commit[:12]}"

    def path(self, folder: Path) -> Path:
        return folder / self.main if self.main else folder

    def check_sizes(self, folder: Path) -> None:
        """Raises RegistryError for a file that is missing or has another size than it should."""
        for file in self.files:
            path = folder / file.name
            try:
                size = path.stat().st_size
            except FileNotFoundError:
                raise damaged(path, "is missing", self.name) from None
            if size != file.size:
                raise damaged(path, f"has {size:,} bytes, expected {file.size:,}", self.name)

    def write(self, folder: Path) -> None:
        facts = {**self._asdict(), "files": [file._asdict() for file in self.files]}
        (folder / MANIFEST).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def read_manifest(folder: Path) -> Manifest | None:
    """Returns the facts of the model in a folder of the cache; None if there is no whole model in it."""
    if entry := CATALOG.get(folder.name):
        if not (folder / entry.file.name).is_file():  # stored last
            return None
        facts = tuple(FileFacts(file.name, file.size, file.sha256) for file in entry.files)
        return Manifest(entry.name, entry.kind, "", entry.licence, entry.file.name, facts)
    path = folder / MANIFEST
    if not path.is_file():
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        files = tuple(FileFacts(**file) for file in values.pop("files"))
        return Manifest(**values, files=files)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise RegistryError(f"{path} is damaged ({error}); remove and pull the model again") from error


def damaged(path: Path, how: str, name: str) -> RegistryError:
    return RegistryError(
        f"{path} {how}: it was damaged after it was stored; "
        f"'glassloop models pull {name} --force' downloads it again"
    )
