"""Small models of random, mostly odd sizes with random weights in random formats: what the native op set must
get through without touching a byte that is not its own.

Run as a program it checks many of them, on every instruction set: the sanitizers' test does that.
"""

from __future__ import annotations

import sys

import numpy as np
from ops.holes import hole_alone, hole_logits, random_hole

from glassloop import Sampling
from glassloop.decode.chosen import Chosen
from glassloop.decode.decoder import Decoder, choose_rows
from glassloop.model.cache import Branches
from glassloop.model.config import AttentionConfig, DenseConfig, LayerConfig, ModelConfig, NormConfig
from glassloop.model.rope import Rope
from glassloop.model.transformer import Transformer
from glassloop.ops import choose_ops
from glassloop.ops.native import library
from glassloop.ops.native.ops import NativeOps
from glassloop.ops.protocol import QueryGrowth
from glassloop.ops.quant import FORMATS, Float32, Format
from glassloop.ops.reference import ReferenceOps
from glassloop.ops.tensor import Tensor

FLOATS = ("F32", "F16", "BF16")
# Where the float16 scale of a block lies, if not at its beginning.
_SCALE_AT = {"Q6_K": (208, 210), "Q2_K": (80, 82), "Q3_K": (108, 110), "TQ1_0": (52, 54), "TQ2_0": (64, 66)}


