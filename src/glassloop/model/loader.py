"""Loads a model and its tokenizer: finds the files, reads config and weights, checks that they fit each
other, and hands the weights to an op set.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

from glassloop.errors import ModelError
from glassloop.model.drafter import DrafterFile, find_drafter
from glassloop.model.generation import Setting, settings_from_gguf, settings_from_json
from glassloop.model.gguf import GGUFFile
from glassloop.model.registry import fetch
from glassloop.model.transformer import Transformer
from glassloop.ops.drafting import DraftOps
from glassloop.ops.protocol import Ops
from glassloop.ops.quant import FORMATS
from glassloop.ops.tensor import Tensor
from glassloop.text.tokenizer import Tokenizer

WEIGHT_FORMATS = {"q8": "Q8_0", "q4": "Q4_1", "f32": "F32"}
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")


class ModelFiles:
    """The opened files of one model: config and tensors are checked, nothing is computed or copied yet."""

    def __init__(self, path: Path) -> None:
        self.path = path = _model_path(path)
        self.metadata: Mapping[str, Any] = {}
        self.settings: dict[str, Setting]  # for sampling, as the files have them
        # A process rarely reads both formats, so only the reader that is needed is imported.
        if path.is_dir():
            from glassloop.model.config_hf import config_from_json
            from glassloop.model.safetensors import read_folder, read_json
            from glassloop.model.weights import weights_from_safetensors

            config_file = path / "config.json"
            family, self.config = config_from_json(str(config_file), read_json(config_file))
            self.tensors = read_folder(path)
            self.weights = weights_from_safetensors(str(path), family, self.config, self.tensors)
            generation = path / "generation_config.json"
            self.settings = settings_from_json(read_json(generation) if generation.exists() else {})
        else:
            from glassloop.model.config_gguf import config_from_gguf
            from glassloop.model.weights import weights_from_gguf

            file = GGUFFile(path)
            self.metadata, self.tensors = file.metadata, file.tensors
            family, self.config = config_from_gguf(str(path), self.metadata, self.tensors)
            self.weights = weights_from_gguf(str(path), family, self.config, self.tensors)
            self.settings = settings_from_gguf(self.metadata)

    def tokenizer(self) -> Tokenizer:
        """Returns the model's tokenizer. It has no token that the embedding has no row for."""
        rows = self.config.vocab_size
        if self.path.is_dir():
            tokenizer = Tokenizer.from_json_folder(self.path, rows)
        else:
            tokenizer = Tokenizer.from_gguf(self.metadata, str(self.path))
        if tokenizer.vocab_size > rows:
            raise ModelError(
                f"{self.path}: the tokenizer has {tokenizer.vocab_size} tokens; the model has {rows}"
            )
        return tokenizer

    def transformer(
        self, ops: Ops, weights: str | None = None, drafts: bool | DrafterFile = False
    ) -> Transformer:
        """Returns the model on an op set, its matrices as stored or as `weights` says (q8, q4, f32); with
        `drafts`, together with its drafter, if the package has one and the op set can run it, or with the
        given one."""
        tensors = _Requantized(self.weights, weights) if weights else self.weights
        if drafts is True:
            found = find_drafter(self.config, self.weights) if isinstance(ops, DraftOps) else None
        else:
            found = drafts or None
        return Transformer(self.config, tensors, ops, found)

    def load(
        self, ops: Ops, weights: str | None = None, drafts: bool | DrafterFile = False
    ) -> tuple[Transformer, Tokenizer]:
        """Returns the model, as `transformer` does, and its tokenizer. Python reads the vocabulary while C
        packs the weights."""
        read: list[Tokenizer] = []

        def read_tokenizer() -> None:
            with suppress(Exception):  # which is raised below
                read.append(self.tokenizer())

        # `concurrent.futures` does the same but takes longer to import.
        thread = Thread(target=read_tokenizer)
        thread.start()
        try:
            transformer = self.transformer(ops, weights, drafts)
        finally:
            thread.join()
        return transformer, read[0] if read else self.tokenizer()


class _Requantized(dict[str, Tensor]):
    """Weights whose matrices are converted to another format, one at a time, when they are read."""

    def __init__(self, weights: Mapping[str, Tensor], name: str) -> None:
        super().__init__(weights)
        if name not in WEIGHT_FORMATS:
            raise ModelError(f"weights is {name!r}; one of {', '.join(WEIGHT_FORMATS)} is expected")
        self._format = FORMATS[WEIGHT_FORMATS[name]]

    def __getitem__(self, name: str) -> Tensor:
        tensor = super().__getitem__(name)
        fits = len(tensor.shape) == 2 and tensor.shape[1] % self._format.block_values == 0
        return tensor.stored_as(self._format) if fits else tensor


def _model_path(path: Path) -> Path:
    """Returns the .gguf file, or the folder of safetensors and their config."""
    if path.suffix in _PICKLES:
        raise ModelError(
            f"{path}: is a pickle, which can run code when it is opened; use safetensors or GGUF"
        )
    if path.name == "config.json" or path.suffix == ".safetensors":
        return path.parent
    return path


def load_tokenizer(name: str) -> Tokenizer:
    """Returns a tokenizer by the name or path of a model or tokenizer (.gguf, folder, .json, ranks)."""
    path = fetch(name)
    if path.is_dir() or path.suffix == ".json":
        return Tokenizer.from_json_folder(path if path.is_dir() else path.parent)
    if path.suffix == ".tiktoken":
        return Tokenizer.from_tiktoken(path, path.stem)
    return Tokenizer.from_gguf(GGUFFile(path).metadata, str(path))


def describe(path: Path) -> dict[str, object]:
    """Returns the facts that `glassloop models show` prints of a model."""
    files = ModelFiles(path)
    config = files.config
    types = Counter(tensor.format.name for tensor in files.tensors.values())
    windows = sorted({window for layer in config.layers if (window := layer.mixer.window) is not None})
    tokenizer = files.tokenizer()
    return {
        "family": config.family,
        "title": files.metadata.get("general.name"),
        "parameters": sum(tensor.size for tensor in files.weights.values()),
        "layers": len(config.layers),
        "dim": config.dim,
        "feed_forward_dim": config.ffn_dim,
        "heads": config.heads,
        "kv_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "context": config.context,
        "sliding_windows": windows,
        "vocabulary": config.vocab_size,
        "tied_head": config.tied,
        "tensor_types": dict(types.most_common()),
        "eos_ids": list(tokenizer.eos_ids),
        "adds_bos": tokenizer.add_bos,
        "chat_template": tokenizer.chat_template is not None,
    }
