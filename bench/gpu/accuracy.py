"""Compares the logits of a real model on the GPU with those in float32, computed by PyTorch, over a text: the
divergence of the distributions, and how often the likeliest token is the same. With packed weights too, if
the model has some that can be."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

from glassloop import LLM
from glassloop.model.loader import ModelFiles
from glassloop.model.registry import DEFAULT_MODEL, fetch
from glassloop.train.network import Network
from glassloop.train.ops import Packed

_MARGINS = (0.01, 0.1, 0.5)  # of the likeliest logit above the next one


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--chunk", type=int, default=1000, help="tokens of a text")
    parser.add_argument("--text", type=Path, default=Path("docs"), help="a folder of Markdown files")
    parser.add_argument("--ops", default="torch", help="the op set that is compared")


def main(given: argparse.Namespace) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    files = ModelFiles(fetch(given.model))
    network = Network(files.config, files.weights, device=device).freeze()
    text = "\n".join(path.read_text() for path in sorted(given.text.glob("*.md")))
    ids = files.tokenizer().encode(text)[: given.tokens]
    if len(ids) < given.tokens:
        raise SystemExit(f"the text has {len(ids)} tokens; {given.tokens} are asked for")
    chunks = [ids[first : first + given.chunk] for first in range(0, len(ids), given.chunk)]
    expected = [_logits(network, chunk).cpu() for chunk in chunks]
    del network
    for stored in ("expanded", "packed") if given.ops == "torch" else ("auto",):
        with patch.dict(os.environ, GLASSLOOP_GPU_WEIGHTS=stored):
            llm = LLM(given.model, ops=given.ops, kv_memory="1GB")
        measured = [
            _measures(whole.to(device), torch.from_numpy(llm.logits(chunk, 0)).to(device))
            for whole, chunk in zip(expected, chunks, strict=True)
        ]
        _print(llm.op_set, torch.cat(measured, 1))
        llm.close()


def _logits(network: Network, ids: list[int]) -> torch.Tensor:
    """Returns the logits of every row of a text, in float32."""
    places = torch.arange(len(ids), device=network.device)
    with torch.no_grad():
        return network.logits(Packed(torch.tensor(ids, device=network.device), places, 1, len(ids))).float()


def _measures(expected: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
    """Returns for each row: the divergence, the largest difference of a logit, the margin of the likeliest
    token, whether it is the same."""
    log_p, log_q = (each.double().log_softmax(1) for each in (expected, found))
    highest = expected.topk(2, 1).values
    rows = [
        (log_p.exp() * (log_p - log_q)).sum(1),
        (expected - found).abs().amax(1),
        highest[:, 0] - highest[:, 1],
        expected.argmax(1) == found.argmax(1),
    ]
    return torch.stack([row.double() for row in rows]).cpu()


def _print(name: str, rows: torch.Tensor) -> None:
    divergence, difference, margin, same = rows.numpy()
    spread = 1.96 * divergence.std() / len(divergence) ** 0.5
    print(
        f"{name}: {len(divergence):,} tokens, divergence {divergence.mean():.6f} ± {spread:.6f} nats (at most"
        f" {divergence.max():.4f}); the largest difference of a logit is {np.median(difference):.4f} in the"
        f" median row and at most {difference.max():.3f}; the likeliest token is the same in"
        f" {same.mean():.4%} of all rows",
        flush=True,
    )
    for least in _MARGINS:
        clear = margin > least
        print(f"  with a margin above {least}: {clear.sum():,} rows, {int((same[clear] == 0).sum())} differ")