def random_config(rng: np.random.Generator, multiple: int) -> ModelConfig:
    """Sizes that are multiples of `multiple`, the block of the formats that the weights are stored in."""
    kv_heads = int(rng.integers(1, 4))
    heads = kv_heads * int(rng.integers(1, 6))
    head_dim = 2 * int(rng.integers(1, 40))
    while heads * head_dim % multiple:
        head_dim += 2
    rope = Rope(10000.0, 2 * int(rng.integers(1, head_dim // 2 + 1))) if rng.random() < 0.8 else None
    window = int(rng.integers(1, 50)) if rng.random() < 0.5 else None
    kind = rng.choice(["rms", "layer"])
    norm_place = rng.choice(["pre", "post", "output", "sandwich"])
    activation = rng.choice(["silu", "gelu_tanh", "gelu", "relu", "relu2"])
    positions = rng.choice(["rotary", "sinusoidal"])
    attention_softcap = 5.0 if rng.random() < 0.3 else None
    logit_softcap = 9.0 if rng.random() < 0.3 else None
    embedding_scale = 2.0 if rng.random() < 0.3 else 1.0
    vocab_size = int(rng.integers(2, 150))
    dim = multiple * int(rng.integers(1, 3 if multiple > 1 else 70))
    ffn_dim = multiple * int(rng.integers(1, 3 if multiple > 1 else 90))
    gated, qk_norm, qkv_bias, out_bias, ffn_bias, tied, final_norm = (rng.random() < 0.5 for _ in range(7))
    output_gate, sinks, rows, last, v_norm, alone, shared, parallel = (rng.random() < 0.3 for _ in range(8))
    growth = QueryGrowth(0.4, 11) if rng.random() < 0.3 and rope in (None, Rope(10000.0, head_dim)) else None
    residual_scale = 0.5 if rng.random() < 0.3 else 1.0
    stream_scale, norm_bias = rng.random() < 0.3, rng.random() < 0.7
    norm = NormConfig(1e-5, kind, norm_bias)

    def layer(window: int | None, source: int | None = None) -> LayerConfig:
        attention = AttentionConfig(
            heads,
            kv_heads,
            head_dim,
            scale=head_dim**-0.5,
            window=window,
            rope=rope,
            growth=growth,
            qk_norm=norm if qk_norm else None,
            qk_norm_of="rows" if rows else "heads",
            qk_norm_last=last,
            v_norm=v_norm and kind == "rms",
            value_is_key=alone,
            kv_from=source,
            qkv_bias=qkv_bias,
            out_bias=out_bias,
            softcap=attention_softcap,
            output_gate=output_gate,
            sinks=sinks,
        )
        dense = DenseConfig(ffn_dim, activation, gated, ffn_bias)
        together = parallel and norm_place == "pre"
        return LayerConfig(attention, dense, norm, norm_place, together, residual_scale, stream_scale)

    return ModelConfig(
        family="random",
        vocab_size=vocab_size,
        dim=dim,
        context=200,
        layers=(layer(window), layer(None), *([layer(window, 0)] if shared else [])),
        final_norm=norm if final_norm else None,
        positions=positions,
        embedding_scale=embedding_scale,
        tied=tied,
        logit_softcap=logit_softcap,
    )


def random_tensor(rng: np.random.Generator, name: str, shape: tuple[int, ...], format: Format) -> Tensor:
    if len(shape) == 1:
        return Tensor.of(name, (rng.standard_normal(shape) * 0.1 + 0.8).astype(np.float32))
    values = (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)
    if format.name == "F32":
        return Tensor.of(name, values)
    if format.name in FLOATS:
        halves = values.astype(np.float16) if format.name == "F16" else (values.view(np.uint32) >> 16)
        return Tensor(
            name,
            shape,
            format,
            halves.astype(halves.dtype if format.name == "F16" else np.uint16).reshape(-1).view(np.uint8),
        )
    raw = rng.integers(0, 256, (values.size // format.block_values, format.block_bytes), np.uint8)
    # Random codes, but scales of a size that keeps the numbers tame.
    small = 0.02 / np.sqrt(shape[-1]) * (0.02 if format.name.endswith("_K") else 1)
    if format.table:
        steps = 16 if format.scale == "steps" else 1
        small = 0.7 / np.sqrt(shape[-1]) / (max(map(abs, format.table)) * format.factor * steps)
    half = np.full((len(raw), 1), small, np.float16).view(np.uint8)
    if format.name == "IQ1_M":  # in the highest bits of four words
        raw[:, 49::2] = (
            raw[:, 49::2] & 15 | np.stack([half[:, 0], half[:, 0] >> 4, half[:, 1], half[:, 1] >> 4], 1) << 4
        )
    elif format.name == "MXFP4":
        raw[:, 0] = 127 + int(np.log2(small))
    elif format.name == "NVFP4":
        raw[:, :4] = rng.integers(1, 12, (len(raw), 4))
    else:
        raw[:, slice(*_SCALE_AT.get(format.name, (0, 2)))] = half
    if format.name in ("Q4_1", "Q5_1", "Q4_K", "Q5_K"):
        raw[:, 2:4] = np.full(
            (len(raw), 1), small * (1 if format.name.endswith("_K") else -4), np.float16
        ).view(np.uint8)
    if format.name == "Q2_K":
        raw[:, 82:84] = half
    return Tensor(name, shape, format, raw.reshape(-1))


def random_model(rng: np.random.Generator, name: str | None = None) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Returns a random config and weights for it, all in one format, of this name or random."""
    format = FORMATS[name or str(rng.choice(list(FORMATS)))]
    config = random_config(rng, format.block_values)
    return config, {name: random_tensor(rng, name, shape, format) for name, shape in config.shapes().items()}


def check(seed: int) -> None:
    """Native against reference, and native against itself in other batches."""
    rng = np.random.default_rng(seed)
    config, weights = random_model(rng)
    format = weights["token_embedding.weight"].format
    native = Transformer(config, weights, NativeOps())
    prompts = [rng.integers(0, config.vocab_size, rng.integers(1, 80)).tolist() for _ in range(3)]
    alone = [Branches(native, 128).forward([(0, 0, ids)], every_logit=True) for ids in prompts]
    together = Branches(native, 128, branches=3)
    cut = [len(ids) // 2 for ids in prompts]
    work = [(b, 0, ids[: cut[b]]) for b, ids in enumerate(prompts) if cut[b]]
    if work:
        together.forward(work)
    rest = together.forward([(b, cut[b], ids[cut[b] :]) for b, ids in enumerate(prompts)], every_logit=True)
    expected = np.concatenate([logits[cut[b] :] for b, logits in enumerate(alone)])
    assert np.isfinite(expected).all(), f"seed {seed}: not finite"
    assert rest.tobytes() == expected.tobytes(), f"seed {seed}: depends on the batch"
    reference = Transformer(config, weights, ReferenceOps())
    exact = Branches(reference, 128).forward([(0, 0, prompts[0])], every_logit=True)
    # Float weights differ by rounding and 16-bit attention, quantized ones by 8-bit activations as well.
    error = np.abs(alone[0] - exact).max() / np.abs(exact).max()
    assert error < (0.01 if format.name in FLOATS else 0.12), f"seed {seed}: off by {error} ({format.name})"
    check_hole(rng, config, native, reference, 0.01 if format.name in FLOATS else 0.12)
    check_choosing(np.stack([logits[-1] for logits in alone]), prompts)


def check_hole(
    rng: np.random.Generator, config: ModelConfig, native: Transformer, reference: Transformer, error: float
) -> None:
    """Rows that see what is after them, on both op sets; and with half of the clean rows computed before."""
    hole = random_hole(rng, config.vocab_size, 30)
    found, exact = hole_alone(native, hole), hole_alone(reference, hole)
    assert np.isfinite(found).all() and np.abs(found - exact).max() / np.abs(exact).max() < error, hole
    cache, cut = Branches(native, 96), hole.clean // 2
    if cut:
        hole_logits(cache, native, [(0, hole, 0, cut)])
    rest = hole_logits(cache, native, [(0, hole, cut, len(hole.tokens))])
    assert rest.tobytes() == found[cut:].tobytes(), hole


def check_choosing(logits: Float32, prompts: list[list[int]]) -> None:
    """The native op set takes the tokens that NumPy takes, and leaves the logits as they were."""
    before, width = logits.tobytes(), logits.shape[1]
    some = list(range(0, width, 3))
    for sampling in (
        Sampling(temperature=0, repetition_penalty=1.3, presence_penalty=0.5),
        Sampling(top_k=5, top_p=0.9, min_p=0.05, frequency_penalty=0.5, logprobs=64),
        Sampling(temperature=1.7, logit_bias={0: 3.0, width - 1: -100.0}, dry_multiplier=0.8),
        Sampling(temperature=0.5, allowed_token_ids=some, epsilon_cutoff=0.01, min_tokens=2),
        Sampling(stages=["top_k", "repetition_penalty"], top_k=width // 2 + 1, repetition_penalty=0.5),
    ):
        taken = [
            [
                chosen.id if isinstance(chosen, Chosen) else str(chosen)
                for chosen in choose_rows(
                    [Decoder(sampling, width, 7, ids, ops=choose_ops(name).rows) for ids in prompts], logits
                )
            ]
            for name in ("native", "reference")
        ]
        assert taken[0] == taken[1], sampling
    assert logits.tobytes() == before


if __name__ == "__main__":
    from ops.random_adapters import check_adapters

    native_library = library.library()
    for name in library.INSTRUCTION_SETS:
        if native_library.gl_select_kernels(name.encode()):
            # The portable kernels take ten times as long: every second model, with as many formats.
            for number in range(name == "portable", int(sys.argv[1]), 1 + (name == "portable")):
                check(number)
                check_adapters(number)
            print(name, "fine", flush=True)
