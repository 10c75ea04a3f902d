"""The fingerprint of a model, the SHA-256 of its files: it says which model a recorded run was made with."""

from __future__ import annotations

import hashlib
from pathlib import Path

from glassloop.errors import ModelError
from glassloop.model.gguf_parts import part_paths
from glassloop.model.registry import home
from glassloop.model.registry.manifest import read_manifest
from glassloop.util.files import sha256_of

_PARTS = ("*.safetensors", "config.json", "tokenizer*.json")


def fingerprint(path: Path) -> str:
    """Returns the SHA-256 of a `.gguf` file, or of the list of a model's files with theirs."""
    checksums = _checked_when_pulled(path)
    try:
        parts = part_paths(path) if path.is_file() else []
        if len(parts) == 1:
            return checksums.get(path) or sha256_of(path)
        files = parts or sorted({file for pattern in _PARTS for file in path.glob(pattern)})
        if not files:
            raise ModelError(f"cannot read {path}: the files of the model are not there any more")
        lines = [f"{checksums.get(file) or sha256_of(file)}  {file.name}\n" for file in files]
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}") from error
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _checked_when_pulled(path: Path) -> dict[Path, str]:
    """Returns the SHA-256 of files that were pulled: they were checked then, and need not be read again."""
    models = home() / "models"
    if path == models or not path.is_relative_to(models):
        return {}
    folder = models / path.relative_to(models).parts[0]
    manifest = read_manifest(folder)
    return {} if manifest is None else {folder / file.name: file.sha256 for file in manifest.files}
