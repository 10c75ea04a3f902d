"""The folder of a training run: where its files are, and a lock so that only one process trains in it.

config.toml         all settings, as they were resolved
environment.json    the machine and the versions of libraries
data.json           what the data is: files, counts, SHA-256
tokenizer/ tokens/ validation/   what was made from the data
curves.jsonl curves.svg          loss, learning rate, validation and samples by step
checkpoints/        the last ones; best.safetensors has the weights of the best validation
model/ or adapter/  the result
result.json         the last losses, and the SHA-256 of the result
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from glassloop.train.config import TrainConfig, TrainError, config_text, make_config, read_config
from glassloop.util.files import write_text


class RunFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.toml"
        self.checkpoints = path / "checkpoints"
        self.best = path / "checkpoints" / "best.safetensors"
        self.curves = path / "curves.jsonl"
        self.picture = path / "curves.svg"
        self.model = path / "model"
        self.adapter = path / "adapter"
        self.result_file = path / "result.json"

    @property
    def result(self) -> dict[str, Any] | None:
        """What the run ended with; None if it has not ended."""
        if not self.result_file.exists():
            return None
        result: dict[str, Any] = json.loads(self.result_file.read_text(encoding="utf-8"))
        return result

    @property
    def has_begun(self) -> bool:
        """Whether there is a checkpoint to go on from."""
        return any(self.checkpoints.glob("step-*"))

    def create(self, config: TrainConfig) -> None:
        """Makes the folder for a new run. Raises if there is a run in it already."""
        if self.has_begun:
            raise TrainError(
                f"{self.path}: has a run already; go on with it (resume {self.path}) or give another folder"
            )
        if self.config_file.exists():  # of a run that never began: its data may have been wrong
            for name in ("tokenizer", "tokens", "validation"):
                shutil.rmtree(self.path / name, ignore_errors=True)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TrainError(f"cannot make {self.path}: {error.strerror or error}") from None
        write_text(self.config_file, config_text(config))

    def read_config(self) -> TrainConfig:
        if not self.config_file.exists():
            raise TrainError(f"{self.path}: has no config.toml; the folder of a run is expected")
        return make_config(str(self.config_file), read_config(self.config_file))

    @property
    def config_hash(self) -> str:
        """The hash of the settings in the file. Settings that are not in it, since it was written before they
        existed, do not count."""
        values = json.dumps(read_config(self.config_file), sort_keys=True)
        return hashlib.sha256(values.encode()).hexdigest()

    def write_json(self, name: str, values: Any) -> None:
        part = self.path / f"{name}.part"
        write_text(part, json.dumps(values, indent=1) + "\n")
        part.replace(self.path / name)

    def check_finite(self, step: int, loss: float, norm: float) -> None:
        """Raises a TrainError that says what is kept, unless a step's loss and gradient are finite."""
        if not math.isfinite(loss) or not math.isfinite(norm):
            raise TrainError(
                f"step {step}: the loss is {loss} and the norm of the gradient {norm}; the last checkpoint is"
                f" kept in {self.checkpoints} (a lower --lr may help)"
            )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the folder for this process. The system releases it when the process ends, however it
        does."""
        try:
            import fcntl
        except ImportError:  # on Windows, where nothing keeps two runs apart
            yield
            return
        handle = os.open(self.path / "lock", os.O_CREAT | os.O_RDWR, 0o644)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise TrainError(f"{self.path}: another process trains in this folder") from None
            yield
        finally:
            os.close(handle)
