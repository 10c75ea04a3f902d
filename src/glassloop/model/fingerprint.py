"""The fingerprint of a model: the SHA-256 of its files, by which a recorded run knows which model made it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from glassloop.errors import ModelError
from glassloop.model.registry import home
from glassloop.model.registry.catalog import CATALOG
from glassloop.model.registry.manifest import read_manifest
from glassloop.model.registry.store import sha256_of

_PARTS = ("*.safetensors", "config.json", "tokenizer*.json")


def fingerprint(path: Path) -> str:
    """Of a `.gguf` file, its SHA-256; of a folder, that of the list of its files with theirs."""
    known = _known(path.parent) | _known(path)
    try:
        if path.is_file():
            return known.get(path.name) or sha256_of(path)
        files = sorted({file for pattern in _PARTS for file in path.glob(pattern)})
        lines = [f"{known.get(file.name) or sha256_of(file)}  {file.name}\n" for file in files]
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}") from error
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _known(folder: Path) -> dict[str, str]:
    """What was pulled was checked then, and need not be read again for this."""
    if folder.parent != home() / "models":
        return {}
    entry = CATALOG.get(folder.name)
    if entry is not None:
        return {file.name: file.sha256 for file in entry.files}
    manifest = read_manifest(folder)
    return {} if manifest is None else {file.name: file.sha256 for file in manifest.files}
