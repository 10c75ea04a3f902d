"""Times decoding of the same shape by other means: plain PyTorch with a static cache, compiled to CUDA graphs
as gpt-fast does, and transformers, if it is installed."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from importlib.util import find_spec

import torch
import torch.nn.functional as F

from bench.gpu.shapes import SHAPES


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shape", default="8b", choices=SHAPES)
    parser.add_argument("--streams", default="1,64")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=64)


def main(given: argparse.Namespace) -> None:
    for streams in [int(each) for each in given.streams.split(",") if each]:
        began = time.perf_counter()
        model = Plain(SHAPES[given.shape], streams, given.context + given.tokens, "cuda")
        torch._inductor.config.coordinate_descent_tuning = True
        step = torch.compile(model, mode="reduce-overhead", fullgraph=True)
        rate = tokens_per_second(step, streams, given.context, given.tokens, "cuda")
        print(
            f"compiled PyTorch, {streams} streams, context {given.context}: {rate:,.0f} tok/s"
            f" ({time.perf_counter() - began:.0f} s with compilation)",
            flush=True,
        )
        del model, step
        torch._dynamo.reset()
        torch.cuda.empty_cache()
    if find_spec("transformers") is None:
        print("transformers is not installed", flush=True)
        return
    for cache in (None, "static"):
        rate = _transformers_rate(SHAPES[given.shape], given.context, given.tokens, cache)
        print(f"transformers, 1 stream, {cache or 'growing'} cache: {rate:,.0f} tok/s", flush=True)


class Plain(torch.nn.Module):
    """A decoder of a shape with random weights. Returns the likeliest token of each stream."""

    def __init__(self, shape: tuple[int, ...], streams: int, length: int, device: str) -> None:
        super().__init__()
        layers, dim, self.heads, self.kv_heads, self.head_dim, hidden, vocabulary = shape

        def random(*size: int) -> torch.nn.Parameter:
            values = torch.empty(size, dtype=torch.bfloat16, device=device).normal_(0.0, size[-1] ** -0.5)
            return torch.nn.Parameter(values, requires_grad=False)

        width = (self.heads + 2 * self.kv_heads) * self.head_dim
        sizes = {
            "qkv": (width, dim),
            "o": (dim, self.heads * self.head_dim),
            "gate_up": (2 * hidden, dim),
            "down": (dim, hidden),
        }
        self.layers = torch.nn.ModuleList(
            torch.nn.ParameterDict({name: random(*size) for name, size in sizes.items()})
            for _ in range(layers)
        )
        self.embedding, self.head = random(vocabulary, dim), random(vocabulary, dim)
        self.norm = torch.nn.Parameter(torch.ones(dim, dtype=torch.bfloat16, device=device), False)
        angles = torch.arange(length)[:, None] * 500000.0 ** (
            -torch.arange(0, self.head_dim, 2) / self.head_dim
        )
        self.register_buffer("cosines", angles.cos().to(device))
        self.register_buffer("sines", angles.sin().to(device))
        cache = (layers, 2, streams, self.kv_heads, length, self.head_dim)
        self.register_buffer("cache", torch.zeros(cache, dtype=torch.bfloat16, device=device))

    def forward(self, tokens: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        x = F.embedding(tokens, self.embedding)  # [streams, dim]
        seen = torch.arange(self.cache.shape[4], device=x.device) <= position
        for layer, cache in zip(self.layers, self.cache, strict=True):
            made = F.linear(self._normed(x), layer["qkv"]).unflatten(1, (-1, self.head_dim))
            q, k, v = made.split((self.heads, self.kv_heads, self.kv_heads), 1)
            q, k = self._rotated(q, position), self._rotated(k, position)
            cache[0].index_copy_(2, position, k[:, :, None])
            cache[1].index_copy_(2, position, v[:, :, None])
            mixed = F.scaled_dot_product_attention(
                q[:, :, None], cache[0], cache[1], attn_mask=seen[None, None, None], enable_gqa=True
            )
            x = x + F.linear(mixed.flatten(1), layer["o"])
            gate, up = F.linear(self._normed(x), layer["gate_up"]).chunk(2, 1)
            x = x + F.linear(F.silu(gate) * up, layer["down"])
        return F.linear(self._normed(x), self.head).argmax(1)

    def _normed(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, x.shape[-1:], self.norm, 1e-5)

    def _rotated(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        cosine, sine = self.cosines[position], self.sines[position]
        a, b = x.float().chunk(2, -1)
        return torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1).to(x.dtype)


@torch.inference_mode()
def tokens_per_second(
    step: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    streams: int,
    context: int,
    tokens: int,
    device: str,
) -> float:
    """Returns the rate at which a step makes tokens from a context on, each fed back."""
    position = torch.tensor([context - 8], device=device)
    now = torch.arange(streams, device=device)
    began = 0.0
    for number in range(8 + tokens):
        if number == 8:  # compiled and captured by now
            now[0].item()
            began = time.perf_counter()
        now = step(now, position).clone()
        position += 1
    now[0].item()
    return streams * tokens / (time.perf_counter() - began)


def _transformers_rate(shape: tuple[int, ...], context: int, tokens: int, cache: str | None) -> float:
    """Returns the rate of one stream of a Llama of this shape; a static cache is compiled."""
    from transformers import LlamaConfig, LlamaForCausalLM

    layers, dim, heads, kv_heads, head_dim, hidden, vocabulary = shape
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=dim, intermediate_size=hidden, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim, dtype=torch.bfloat16,
    )  # fmt: skip
    with torch.device("cuda"):
        model = LlamaForCausalLM(config).to(torch.bfloat16).eval()
    prompt = torch.randint(0, vocabulary, (1, context), device="cuda")
    seconds = []
    for count in (8, 8, 8 + tokens):  # the first one compiles
        torch.cuda.synchronize()
        began = time.perf_counter()
        model.generate(
            prompt, max_new_tokens=count, min_new_tokens=count, do_sample=False, cache_implementation=cache
        )
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return tokens / (seconds[2] - seconds[1])
