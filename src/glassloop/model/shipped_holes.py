"""The adapters for masked rows that come with the package, one file for each model that has one."""

from __future__ import annotations

from pathlib import Path

from glassloop.model.registry import CATALOG

FOLDER = Path(__file__).parent / "holes"


def shipped_holes(model: str) -> Path | None:
    """Returns the file of the adapter for a model of the catalogue, or None if there is none."""
    file = FOLDER / f"{model}.safetensors"
    return file if model in CATALOG and file.is_file() else None
