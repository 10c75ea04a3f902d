"""Compares the logits of a real model with those in float32, computed by PyTorch, over a text: the divergence
of the distributions, and how often the likeliest token is the same. `--of` says what is compared: an op set
(torch with expanded and with packed weights), PyTorch in bfloat16 (autocast), or float32 with the weights
alone rounded, to bfloat16 or as packed ones are. All but the op set torch needs no GPU."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

from glassloop import LLM
from glassloop.model.loader import ModelFiles
from glassloop.model.registry import DEFAULT_MODEL, fetch
from glassloop.ops.tensor import Tensor
from glassloop.ops.torch.device import default_device
from glassloop.ops.torch.packed import Form, pack
from glassloop.train.gradient_ops import SequenceBatch
from glassloop.train.network import Network

_MARGINS = (0.01, 0.1, 0.5)  # of the likeliest logit above the next one
_DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
_OF = ("torch", "native", "pytorch", "weights-bf16", "weights-packed")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--chunk", type=int, default=1000, help="tokens of a text")
    parser.add_argument("--text", type=Path, default=Path("docs"), help="a folder of Markdown files")
    parser.add_argument("--of", default="torch", help=f"some of {', '.join(_OF)}")


def main(given: argparse.Namespace) -> None:
    asked = given.of.split(",")
    if unknown := {*asked} - {*_OF}:
        raise SystemExit(f"--of has {', '.join(sorted(unknown))}; some of {', '.join(_OF)} are expected")
    files = ModelFiles(fetch(given.model))
    text = "\n".join(path.read_text() for path in sorted(given.text.glob("*.md")))
    ids = files.tokenizer().encode(text)[: given.tokens]
    if len(ids) < given.tokens:
        raise SystemExit(f"the text has {len(ids)} tokens; {given.tokens} are asked for")
    chunks = [ids[first : first + given.chunk] for first in range(0, len(ids), given.chunk)]
    network = Network(files.config, files.weights, device=_DEVICE).freeze()
    expected = [_logits(network, chunk).cpu() for chunk in chunks]
    del network
    for kind in asked:
        for name, logits in _compared(kind, given.model, files):
            measured = [
                _measures(whole.to(_DEVICE), logits(chunk))
                for whole, chunk in zip(expected, chunks, strict=True)
            ]
            _print(name, torch.cat(measured, 1))


def _compared(
    kind: str, model: str, files: ModelFiles
) -> Iterator[tuple[str, Callable[[list[int]], torch.Tensor]]]:
    """Yields names with functions that return the logits of every row of a text."""
    if kind in ("torch", "native"):
        for stored in ("expanded", "packed") if kind == "torch" else ("auto",):
            with patch.dict(os.environ, GLASSLOOP_GPU_WEIGHTS=stored):
                llm = LLM(model, ops=kind, kv_memory="1GB")
            yield llm.op_set, lambda ids, llm=llm: torch.from_numpy(llm.logits(ids, 0)).to(_DEVICE)
            llm.close()
        return
    network = Network(files.config, files.weights, device=_DEVICE, bf16=kind == "pytorch").freeze()
    if kind != "pytorch":
        for name, weight in network.weights.items():
            if weight.dim() == 2:
                weight.copy_(_rounded(files.weights[name], weight, kind == "weights-packed"))
    yield kind, lambda ids: _logits(network, ids)


def _rounded(tensor: Tensor, values: torch.Tensor, packed: bool) -> torch.Tensor:
    """Returns the values of a matrix in half precision, if `packed` as those of a packed matrix."""
    if packed and Form.of(tensor) is not None:
        expanded = pack(tensor, default_device()).expanded(torch.bfloat16)
        values = expanded.float().to(values.device)
    return values.bfloat16().float()


def _logits(network: Network, ids: list[int]) -> torch.Tensor:
    """Returns the logits of every row of a text, in float32."""
    places = torch.arange(len(ids), device=network.device)
    with torch.no_grad():
        return network.logits(
            SequenceBatch(torch.tensor(ids, device=network.device), places, 1, len(ids))
        ).float()


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
