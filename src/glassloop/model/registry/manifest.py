"""What is written beside a model from Hugging Face: where it came from, and what each of its files must be.

For the catalog the same facts are in the code; a repository's are only known when it is pulled. The manifest
is the last file of a folder to be written, and a folder without one is not a model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from glassloop.errors import RegistryError
from glassloop.model.registry.catalog import Kind

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

    def write(self, folder: Path) -> None:
        facts = {**self._asdict(), "files": [file._asdict() for file in self.files]}
        (folder / MANIFEST).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")

    def path(self, folder: Path) -> Path:
        return folder / self.main if self.main else folder


def read_manifest(folder: Path) -> Manifest | None:
    """None where there is none; an error where it cannot be understood."""
    path = folder / MANIFEST
    if not path.is_file():
        return None
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        files = tuple(FileFacts(**file) for file in facts.pop("files"))
        return Manifest(**facts, files=files)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise RegistryError(f"{path} is damaged ({error}); remove and pull the model again") from error
