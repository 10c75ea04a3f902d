"""What a name stands for: an entry of the catalog, a repository on Hugging Face, or a path on this machine.

Nothing here uses the network.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from glassloop.errors import RegistryError
from glassloop.model.registry.catalog import CATALOG, CatalogEntry

_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?"
_HUB_NAME = rf"(?:hf:)?(?P<owner>{_PART})/(?P<repo>{_PART})(?:@(?P<revision>[^\s:@]+))?(?::(?P<file>[^:]+))?"


class HubName(NamedTuple):
    """`owner/repo`, with a revision and a file if they were given."""

    owner: str
    repo: str
    revision: str | None = None
    file: str | None = None

    @property
    def repo_id(self) -> str:
        return f"{self.owner}/{self.repo}"

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return self.repo_id + revision + (f":{self.file}" if self.file else "")


Source = CatalogEntry | HubName | Path


def resolve(name: str) -> Source:
    """Returns what a name stands for. The catalog comes before a file of the same name (write `./name` for
    the file), and a path that exists before the hub (write `hf:owner/repo` for the hub)."""
    if name in CATALOG:
        return CATALOG[name]
    path = Path(name).expanduser() if name.startswith("~/") else Path(name)
    if name and _exists(path):
        return path
    if not name or not name.isprintable():
        raise RegistryError(f"a model's name must be printable text, not {name!r}")
    match = re.fullmatch(_HUB_NAME, name)
    # `models/x.gguf` is a mistyped path; no repository that could be loaded has such a name.
    if match and (name.startswith("hf:") or match["file"] or not match["repo"].endswith(".gguf")):
        return _hub_name(match, name)
    if name.startswith("hf:"):
        raise RegistryError(
            f"{name!r} is not of the form hf:owner/repo, hf:owner/repo@revision or hf:owner/repo:file.gguf"
        )
    if name.startswith((".", "~")) or "/" in name or "\\" in name or name.endswith((".gguf", ".tiktoken")):
        raise RegistryError(f"no such file or folder: {name!r}")
    raise RegistryError(_unknown(name))


def slug(source: CatalogEntry | HubName) -> str:
    """Returns the folder of a source below `models/`: one plain name, different for every source.

    A hub name's has `--`, which neither a catalog name nor a part of a hub name may have.
    """
    if isinstance(source, CatalogEntry):
        return source.name
    revision = f"@{quote(source.revision, safe='')}" if source.revision else ""
    return f"{source.owner}--{source.repo}{revision}" + (
        f"+{quote(source.file, safe='')}" if source.file else ""
    )


def _hub_name(match: re.Match[str], name: str) -> HubName:
    owner, repo, revision, file = match.group("owner", "repo", "revision", "file")
    for part in (owner, repo):
        if "--" in part or ".." in part or part.endswith(".git"):
            raise RegistryError(
                f"{name!r} cannot be a Hugging Face repository: {part!r} is not allowed there"
            )
    if file is not None and not file.endswith(".gguf"):
        raise RegistryError(
            f"{name!r} asks for the file {file!r}; only a .gguf file can be picked from a repository"
        )
    if file is not None and (file.startswith("/") or "\\" in file or ".." in file.split("/")):
        raise RegistryError(f"{name!r} asks for the file {file!r}, which is not a path inside a repository")
    return HubName(owner, repo, revision, file)


def _unknown(name: str) -> str:
    from difflib import get_close_matches

    short = name.lower()[:100]
    begun = [each for each in CATALOG if short and each.startswith(short)]
    close = begun or get_close_matches(short, CATALOG, n=1)
    hint = f"did you mean {close[0]!r}?" if close else "expected a known name, owner/repo, a file or a folder"
    return f"unknown model {name!r}; {hint} ('glassloop models list' shows all)"


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name too long, a folder that may not be read, a NUL
        return False
