"""Looks at any model file or folder without using it: what it is, and which types its tensors have.

`glassloop models check` and `models show` print it. A file that is damaged is a `ModelError`; one that is
sound but not supported is described.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from glassloop.model.families import FAMILY_BY_TYPE
from glassloop.model.unsupported import GGUF_TYPES
from glassloop.util.shown import shown


class Survey(NamedTuple):
    """What a model's files say of themselves."""

    format: str  # "GGUF", "safetensors"
    files: int  # that hold weights
    family: str  # as people call it, or the file's own name for it in quotes
    types: dict[str, int]  # tensors of each stored type
    parameters: int

    @property
    def line(self) -> str:
        """Format, files and types in one line."""
        kinds = ", ".join(f"{name} {count}" for name, count in self.types.items())
        files = f" in {self.files} files" if self.files > 1 else ""
        return f"{self.format}{files}, {sum(self.types.values())} tensors ({kinds})"


def survey(path: Path) -> Survey:
    """Returns what the headers of a model's files say. Reads no weights."""
    return _safetensors(path) if path.is_dir() else _gguf(path)


def _gguf(path: Path) -> Survey:
    from glassloop.model.gguf_parts import gguf_headers

    headers = gguf_headers(path)
    infos = [info for header in headers for info in header.infos]
    types = Counter(GGUF_TYPES.get(info.type_id, f"type {info.type_id}") for info in infos)
    family = _family(headers[0].metadata.get("general.architecture"))
    return _survey("GGUF", len(headers), family, types, (info.shape for info in infos))


def _safetensors(folder: Path) -> Survey:
    from glassloop.model.safetensors import read_entries, read_json

    config = read_json(folder / "config.json")
    text_config = config.get("text_config")
    values = {**config, **text_config} if isinstance(text_config, dict) else config
    shards = read_entries(folder)
    entries = [entry for shard in shards for entry in shard.entries.values()]
    types = Counter(entry.kind for entry in entries)
    shapes = (entry.shape for entry in entries)
    return _survey("safetensors", len(shards), _family(values.get("model_type")), types, shapes)


def _survey(
    format: str, files: int, family: str, types: Counter[str], shapes: Iterable[tuple[int, ...]]
) -> Survey:
    return Survey(format, files, family, dict(types.most_common()), sum(map(prod, shapes)))


def _family(value: Any) -> str:
    family = FAMILY_BY_TYPE.get(value) if isinstance(value, str) else None
    return shown(value) if family is None else family.title or family.name
