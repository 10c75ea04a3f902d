"""Measures training: `python -m bench.training`. Our training step and the same model in plain PyTorch take
turns on batches of random tokens; weights are random too, so no model is needed.

The plain model is what one would write without a library: `nn.Linear`, `nn.RMSNorm`, rotary positions,
`scaled_dot_product_attention`, `cross_entropy` over all logits, the fused AdamW; bfloat16 by autocast on a
GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from glassloop.model.config import ModelConfig
from glassloop.ops.tensor import Tensor
from glassloop.train.batches import split_validation
from glassloop.train.config import TrainConfig
from glassloop.train.machine import cores, set_up
from glassloop.train.network import Network
from glassloop.train.new_model import new_config
from glassloop.train.run_folder import RunFolder
from glassloop.train.subject import Subject
from glassloop.train.token_files import TokenFiles, TokenWriter
from glassloop.train.trainer import Trainer
from glassloop.util.progress import ProgressBar

PEAK = {"H100": 989e12, "H200": 989e12, "A100": 312e12}  # dense bfloat16 operations per second


class Shape(NamedTuple):
    layers: int
    dim: int
    heads: int
    kv_heads: int
    ffn_dim: int
    vocab: int
    length: int
    batch: int


# SmolLM2-135M and Llama-3.2-1B; the presets `characters`, `characters-large` and `small`.
SHAPES = {
    "135m": Shape(30, 576, 9, 3, 1536, 49152, 1024, 32),
    "1b": Shape(16, 2048, 32, 8, 8192, 128256, 2048, 8),
    "characters": Shape(4, 128, 4, 4, 344, 65, 64, 12),
    "characters-large": Shape(6, 384, 6, 6, 1024, 65, 256, 64),
    "small": Shape(8, 256, 8, 8, 704, 4096, 256, 16),
    "tiny-135m": Shape(3, 576, 9, 3, 1536, 49152, 256, 2),
}


def train_config(shape: Shape, **settings: Any) -> TrainConfig:
    values: dict[str, Any] = {
        "layers": shape.layers,
        "dim": shape.dim,
        "heads": shape.heads,
        "kv_heads": shape.kv_heads,
        "ffn_dim": shape.ffn_dim,
        "length": shape.length,
        "batch": shape.batch,
        "device": "cuda" if torch.cuda.is_available() else "cpu",
        "precision": "bf16" if torch.cuda.is_available() else "f32",
        "threads": cores(),
        "steps": 10**6,
        "data": ("random",),
    }
    return TrainConfig(**values | settings)


def random_weights(config: ModelConfig) -> dict[str, Tensor]:
    """Returns weights that repeat one block of random numbers: quick to make for a large model."""
    block = np.random.default_rng(0).standard_normal(1 << 20, np.float32) * np.float32(0.02)
    return {
        name: Tensor.of(name, np.resize(block, shape) if len(shape) == 2 else np.ones(shape, np.float32))
        for name, shape in config.shapes().items()
    }


def random_tokens(folder: Path, vocab: int, document: int, count: int = 1 << 20) -> TokenFiles:
    """Writes documents of random tokens, of `document` tokens on average."""
    random = np.random.default_rng(1)
    writer = TokenWriter(folder, vocab)
    while writer.tokens < count:
        writer.add(random.integers(0, vocab, int(random.integers(document // 2, document * 3 // 2 + 1))))
    return writer.finish()


@contextmanager
def trainer(shape: Shape, document: int, **settings: Any) -> Iterator[Trainer]:
    """Yields a trainer of a model with random weights. Nothing is written to its folder but the curve."""
    config = train_config(shape, **settings)
    model = new_config(config, shape.vocab)
    with tempfile.TemporaryDirectory() as folder, set_up(config):
        files = random_tokens(Path(folder) / "tokens", shape.vocab, document)
        ranges, _ = split_validation(files, 0.0)
        subject = Subject(model, random_weights(model), "random", None, {}, files, ranges, files, [])
        network = Network(
            model, subject.weights, device=config.device, dropout=config.dropout,
            bf16=config.precision == "bf16", compile=config.compile,
        )  # fmt: skip
        yield Trainer(
            config,
            subject,
            network,
            RunFolder(Path(folder)),
            {},
            progress=ProgressBar(config.steps, 0, quiet=True),
        )


class PlainAttention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape, self.size = shape, shape.dim // shape.heads
        self.q = nn.Linear(shape.dim, shape.dim, bias=False)
        self.k = nn.Linear(shape.dim, shape.kv_heads * self.size, bias=False)
        self.v = nn.Linear(shape.dim, shape.kv_heads * self.size, bias=False)
        self.o = nn.Linear(shape.dim, shape.dim, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            each(x).view(batch, length, -1, self.size).transpose(1, 2) for each in (self.q, self.k, self.v)
        )
        q, k = (self._rotate(each, cos, sin).to(v.dtype) for each in (q, k))
        shared = self.shape.heads != self.shape.kv_heads
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=shared)
        found: torch.Tensor = self.o(mixed.transpose(1, 2).reshape(batch, length, -1))
        return found

    def _rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class PlainLayer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm, self.norm = (nn.RMSNorm(shape.dim, 1e-5) for _ in range(2))
        self.attention = PlainAttention(shape)
        self.gate, self.up = (nn.Linear(shape.dim, shape.ffn_dim, bias=False) for _ in range(2))
        self.down = nn.Linear(shape.ffn_dim, shape.dim, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        h = self.norm(x)
        found: torch.Tensor = x + self.down(F.silu(self.gate(h)) * self.up(h))
        return found


class PlainModel(nn.Module):
    """A Llama in plain PyTorch, with a tied language head."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocab, shape.dim)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.layers = nn.ModuleList(PlainLayer(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.dim, 1e-5)
        half = shape.dim // shape.heads // 2
        turns = torch.arange(shape.length)[:, None] * 10000.0 ** (-torch.arange(half) / half)
        self.cos, self.sin = nn.Buffer(turns.cos()), nn.Buffer(turns.sin())

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return F.linear(self.norm(x), self.embedding.weight)


