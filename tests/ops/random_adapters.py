"""Random adapters for random models, and what must hold of the rows on which they act."""

from __future__ import annotations

import numpy as np
from ops.random_models import FLOATS, random_model, random_tensor

from glassloop.model.adapter import Adapter
from glassloop.model.cache import Branches
from glassloop.model.config import ModelConfig
from glassloop.model.transformer import Transformer
from glassloop.ops.native.ops import NativeOps
from glassloop.ops.quant import FORMATS
from glassloop.ops.reference import ReferenceOps
from glassloop.ops.tensor import Tensor

_ADAPTED = {"q", "k", "v", "o", "gate", "up", "down", "conv_before", "conv_after", "conv_in", "conv_out"}


def random_adapter(rng: np.random.Generator, config: ModelConfig, name: str = "random") -> Adapter:
    """Returns an adapter of a random rank for some of the linear layers, in a random format."""
    rank, format = int(rng.choice([1, 3, 8, 16, 17, 40])), FORMATS[str(rng.choice(FLOATS))]
    if rng.random() < 0.3:
        rank, format = 32, FORMATS["Q8_0"]
    matrices = {}
    for weight, shape in config.shapes().items():
        stem = weight.removesuffix(".weight")
        if stem.split(".")[-1] not in _ADAPTED or rng.random() < 0.3:
            continue
        sizes = (rank, shape[1]), (shape[0], rank)
        kinds = [format if size[1] % format.block_values == 0 else FORMATS["F32"] for size in sizes]
        down, up = (random_tensor(rng, stem, *each) for each in zip(sizes, kinds, strict=True))
        matrices[stem] = down, up
    embedding = rng.standard_normal(config.dim).astype(np.float32) if rng.random() < 0.5 else None
    return Adapter(name, name, rank, float(rng.uniform(0.1, 2)), matrices, embedding, None, {})


def merged(weights: dict[str, Tensor], adapter: Adapter) -> dict[str, Tensor]:
    """Returns the weights with an adapter merged into them."""
    return weights | {
        f"{name}.weight": Tensor.of(
            f"{name}.weight", weights[f"{name}.weight"].float32() + adapter.delta(name)
        )
        for name in adapter.matrices
    }


def check_adapters(seed: int) -> None:
    """Rows with adapters are bitwise independent of the batch; rows without have the bits of a model without;
    the native op set computes what the reference does."""
    rng = np.random.default_rng(seed)
    config, weights = random_model(rng)
    format = weights["token_embedding.weight"].format
    plain, native = (Transformer(config, weights, NativeOps()) for _ in range(2))
    reference = Transformer(config, weights, ReferenceOps())
    adapters = [random_adapter(rng, config, f"a{number}") for number in range(3)]
    numbers = [0, *(native.load_adapter(adapter) for adapter in adapters)]
    assert [reference.load_adapter(adapter) for adapter in adapters] == numbers[1:] == [1, 2, 3]
    prompts = [rng.integers(0, config.vocab_size, rng.integers(1, 60)).tolist() for _ in range(5)]
    # Of a whole branch or, as for masked rows, of some rows of it.
    rows = [
        [int(rng.choice(numbers))] * len(ids)
        if rng.random() < 0.6
        else rng.choice(numbers, len(ids)).tolist()
        for ids in prompts
    ]
    alone = [
        Branches(native, 64).forward([(0, 0, ids)], True, each)
        for ids, each in zip(prompts, rows, strict=True)
    ]
    for ids, each, logits in zip(prompts, rows, alone, strict=True):
        exact = Branches(reference, 64).forward([(0, 0, ids)], True, each)
        error = np.abs(logits - exact).max() / np.abs(exact).max()
        assert error < (0.02 if format.name in FLOATS else 0.2), (
            f"seed {seed}: off by {error} ({format.name})"
        )
        if not any(each):
            without = Branches(plain, 64).forward([(0, 0, ids)], True)
            assert logits.tobytes() == without.tobytes(), f"seed {seed}: changes rows without adapter"
    together = Branches(native, 64, branches=len(prompts))
    done, order = [0] * len(prompts), np.arange(len(prompts))
    while min(d - len(ids) for d, ids in zip(done, prompts, strict=True)) < 0:
        rng.shuffle(order)
        work, acting, expected = [], [], []
        for branch in order.tolist():
            count = int(rng.integers(0, len(prompts[branch]) - done[branch] + 1))
            part = slice(done[branch], done[branch] + count)
            if count:
                work.append((branch, done[branch], prompts[branch][part]))
                acting += rows[branch][part]
                expected.append(alone[branch][part])
                done[branch] += count
        if work:
            found = together.forward(work, True, acting)
            assert found.tobytes() == np.concatenate(expected).tobytes(), f"seed {seed}: depends on the batch"
