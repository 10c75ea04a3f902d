"""Loads a model and its tokenizer: finds the files, reads config and weights, checks that they fit each
other, and hands the weights to an op set.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from glassloop.errors import GlassloopError, ModelError
from glassloop.model.cache_groups import cache_plan
from glassloop.model.config import UNROUNDED
from glassloop.model.drafter import DrafterFile, find_drafter
from glassloop.model.gguf_parts import gguf_headers, open_gguf
from glassloop.model.registry import fetch
from glassloop.model.sampling_defaults import Setting, settings_from_gguf, settings_from_json
from glassloop.model.survey import survey
from glassloop.model.transformer import Transformer
from glassloop.model.unsupported import PICKLES, pickle_only
from glassloop.ops.batch import pages_for
from glassloop.ops.drafting import DraftOps
from glassloop.ops.memory import check_room
from glassloop.ops.protocol import Ops
from glassloop.ops.quant import FORMATS, Format
from glassloop.ops.tensor import Tensor
from glassloop.ops.weight_memory import memory_line, weight_bytes
from glassloop.text.tokenizer import Tokenizer
from glassloop.util.shown import printable

WEIGHT_FORMATS = {"q8": "Q8_0", "q4": "Q4_1", "f32": "F32"}


# The tokenizers that are in use, by their files.
_TOKENIZERS: WeakValueDictionary[tuple[object, ...], Tokenizer] = WeakValueDictionary()


def _identity(path: Path) -> list[object]:
    """Returns what differs if a tokenizer's files are others, or have changed."""
    try:
        facts = [(name, name.stat()) for name in (sorted(path.iterdir()) if path.is_dir() else [path])]
    except OSError:  # something changes right now
        return [object()]
    return [(str(name), stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in facts]


class ModelMemory(NamedTuple):
    """What a model takes of an op set's memory."""

    weights: int  # bytes
    page: int  # bytes of the keys and values of one page of tokens

    def cache(self, tokens: int) -> int:
        """Returns the bytes of the keys and values of this many tokens, if each is kept."""
        return self.page * pages_for(tokens)


class ModelFiles:
    """The opened files of one model: config and tensors are checked, nothing is computed or copied yet."""

    def __init__(self, path: Path) -> None:
        self.path = path = model_path(path)
        self.metadata: Mapping[str, Any] = {}
        self.settings: dict[str, Setting]  # for sampling, as the files have them
        # What became of weights that are stored in a form that no op set has: in words, and the formats. And
        # what of a model with more than text was left out.
        self.notes: tuple[str, ...] = ()
        self.left_out: tuple[str, ...] = ()
        self.formats: tuple[str, ...] = ()
        # A process rarely reads both formats, so only the reader that is needed is imported.
        if path.is_dir():
            from glassloop.model.config_hf import config_from_json
            from glassloop.model.quantized import read_weights
            from glassloop.model.safetensors import read_json
            from glassloop.model.weight_names import left_out, weights_from_safetensors

            config_file = path / "config.json"
            stated = read_json(config_file)
            family, self.config = config_from_json(str(config_file), stated)
            self.tensors, self.notes, self.formats = read_weights(path, stated)
            self.left_out = left_out(self.tensors)
            self.notes += self.left_out
            self.weights = weights_from_safetensors(str(path), family, self.config, self.tensors)
            generation = path / "generation_config.json"
            self.settings = settings_from_json(read_json(generation) if generation.exists() else {})
        else:
            from glassloop.model.config_gguf import config_from_gguf
            from glassloop.model.weight_names import weights_from_gguf

            self.metadata, self.tensors, _ = open_gguf(path)
            family, self.config = config_from_gguf(str(path), self.metadata, self.tensors)
            self.weights = weights_from_gguf(str(path), family, self.config, self.tensors)
            self.settings = settings_from_gguf(self.metadata)

    def tokenizer(self) -> Tokenizer:
        """Returns the model's tokenizer. It has no token that the embedding has no row for. Runs keep theirs;
        a model that is loaded again shares it, as it may be larger than the runs."""
        rows = self.config.vocab_size
        key = (rows, *_identity(self.path))
        tokenizer = _TOKENIZERS.get(key)
        if tokenizer is None:
            tokenizer = _TOKENIZERS[key] = self._read_tokenizer(rows)
        return tokenizer

    def _read_tokenizer(self, rows: int) -> Tokenizer:
        if self.path.is_dir():
            tokenizer = Tokenizer.from_json_folder(self.path, rows)
        else:
            tokenizer = Tokenizer.from_gguf(self.metadata, str(self.path))
        if tokenizer.vocab_size > rows:
            raise ModelError(
                f"{self.path}: the tokenizer has {tokenizer.vocab_size} tokens; the model has {rows}"
            )
        return tokenizer

    def memory(self, ops: Ops, weights: str | None = None) -> ModelMemory:
        """Returns how much memory the model takes on an op set, which is known before it is loaded."""
        total = weight_bytes(self.weights.values(), bytes_as(ops, weights))
        plan = cache_plan(self.config.caches)
        return ModelMemory(total, plan.page_bytes(ops))

    def transformer(
        self, ops: Ops, weights: str | None = None, drafts: bool | DrafterFile = False
    ) -> Transformer:
        """Returns the model on an op set, its matrices as stored or as `weights` says (q8, q4, f32); with
        `drafts`, together with its drafter, if the package has one and the op set can run it, or with the
        given one."""
        tensors: Mapping[str, Tensor] = self.weights
        if weights:
            tensors = _Requantized(self.weights, weights)
        name = self.path.name if self.path.is_dir() else self.path.stem
        needed = self.memory(ops, weights).weights
        remedy = "end other programs, or take a smaller model or one with fewer bits a weight"
        check_room(f"the weights of {printable(name)} take", needed, ops.free_memory(), remedy)
        if drafts is True:
            drafter = find_drafter(self.config, self.weights) if isinstance(ops, DraftOps) else None
        else:
            drafter = drafts or None
        if (progress := _WATCHING.get()) is not None:
            tensors = _Watched(tensors, progress)
        if drafter is None:
            return Transformer(self.config, tensors, ops)
        from glassloop.model.drafting_transformer import DraftingTransformer

        return DraftingTransformer(self.config, tensors, ops, drafter)

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


def bytes_as(ops: Ops, weights: str | None) -> Callable[[tuple[int, ...], Format], int]:
    """Returns a function that says how many bytes a matrix takes on an op set, stored as `weights` says."""
    stored = FORMATS[WEIGHT_FORMATS[weights]] if weights in WEIGHT_FORMATS else None

    def bytes_of(shape: tuple[int, ...], format: Format) -> int:
        fits = stored is not None and shape[-1] % stored.block_values == 0
        return ops.matrix_bytes(shape, stored if stored is not None and fits else format)

    return bytes_of


Progress = Callable[[int, int, str], None]  # numbers loaded, numbers in all, the tensor that is loaded now
_WATCHING: ContextVar[Progress | None] = ContextVar("watching", default=None)


@contextmanager
def watch_loading(progress: Progress) -> Iterator[None]:
    """Calls a function for each tensor of the models that this thread loads while the context is open."""
    token = _WATCHING.set(progress)
    try:
        yield
    finally:
        _WATCHING.reset(token)


class _Watched(Mapping[str, Tensor]):
    """Weights that tell how many of them have been read."""

    def __init__(self, weights: Mapping[str, Tensor], progress: Progress) -> None:
        self._weights, self._progress = weights, progress
        self._total = sum(tensor.size for tensor in weights.values())
        self._done = 0

    def __getitem__(self, name: str) -> Tensor:
        tensor = self._weights[name]
        self._done += tensor.size
        self._progress(min(self._done, self._total), self._total, "")
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


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
        fits &= not name.endswith(UNROUNDED)
        return tensor.stored_as(self._format) if fits else tensor


def model_path(path: Path) -> Path:
    """Returns the .gguf file, or the folder of safetensors and their config."""
    if path.suffix in PICKLES:
        raise ModelError(f"{path}: {pickle_only(printable(path.name))}")
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
    return Tokenizer.from_gguf(gguf_headers(path)[0].metadata, str(path))


def describe(path: Path) -> dict[str, object]:
    """Returns the facts that `glassloop models show` prints of a model; of one that is not supported, what
    its files say of themselves, and the reason."""
    path = model_path(path)
    stated = survey(path)
    facts: dict[str, object] = {
        "family": stated.family,
        "files_of_weights": stated.files,
        "stored_types": stated.types,
    }
    try:
        files = ModelFiles(path)
        tokenizer = files.tokenizer()
    except GlassloopError as error:
        return facts | {"numbers": stated.parameters, "not_supported": str(error)}
    config = files.config
    types = Counter(tensor.format.name for tensor in files.tensors.values())
    windows = sorted({window for mixer in config.attention_layers if (window := mixer.window) is not None})
    return {
        "family": config.family,
        "title": files.metadata.get("general.name"),
        "parameters": sum(tensor.size for tensor in files.weights.values()),
        "layers": len(config.layers),
        "dim": config.dim,
        "feed_forward_dim": _one_or_each([layer.feed_forward.ffn_dim for layer in config.layers]),
        "recurrent_layers": len(config.layers) - len(config.attention_layers),
        "heads": _one_or_each([mixer.heads for mixer in config.attention_layers]),
        "kv_heads": _one_or_each([mixer.kv_heads for mixer in config.attention_layers]),
        "head_dim": config.head_dim,
        "context": config.context,
        "sliding_windows": windows,
        "vocabulary": config.vocab_size,
        "tied_head": config.tied,
        "tensor_types": dict(types.most_common()),
        "op_sets": memory_line(files.weights.values()),
        "eos_ids": list(tokenizer.eos_ids),
        "adds_bos": tokenizer.add_bos,
        "chat_template": tokenizer.chat_template is not None,
    }


def _one_or_each(sizes: list[int]) -> int | list[int]:
    """Returns a size of all layers, or that of each layer if they differ."""
    return sizes[0] if len({*sizes}) == 1 else sizes
