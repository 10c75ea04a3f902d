"""Prompts from data: the tokens at evenly spread places, for texts that models write themselves."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from glassloop.model.loader import load_tokenizer
from glassloop.train.batches import DOCUMENTS, number
from glassloop.train.config import TrainError
from glassloop.train.prepare import prepare_tokens
from glassloop.train.token_files import TokenFiles, is_token_folder


def data_prompts(
    data: Sequence[str], model: str, count: int, length: int, seed: int
) -> tuple[torch.Tensor, tuple[int, ...]]:
    """Returns prompts, [count, length], and the tokens that end a text. The data is text for the tokenizer of
    a model, or a folder of token files."""
    if len(data) == 1 and is_token_folder(Path(data[0])):
        files = TokenFiles(Path(data[0]))
        return spread_prompts(files, count, length, seed), () if files.eos_id is None else (files.eos_id,)
    tokenizer = load_tokenizer(model)
    with tempfile.TemporaryDirectory() as folder:
        files = prepare_tokens(data, Path(folder) / "tokens", tokenizer)
        return spread_prompts(files, count, length, seed), tokenizer.eos_ids


def spread_prompts(files: TokenFiles, count: int, length: int, seed: int) -> torch.Tensor:
    """Returns `count` stretches of `length` tokens at even distances, [count, length]."""
    gap = (files.tokens - length) // count
    if gap < 1:
        raise TrainError.about(
            "data", f"has {files.tokens} tokens; at least {count + length} are expected for {count} prompts"
        )
    first = number(seed, 0, DOCUMENTS, gap)
    rows = [files.read(first + gap * at, first + gap * at + length)[0] for at in range(count)]
    return torch.from_numpy(np.stack(rows).astype(np.int64))
