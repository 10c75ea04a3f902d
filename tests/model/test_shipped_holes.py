"""The adapter for masked rows that comes with the package: whole, small, and it looks to the right."""

from __future__ import annotations

import json

import numpy as np

from glassloop.model.adapter import read_adapter
from glassloop.model.cache import Branches
from glassloop.model.fingerprint import fingerprint
from glassloop.model.loader import ModelFiles
from glassloop.model.registry import fetch
from glassloop.model.shipped_holes import FOLDER, shipped_holes
from glassloop.ops import choose_ops

MODEL = "smollm2-135m-instruct"


def test_the_file_is_that_of_its_recipe():
    path = shipped_holes(MODEL)
    assert path is not None and path.stat().st_size <= 10_000_000
    recipe = json.loads((FOLDER / f"{MODEL}.json").read_text())
    model = fetch(MODEL)
    adapter = read_adapter(path, ModelFiles(model).config)
    assert adapter.sha256 == recipe["sha256"] and path.stat().st_size == recipe["bytes"]
    assert recipe["model_sha256"] == fingerprint(model) == adapter.metadata["model_sha256"]
    assert adapter.rank == 32 and len(adapter.matrices) == 7 * 30
    assert adapter.mask_token == 0 and adapter.embedding is not None
    assert shipped_holes("gemma-3-270m") is None


def test_what_follows_decides():
    """The same words before, others after: the masked row is another."""
    files = ModelFiles(fetch(MODEL))
    transformer, tokenizer = files.load(choose_ops("native"))
    path = shipped_holes(MODEL)
    assert path is not None
    adapter = read_adapter(path, files.config)
    number = transformer.load_adapter(adapter)

    def guess(before: str, after: str) -> str:
        first, last = tokenizer.encode(before), tokenizer.encode_inside(after)
        clean = len(first) + len(last)
        cache = Branches(transformer, 96)
        batch = cache.batch([(0, 0, [*first, *last, adapter.mask_token])], every_logit=True)
        batch = batch._replace(
            positions=[*range(len(first)), *range(len(first) + 1, clean + 1), len(first)],
            reach=[*range(1, clean + 1), clean + 1],
            adapters=[0] * clean + [number],
        )
        logits = transformer.ops.host(transformer.forward(batch, cache.pages))[-1]
        return tokenizer.decode([int(np.argmax(logits))])

    assert guess("He opened the", " with his key and went into the house.") == " door"
    assert guess("He opened the", " and began to read the first page aloud.") == " book"
