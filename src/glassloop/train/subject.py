"""What a run trains on and with: the model, its tokenizer, and the data as token files.

What is made from the data (a tokenizer, token files) is kept in the run folder, and found there by a run that
is resumed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from glassloop.errors import GlassloopError
from glassloop.model.config import ModelConfig
from glassloop.model.fingerprint import fingerprint
from glassloop.model.loader import ModelFiles, load_tokenizer
from glassloop.model.registry import fetch
from glassloop.ops.tensor import Tensor
from glassloop.text.tokenizer import Tokenizer
from glassloop.train.batches import Range, split_validation
from glassloop.train.config import TrainConfig, TrainError
from glassloop.train.model_folder import tokenizer_files
from glassloop.train.new_model import first_weights, new_config
from glassloop.train.new_tokenizer import train_bpe, train_characters
from glassloop.train.prepare import prepare_tokens
from glassloop.train.token_files import TokenFiles, is_token_folder

Report = Callable[[str], None]
_REMEDY = " (--length N, or --packing stream)"


@dataclass
class Subject:
    config: ModelConfig
    weights: Mapping[str, Tensor]
    model_hash: str  # of the model that is trained further; "new" for a new one
    tokenizer: Tokenizer | None  # None: only token files are there
    tokenizer_files: dict[str, bytes]
    files: TokenFiles
    training: list[Range]
    validation_files: TokenFiles
    validation: list[Range]

    @property
    def ends(self) -> tuple[int, ...]:
        if self.tokenizer is not None:
            return self.tokenizer.eos_ids
        return () if self.files.eos_id is None else (self.files.eos_id,)


def load_subject(config: TrainConfig, folder: Path, report: Report) -> Subject:
    """Returns the model and the data of a run. Makes the tokenizer and the token files if they are not in the
    run folder yet."""
    model = ModelFiles(fetch(config.model)) if config.model is not None else None
    ready = _token_folder(config)
    kept = folder / "tokenizer"
    tokenizer: Tokenizer | None
    if ready is not None:
        tokenizer, written = _tokenizer_beside(ready, model)
    else:
        tokenizer = _tokenizer(config, model, kept, report)
        written = tokenizer_files(kept)
    rows = model.config.vocab_size if model is not None else None
    if ready is None:
        assert tokenizer is not None
        size = rows or tokenizer.vocab_size
        ready = _encode(config, config.data, folder / "tokens", tokenizer, size, report)
    held = ready
    if config.validation:
        only = Path(config.validation[0])
        if len(config.validation) == 1 and is_token_folder(only):
            held = TokenFiles(only)
        elif tokenizer is None:
            raise TrainError.about("validation", "must be a folder of token files, as data is")
        else:
            size = rows or tokenizer.vocab_size
            held = _encode(config, config.validation, folder / "validation", tokenizer, size, report)
    share = 0.0 if config.validation else config.validation_share
    training, validation = split_validation(ready, share)
    if config.validation:
        validation = split_validation(held, 0.0)[0]
    for files in (ready, held):
        files.verify()
        if rows is not None and files.vocab_size > rows:
            raise TrainError(
                f"{files.folder}: has a vocabulary of {files.vocab_size} tokens; the model has {rows}"
            )
    if model is not None:
        if config.length > model.config.context:
            raise TrainError.about(
                "length", f"is {config.length}; the context of the model is {model.config.context}"
            )
        model_config, weights, named = model.config, model.weights, fingerprint(model.path)
    else:
        model_config = new_config(config, ready.vocab_size)
        weights, named = first_weights(model_config, config.seed), "new"
    return Subject(model_config, weights, named, tokenizer, written, ready, training, held, validation)


def prepare_data(config: TrainConfig, folder: Path, report: Report) -> Path:
    """Returns the folder of the token files of a config's data, which several runs can use. They are made in
    `folder`, unless the data are token files already."""
    ready = _token_folder(config)
    if ready is not None:
        return ready.folder
    if not is_token_folder(folder / "tokens"):
        tokenizer = _tokenizer(config, None, folder / "tokenizer", report)
        if not config.data:
            raise TrainError.about("data", "is missing; a text file, a JSONL file or a folder is expected")
        files = {name: text.encode() for name, text in tokenizer.json_files().items()}
        prepare_tokens(config.data, folder / "tokens", tokenizer, tokenizer_files=files, report=report)
    return folder / "tokens"


def load_teacher(name: str, config: ModelConfig) -> ModelFiles:
    """Returns the files of a model to distil. Student and teacher must have the same tokens; their number is
    checked here."""
    files = ModelFiles(fetch(name))
    if files.config.vocab_size != config.vocab_size:
        raise TrainError.about(
            "teacher",
            f"has a vocabulary of {files.config.vocab_size} tokens; the student has {config.vocab_size}"
            f" (--tokenizer {name} gives it the teacher's)",
        )
    return files


def _token_folder(config: TrainConfig) -> TokenFiles | None:
    if len(config.data) == 1 and is_token_folder(Path(config.data[0])):
        files = TokenFiles(Path(config.data[0]))
        longest = int(max(files.ends[0], (files.ends[1:] - files.ends[:-1]).max(initial=0)))
        if config.packing == "whole" and longest > config.length:
            raise TrainError(
                f"{files.folder}: has a document of {longest} tokens; at most {config.length} fit into a"
                f" sequence{_REMEDY}"
            )
        return files
    return None


def _tokenizer_beside(
    files: TokenFiles, model: ModelFiles | None
) -> tuple[Tokenizer | None, dict[str, bytes]]:
    """Returns the tokenizer that lies beside token files, or that of the model. Training does not need one,
    so None is returned where the library is missing."""
    folder = files.tokenizer_folder
    if folder is None and model is not None and model.path.is_dir():
        folder = model.path
    written = {} if folder is None else tokenizer_files(folder)
    try:
        if folder is not None and "tokenizer.json" in written:
            return Tokenizer.from_json_folder(folder), written
        return (None if model is None else model.tokenizer()), written
    except (ImportError, GlassloopError):
        return None, written


def _tokenizer(config: TrainConfig, model: ModelFiles | None, kept: Path, report: Report) -> Tokenizer:
    if not (kept / "tokenizer.json").exists():
        if model is not None and model.path.is_dir():
            _copy(tokenizer_files(model.path), kept)
        elif model is not None:
            _copy({name: text.encode() for name, text in model.tokenizer().json_files().items()}, kept)
        elif config.tokenizer == "characters":
            train_characters(config.data, kept)
        elif config.tokenizer == "bpe":
            report(f"training a BPE of {config.vocab_size} tokens")
            train_bpe(config.data, kept, config.vocab_size)
        else:
            source = load_tokenizer(config.tokenizer)
            _copy({name: text.encode() for name, text in source.json_files().items()}, kept)
    return Tokenizer.from_json_folder(kept, None if model is None else model.config.vocab_size)


def _copy(files: Mapping[str, bytes], folder: Path) -> None:
    """Writes files to a folder, tokenizer.json last: a folder that has it is complete."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in sorted(files, key=lambda name: name == "tokenizer.json"):
        (folder / name).write_bytes(files[name])


def _encode(
    config: TrainConfig,
    data: tuple[str, ...],
    folder: Path,
    tokenizer: Tokenizer,
    vocab_size: int,
    report: Report,
) -> TokenFiles:
    if is_token_folder(folder):
        return TokenFiles(folder)
    if not data:
        raise TrainError.about("data", "is missing; a text file, a JSONL file or a folder is expected")
    longest = config.length if config.packing == "whole" else None
    files = prepare_tokens(
        data, folder, tokenizer, vocab_size=vocab_size, longest=longest, remedy=_REMEDY, report=report
    )
    some = "document" if files.documents == 1 else "documents"
    report(f"{files.documents:,} {some}, {files.tokens:,} tokens")
    return files