def plain_step(shape: Shape, compile: bool) -> Callable[[], None]:
    """Returns a function that does one training step of the plain model."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = PlainModel(shape).to(device)
    used: Any = torch.compile(model) if compile else model
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1, fused=True
    )
    random = np.random.default_rng(2)

    def step() -> None:
        ids = torch.from_numpy(random.integers(0, shape.vocab, (shape.batch, shape.length + 1))).to(device)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            logits = used(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()

    return step


def operations(shape: Shape) -> float:
    """Returns the operations per token of a step that a model needs: products of forward and backward pass,
    attention counted as causal, nothing computed twice."""
    size = shape.dim // shape.heads
    layer = 2 * shape.dim * (shape.dim + shape.kv_heads * size) + 3 * shape.dim * shape.ffn_dim
    weights = shape.layers * layer + shape.vocab * shape.dim
    return 6 * weights + 6 * shape.layers * shape.dim * shape.length


def timed(step: Callable[[], None], finish: Callable[[], None], steps: int) -> float:
    """Returns the seconds of one step."""
    finish()
    began = time.perf_counter()
    for _ in range(steps):
        step()
    finish()
    return (time.perf_counter() - began) / steps


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def report(name: str, shape: Shape, seconds: list[float]) -> dict[str, Any]:
    """Prints a line and returns its figures."""
    speed = shape.batch * shape.length / statistics.median(seconds)
    found: dict[str, Any] = {"name": name, "tokens_per_second": round(speed), "seconds": seconds}
    line = f"{name:<28} {speed:>12,.0f} tokens/s  {statistics.median(seconds) * 1e3:9.2f} ms a step"
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    peak = next((value for key, value in PEAK.items() if key in gpu), None)
    if peak is not None:
        found["share_of_peak"] = speed * operations(shape) / peak
        line += f"  {found['share_of_peak']:.1%} of peak, {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB"
    print(line, flush=True)
    return found


def profile(step: Callable[[], None], steps: int = 2) -> str:
    """Returns a table of the kernels that take most time."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    with record(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        for _ in range(steps):
            step()
        _wait()
    return str(
        seen.key_averages().table(sort_by="self_cuda_time_total", row_limit=25, max_name_column_width=70)
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.training", description=__doc__)
    parser.add_argument("--shape", default="characters", choices=SHAPES)
    parser.add_argument("--batch", type=int, help="sequences of a batch")
    parser.add_argument("--steps", type=int, default=10, help="steps of a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=3, help="steps before the first round")
    parser.add_argument(
        "--document", type=int, help="mean tokens of a document; one fills a sequence by default"
    )
    parser.add_argument("--compile", action="store_true", help="compile both with torch.compile")
    parser.add_argument("--any-kernel", action="store_true", help="allow kernels that are not deterministic")
    parser.add_argument("--threads", type=int, default=cores(), help="threads of the CPU")
    parser.add_argument("--alone", action="store_true", help="leave out the plain model")
    parser.add_argument("--profile", action="store_true", help="print the kernels that take most time")
    given = parser.parse_args()
    shape = SHAPES[given.shape]
    shape = replace_batch(shape, given.batch)
    document = given.document or 1 << 18
    borders = given.document is not None
    settings = {"compile": given.compile, "deterministic": not given.any_kernel, "borders": borders}
    settings["threads"] = given.threads
    with trainer(shape, document, **settings) as ours:
        steps: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {
            "glassloop": (ours.step, ours.finish)
        }
        if not given.alone:
            steps["plain PyTorch"] = (plain_step(shape, given.compile), _wait)
        began = time.perf_counter()
        for step, finish in steps.values():
            timed(step, finish, given.warmup)
        print(f"{given.shape}: {len(steps)} warmed up in {time.perf_counter() - began:.1f} s", flush=True)
        seconds: dict[str, list[float]] = {name: [] for name in steps}
        for _ in range(given.rounds):
            for name, (step, finish) in steps.items():
                seconds[name].append(timed(step, finish, given.steps))
        found = [report(f"{given.shape} {name}", shape, seconds[name]) for name in steps]
        if given.profile:
            print(profile(ours.step), flush=True)
    if len(found) == 2:
        ratios = sorted(b / a for a, b in zip(seconds["glassloop"], seconds["plain PyTorch"], strict=True))
        print(f"{given.shape}: {statistics.median(ratios):.2f} times as fast as plain PyTorch", flush=True)
    json.dump(found, sys.stdout)
    print()


def replace_batch(shape: Shape, batch: int | None) -> Shape:
    return shape if batch is None else shape._replace(batch=batch)


if __name__ == "__main__":
    main()
