"""What the experiments share: a model with its adapter, masked rows of a text, intervals."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np

from bench.editing.data import BOOKS
from glassloop import LLM
from glassloop.diffuse.masked_rows import MaskedRows
from glassloop.engine.tasks.masked import Masked, Pass


def options_of(doc: str | None, phases: Sequence[str], count: int, **more: Any) -> argparse.Namespace:
    """Returns the options of a command: a phase, and what all commands take."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("phase", choices=phases)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument(
        "--adapter", default=None, help="the adapter for masked rows; by default the shipped one"
    )
    parser.add_argument("--ops", default=None, help="the op set; torch runs on a GPU")
    parser.add_argument("--kv-memory", type=int, default=None, help="bytes of the KV cache")
    parser.add_argument("--count", type=int, default=count, help="items")
    parser.add_argument("--books", type=Path, help=BOOKS)
    parser.add_argument("--out", type=Path, default=Path("build/diffusion"), help="folder of the results")
    for name, value in more.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    return parser.parse_args()


def load(options: argparse.Namespace) -> LLM:
    """Returns the model with its adapter for masked rows."""
    llm = LLM(options.model, ops=options.ops, kv_memory=options.kv_memory)
    if options.adapter is not None:
        llm.load_holes(options.adapter)
    return llm


class _Reader:
    """A pilot with one pass, whose logits it keeps."""

    def __init__(self) -> None:
        self.logits = np.zeros((0, 0), np.float32)

    def advance(self, logits: np.ndarray) -> Pass | None:
        self.logits = np.array(logits)
        return None

    def finish(self, ending: object) -> bool:
        return False


def masked_logits(llm: LLM, before: Sequence[int], width: int, after: Sequence[int]) -> np.ndarray:
    """Returns the logits of masks between two texts: [width, vocabulary]."""
    rows, reader = MaskedRows(before, width, after, llm.mask), _Reader()
    task = Masked(rows.tokens, rows.kept, rows.of_pass([None] * width), reader)
    llm.engine.submit(task)
    task.wait()
    return reader.logits


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(float) - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def share(values: Sequence[float]) -> dict[str, float]:
    """Returns a mean with its interval of 95 % (normal)."""
    array = np.array(values, float)
    mean, error = float(array.mean()), float(array.std(ddof=1)) / sqrt(len(array)) if len(array) > 1 else 0.0
    return {"items": len(array), "mean": mean, "low": mean - 1.96 * error, "high": mean + 1.96 * error}


def finish(made: dict[str, Any]) -> None:
    """Prints the last line, for programs."""
    print(json.dumps(made))
