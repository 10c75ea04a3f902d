"""Chooses the files of a Hugging Face repository that make the model: safetensors before GGUF, never pickles.

Pure functions of file names; `hub.py` downloads what they choose.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch

from glassloop.errors import RegistryError
from glassloop.model.registry.catalog import Kind
from glassloop.model.registry.manifest import MANIFEST
from glassloop.model.registry.names import HubName

_PART = re.compile(r"(?P<stem>.+)-\d{5}-of-(?P<count>\d{5})\.gguf")
_SHARD = re.compile(r"model-\d+-of-\d+\.safetensors")
# Pickles run code when they are loaded; the last two are weights of other frameworks.
_NEVER = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.pickle", "*.msgpack", "*.h5")
_WITH_WEIGHTS = ("*.json", "*.jinja", "*.tiktoken", "tokenizer.model", "merges.txt", "vocab.txt")
_LICENCES = ("LICENSE*", "LICENCE*", "NOTICE*")


@dataclass(frozen=True)
class Choice:
    """The files to download. `main` is the GGUF file if the name stands for one file."""

    kind: Kind
    files: tuple[str, ...]
    main: str = ""


def choose(name: HubName, files: Sequence[str]) -> Choice:
    """Returns the files that make the model; a repository that has none is a RegistryError."""
    files = [file for file in files if _is_plain(file)]
    top = sorted(file for file in files if "/" not in file and not file.startswith("."))
    licences = tuple(file for file in top if any(fnmatch(file.upper(), pattern) for pattern in _LICENCES))
    ggufs = sorted(file for file in files if file.endswith(".gguf"))
    if name.file is not None:
        if name.file not in ggufs:
            raise RegistryError(f"{name.repo_id} on Hugging Face has no file {name.file!r}{_listed(ggufs)}")
        return Choice("model", (*_not_weights(licences), *_parts(name, name.file, ggufs)), main=name.file)
    weights = _safetensors(top)
    beside = tuple(file for file in top if any(fnmatch(file, pattern) for pattern in _WITH_WEIGHTS))
    if weights:
        return Choice("model", _not_weights((*licences, *beside)) + weights)
    if ggufs and len(parts := _parts(name, ggufs[0], ggufs)) == len(ggufs):
        return Choice("model", (*_not_weights(licences), *parts), main=ggufs[0])
    if ggufs:
        raise RegistryError(
            f"{name.repo_id} on Hugging Face has {len(ggufs)} GGUF files; pick one as "
            f"{name.repo_id}:FILE{_listed(ggufs)}"
        )
    if pickles := [file for file in files if any(fnmatch(file.lower(), pattern) for pattern in _NEVER)]:
        raise RegistryError(
            f"{name.repo_id} on Hugging Face has its weights only in a form that glassloop never loads "
            f"({pickles[0]}); expected .safetensors or .gguf"
        )
    if any(file == "tokenizer.json" or file.endswith(".tiktoken") for file in top):
        return Choice("tokenizer", _not_weights((*licences, *beside)))
    raise RegistryError(f"{name.repo_id} on Hugging Face has no .safetensors, no .gguf and no tokenizer")


def _parts(name: HubName, file: str, ggufs: Sequence[str]) -> list[str]:
    """Returns all parts of a model in GGUF by the name of any. Raises if the repository lacks one."""
    match = _PART.fullmatch(file)
    if match is None:
        return [file]
    count = int(match["count"])
    parts = [f"{match['stem']}-{n:05d}-of-{count:05d}.gguf" for n in range(1, min(count, len(ggufs)) + 1)]
    if len(parts) < count or not {*parts} <= {*ggufs}:
        raise RegistryError(f"{name.repo_id} on Hugging Face does not have all {count} parts of {file!r}")
    return parts


def _is_plain(file: str) -> bool:
    """Tells whether this is a path inside the repository (a hub may send anything), without hidden folders,
    and not the name of our own manifest."""
    inside = all(part and not part.startswith(".") for part in file.split("/"))
    return inside and "\\" not in file and file != MANIFEST


def _safetensors(top: Sequence[str]) -> tuple[str, ...]:
    # Some repositories have the same weights twice (model.safetensors and consolidated.safetensors).
    if "model.safetensors" in top:
        return ("model.safetensors",)
    shards = tuple(file for file in top if _SHARD.fullmatch(file))
    return shards or tuple(file for file in top if file.endswith(".safetensors"))


def _not_weights(files: Sequence[str]) -> tuple[str, ...]:
    """Returns each file once, without those whose names end like weights (`LICENSE.bin`)."""
    endings = (*_NEVER, "*.gguf", "*.safetensors")
    kept = (file for file in files if not any(fnmatch(file.lower(), ending) for ending in endings))
    return tuple(dict.fromkeys(kept))


def _listed(files: Sequence[str], most: int = 12) -> str:
    if not files:
        return " (it has no .gguf file)"
    more = f", and {len(files) - most} more" if len(files) > most else ""
    return f": {', '.join(files[:most])}{more}"
