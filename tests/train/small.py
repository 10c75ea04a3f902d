"""A small text and a small run, for the tests of training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from glassloop.train.config import TrainConfig

TEXT = "".join(
    f"{animal} {verb} the {thing}. "
    for animal in ("A cat", "A dog", "The bird", "One fish")
    for verb in ("sees", "likes", "finds")
    for thing in ("house", "river", "old tree", "café")
) * 4  # fmt: skip


def text_file(folder: Path) -> str:
    path = folder / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return str(path)


def tiny_run(data: str, **settings: Any) -> TrainConfig:
    """Two layers of width 32, twelve steps: about a second."""
    values: dict[str, Any] = {
        "data": (data,),
        "tokenizer": "characters",
        "layers": 2,
        "dim": 32,
        "heads": 2,
        "length": 32,
        "batch": 4,
        "steps": 12,
        "lr": 5e-3,
        "warmup": 2,
        "validate_every": 4,
        "checkpoint_every": 4,
        "sample_tokens": 8,
        "validation_share": 0.1,
        "threads": 1,
        "device": "cpu",
    }
    return TrainConfig(**values | settings)
