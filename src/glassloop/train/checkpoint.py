"""Checkpoints: all that a run needs to go on as if it had never stopped.

A checkpoint is a safetensors file with the parameters and AdamW's two moments of each; its metadata has the
step, the place in the data, and what the run is (config, data, model), so that a checkpoint of another run is
refused. It is written under another name and renamed when it is on the disk: there is always a whole one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from glassloop.errors import GlassloopError, ModelError
from glassloop.model.safetensors import read_file
from glassloop.ops.quant import Float32
from glassloop.ops.tensor import Tensor
from glassloop.train.config import TrainError
from glassloop.train.write_safetensors import write_safetensors
from glassloop.util.fields import json_object

_MARK, _VERSION = "glassloop checkpoint", "1"
_PATTERN = "step-*.safetensors"
PARTS = ("weight", "first", "second")  # the parameter and AdamW's two moments


@dataclass(frozen=True)
class State:
    """Where a run stands, besides its arrays."""

    step: int  # steps that are done
    epoch: int  # the next sequence: its epoch and its place there
    place: int
    tokens: int  # that the loss has counted
    seconds: float
    best: float | None = None  # the best validation loss
    worse: int = 0  # validations since then


Arrays = Mapping[str, Float32]  # "weight:layers.0.q.weight" → values


def save_checkpoint(folder: Path, state: State, arrays: Arrays, identity: Mapping[str, str]) -> Path:
    """Writes a checkpoint. `identity` says what run it belongs to."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{state.step:08}.safetensors"
    metadata = {
        "format": _MARK,
        "version": _VERSION,
        "state": json.dumps(asdict(state)),
        "run": json.dumps(dict(identity)),
    }
    write_safetensors(path, [Tensor.of(name, values) for name, values in arrays.items()], metadata)
    return path


def read_checkpoint(path: Path, identity: Mapping[str, str]) -> tuple[State, dict[str, Float32]]:
    """Returns a checkpoint. Raises a TrainError if it is damaged or belongs to another run."""
    try:
        tensors = read_file(path)
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json_object(file.read(size), f"{path}: header", ModelError)
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except (ModelError, OSError) as error:
        raise TrainError(f"{path}: is not a whole checkpoint: {error}") from None
    metadata = header.get("__metadata__")
    if not isinstance(metadata, dict) or metadata.get("format") != _MARK:
        raise TrainError(f"{path}: is not a checkpoint of a training run")
    if metadata.get("version") != _VERSION:
        raise TrainError(f"{path}: has version {metadata.get('version')!r}; {_VERSION!r} is expected")
    if metadata.get("sha256") != digest:
        raise TrainError(f"{path}: is damaged: its bytes do not have the SHA-256 that it names")
    try:
        written = json.loads(metadata["run"])
        state = State(**json.loads(metadata["state"]))
    except (KeyError, TypeError, ValueError) as error:
        raise TrainError(f"{path}: is damaged: its state cannot be read ({error})") from None
    for name, value in identity.items():
        if written.get(name) != value:
            raise TrainError(f"{path}: belongs to another run: its {name} is not the same")
    return state, {name: tensor.float32() for name, tensor in tensors.items()}


def newest_checkpoint(
    folder: Path, identity: Mapping[str, str]
) -> tuple[tuple[State, dict[str, Float32]] | None, list[str]]:
    """Returns the newest whole checkpoint, or None if there is none at all, and a line for each damaged one.
    Raises if all are damaged, or if one belongs to another run."""
    problems: list[str] = []
    paths = sorted(folder.glob(_PATTERN), reverse=True)
    for path in paths:
        try:
            return read_checkpoint(path, identity), problems
        except TrainError as error:
            if "another run" in str(error):
                raise
            problems.append(str(error))
    if problems:
        raise TrainError("; ".join(problems))
    return None, []


def drop_old_checkpoints(folder: Path, keep: int) -> None:
    for path in sorted(folder.glob(_PATTERN))[:-keep]:
        path.unlink(missing_ok=True)
    for path in folder.glob("*.part"):
        path.unlink(missing_ok=True)


def check_shapes(path: Path, arrays: Arrays, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raises unless the arrays are those that the run has, each with its shape."""
    present_shapes = {name: values.shape for name, values in arrays.items()}
    wanted = {f"{part}:{name}": shape for name, shape in shapes.items() for part in PARTS}
    for name in present_shapes.keys() | wanted.keys():
        if present_shapes.get(name) != wanted.get(name):
            raise TrainError(
                f"{path}: {name} has shape {present_shapes.get(name)}; the run has {wanted.get(name)}"
            )
    if not all(np.isfinite(values).all() for values in arrays.values()):
        raise GlassloopError(f"{path}: has values that are not finite")
