"""Opens a model in GGUF, in one file or in several: `name-00001-of-00003.gguf` and so on.

The first part has the metadata of the model. Every part says which one it is, of how many, and how many
tensors there are in all, so that a missing part or one of another model is found before anything is used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from glassloop.errors import ModelError
from glassloop.model.gguf import GGUFFile, GGUFHeader
from glassloop.ops.tensor import Tensor
from glassloop.util.files import in_parallel
from glassloop.util.shown import printable, shown

_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_MOST_PARTS = 4096
_NUMBER, _COUNT, _TENSORS = "split.no", "split.count", "split.tensors.count"


class GGUF(NamedTuple):
    """A model in GGUF: the metadata of its first part, and the tensors of all parts."""

    metadata: Mapping[str, Any]
    tensors: dict[str, Tensor]
    parts: int


def part_paths(path: Path) -> list[Path]:
    """Returns the paths of all parts of a model, by the name of any of them. Raises if one is missing."""
    name = _NAME.fullmatch(path.name)
    if name is None:
        return [path]
    count = int(name["count"])
    if not 0 < int(name["number"]) <= count <= _MOST_PARTS:
        raise ModelError(
            f"{path}: its name says part {int(name['number'])} of {count}; a part from 1 to {count} of"
            f" at most {_MOST_PARTS} is expected"
        )
    parts = [path.with_name(f"{name['stem']}-{n:05d}-of-{count:05d}.gguf") for n in range(1, count + 1)]
    missing = [part.name for part in parts if not part.is_file()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ModelError(
            f"{path}: {printable(missing[0])}{more} of its {count} parts {'are' if more else 'is'} missing;"
            " all of them are expected in one folder"
        )
    return parts


def gguf_headers(path: Path) -> list[GGUFHeader]:
    """Returns the headers of all parts of a model, the first part first."""
    return _checked(in_parallel(GGUFHeader, part_paths(path)))


def open_gguf(path: Path) -> GGUF:
    """Returns a model by the path of its file, or of any of its parts."""
    files = in_parallel(GGUFFile, part_paths(path))
    _checked(files)
    tensors: dict[str, Tensor] = {}
    for file in files:
        for name, tensor in file.tensors.items():
            if name in tensors:
                raise ModelError(f"{file.path}: {printable(name)} is in another part too")
            tensors[name] = tensor
    return GGUF(files[0].metadata, tensors, len(files))


def _checked(files: list[GGUFHeader] | list[GGUFFile]) -> list[Any]:
    """Returns the parts of one model. Raises unless each is what its name says."""
    count = files[0].metadata.get(_COUNT, 0)
    if len(files) == 1 and count in (0, 1):
        return files
    if len(files) == 1:
        raise ModelError(
            f"{files[0].path}: {_COUNT} is {shown(count)}: one of several parts, but its name does not say"
            f" which; a name like NAME-00001-of-{count if type(count) is int else 2:05d}.gguf is expected"
        )
    tensors = sum(len(file.infos) for file in files)
    for number, file in enumerate(files):
        for key, expected in ((_COUNT, len(files)), (_NUMBER, number), (_TENSORS, tensors)):
            value = file.metadata.get(key)
            if value != expected or type(value) is not int:
                raise ModelError(
                    f"{file.path}: {key} is {shown(value)} where {expected} is expected; is this a part of"
                    " another file?"
                )
    return files
