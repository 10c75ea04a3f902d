"""A small model with random weights, a tokenizer of single bytes, and the naive loop: no cache, no batch, no
drafts. The oracle of the engine.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from engine.ahead import AheadOps
from ops.random_adapters import random_adapter
from ops.random_models import random_tensor

from glassloop.decode.compiled import Compiled
from glassloop.decode.decoder import Decoder
from glassloop.decode.sampling import Sampling
from glassloop.decode.stop import Stopper
from glassloop.engine.adapters import LoadedAdapter
from glassloop.engine.branch import BranchText
from glassloop.engine.loop import Loop
from glassloop.engine.request import Request, runs_of
from glassloop.errors import GlassloopError
from glassloop.model.cache import Branches
from glassloop.model.config import (
    AttentionConfig,
    DenseConfig,
    ExpertsConfig,
    LayerConfig,
    Mixer,
    ModelConfig,
    NormConfig,
    ShortConvConfig,
)
from glassloop.model.drafter import DrafterConfig, DrafterFile
from glassloop.model.drafting_transformer import DraftingTransformer
from glassloop.model.rope import Rope
from glassloop.model.transformer import Transformer
from glassloop.ops.native.ops import NativeOps
from glassloop.ops.protocol import Ops
from glassloop.ops.quant import FORMATS
from glassloop.ops.reference import ReferenceOps
from glassloop.ops.routing import Routing
from glassloop.ops.tensor import Tensor
from glassloop.record.run import Run
from glassloop.record.token import Token
from glassloop.text.alphabet import to_alphabet
from glassloop.text.tokenizer import Tokenizer

CONTEXT = 200
EOS = 256


@cache
def tokenizer(chat_template: str | None = None) -> Tokenizer:
    """A token for each byte, and one for the end."""
    tokens = [to_alphabet(bytes([byte])) for byte in range(256)] + ["<end>"]
    return Tokenizer.from_gguf(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [1] * 256 + [3],
            "tokenizer.ggml.merges": [],
            "tokenizer.ggml.eos_token_id": EOS,
            **({} if chat_template is None else {"tokenizer.chat_template": chat_template}),
        }
    )


# The recurrent mixers, each in a small size.
MIXERS: dict[str, Mixer] = {"short_conv": ShortConvConfig(40, 3)}
# What the attention of some models has, in any combination: `parts` of `model`. "shared" is a further layer,
# which reads the keys of the one before.
ATTENTION_PARTS: dict[str, dict[str, Any]] = {
    "sinks": {"sinks": True},
    "gates": {"output_gate": True},
    "row_norms": {"qk_norm": NormConfig(1e-5), "qk_norm_of": "rows"},
}
PARTS = (*ATTENTION_PARTS, "shared", "parallel")


@cache
def model(
    window: int | None = None,
    ops: str = "native",
    seed: int = 0,
    experts: bool = False,
    mixer: str = "attention",
    parts: tuple[str, ...] = (),
) -> Transformer:
    """With a window, one layer of two looks back only so far. With experts, there is a third layer, of which
    a token takes two of five experts. With another mixer than attention, a further layer has that. `parts`
    are some of PARTS."""
    rope = Rope(10000.0, 16)
    norm = NormConfig(1e-5)

    def layer(window: int | None) -> LayerConfig:
        attention = AttentionConfig(4, 2, 16, 0.25, window, rope)
        for part in parts:
            attention = replace(attention, **ATTENTION_PARTS.get(part, {}))
        return LayerConfig(attention, DenseConfig(64), norm, parallel="parallel" in parts)

    layers = (layer(window), layer(None))
    if "shared" in parts:
        source = 1 if mixer == "attention" else 2
        layers += (replace(layer(None), mixer=replace(layer(None).mixer, kv_from=source)),)
    if experts:
        routed = ExpertsConfig(32, Routing(5, 2, normalized=True), shared=DenseConfig(32), shared_gate=True)
        layers += (replace(layer(None), feed_forward=routed),)
    if mixer != "attention":
        layers = (replace(layer(None), mixer=MIXERS[mixer]), *layers)
    config = ModelConfig("random", 257, 32, CONTEXT, layers, norm)
    weights = random_weights(config, seed)
    return Transformer(config, weights, _op_set(ops))


@cache
def drafting_model(tokens: tuple[int, ...] = tuple(range(0, 257, 2))) -> Transformer:
    """The small model with a drafter of random weights, which drafts these tokens only."""
    plain, rng = model(), np.random.default_rng(1)
    config = DrafterConfig((1, 2), len(tokens), 64)
    weights = {
        name: random_tensor(rng, name, shape, FORMATS["F32"])
        for name, shape in config.shapes(plain.config).items()
    }
    drafter = DrafterFile(Path("random"), config, np.array(tokens, np.int32), weights)
    return DraftingTransformer(plain.config, random_weights(plain.config), NativeOps(), drafter)


def random_weights(config: ModelConfig, seed: int = 0) -> dict[str, Tensor]:
    rng = np.random.default_rng(seed)
    weights = {
        name: random_tensor(rng, name, shape, FORMATS["F32"]) for name, shape in config.shapes().items()
    }
    head = weights["head.weight"]
    weights["head.weight"] = Tensor(head.name, head.shape, head.format, _louder(head.data))
    return weights


def _op_set(name: str) -> Ops:
    if name == "torch":
        from glassloop.ops.torch.ops import TorchOps

        return TorchOps()
    return {"native": NativeOps, "reference": ReferenceOps, "ahead": AheadOps}[name]()


def _louder(data: np.ndarray) -> np.ndarray:
    """Random logits are all alike; these differ as a real model's do."""
    return (data.view(np.float32) * 6).view(data.dtype)


def with_adapters(transformer: Transformer) -> Transformer:
    """The same model, with the adapters "one" and "two" loaded."""
    rng = np.random.default_rng(4)
    for name in ("one", "two")[len(transformer.adapters.loaded) - 1 :]:
        transformer.load_adapter(random_adapter(rng, transformer.config, name))
    return transformer


def loop(transformer: Transformer, pages: int = 1000, **options: Any) -> Loop:
    memory = pages * transformer.page_bytes
    if transformer.cache_plan.states is not None:
        memory *= 2
    made = Loop(transformer, tokenizer(), tokenizer().piece, memory, **options)
    for number, adapter in enumerate(transformer.adapters.loaded):
        if adapter is not None:
            made.adapters.add(adapter.name, LoadedAdapter(number, adapter.sha256))
    return made


def request(prompt: list[int], sampling: Sampling, **options: Any) -> Request:
    def make(seed: int, number: int) -> Run:
        adapters = {} if sampling.adapter is None else {sampling.adapter: sampling.adapter}
        salt = 0 if sampling.beam_width > 1 else number
        return Run("small", prompt, seed, CONTEXT, sampling, salt, sample=number, adapters=adapters)

    built: Compiled | GlassloopError
    try:
        built = Compiled.of(sampling, 257, tokenizer())
    except GlassloopError as error:
        built = error
    return Request(prompt, sampling, runs_of(sampling, make), built=built, **options)


def finish(loop: Loop, *requests: Request) -> list[Run]:
    for each in requests:
        loop.add(each)
    while loop.busy:
        loop.step()
    return [run for each in requests for run in each.runs]


def check_held(loop: Loop) -> None:
    """Raises unless the tree is sound and every path belongs to a branch of a task that has not ended."""
    loop.tree.check_integrity()
    branches = [branch for task in loop.tasks for branch in task.branches]
    held = [branch.path for branch in branches] + [getattr(branch, "scratch", None) for branch in branches]
    assert loop.tree.paths == {path for path in held if path is not None}
    if not loop.busy:
        assert loop.tree.held == 0


def naive(
    transformer: Transformer, run: Run, forced: list[int] | None = None, of: Tokenizer | None = None
) -> Run:
    """What a run must be: for each token the whole text is computed anew."""
    sampling, texts = run.sampling, of or tokenizer()
    ops = transformer.ops.rows
    eos_ids = tuple(texts.eos_ids)
    size = transformer.config.vocab_size
    decoder = Decoder(sampling, size, run.seed, run.prompt_ids, run.salt, texts, eos_ids, ops)
    made = Run("naive", run.prompt_ids, run.seed, CONTEXT, sampling, run.salt)
    text = BranchText(Compiled.of(sampling, size, texts))
    stopper = Stopper(sampling, eos_ids, CONTEXT)
    tokens = list(run.prompt_ids)
    known = [None if adapter is None else adapter.name for adapter in transformer.adapters.loaded]
    adapter = known.index(sampling.adapter)
    while True:
        acting = [adapter] * len(tokens)
        logits = Branches(transformer, CONTEXT + 32).forward([(0, 0, tokens)], adapters=acting)[0]
        try:
            if forced is not None and len(made.tokens) < len(forced):
                chosen = decoder.record_forced(logits, forced[len(made.tokens)])
            else:
                chosen = decoder.choose(logits)
        except GlassloopError as error:  # stages at odds
            made.finish_reason, made.stop_reason = "error", str(error)
            break
        data = texts.token_bytes(chosen.id)
        stops = stopper.before(chosen.id)
        if stops and not sampling.include_stop:
            made.finish_reason, made.stop_reason = "stop", texts.piece(chosen.id)
            break
        decoder.commit(chosen.id, chosen)
        tokens.append(chosen.id)
        made.tokens.append(Token(chosen, text.feed(data, not stops), data, texts.piece))
        ending = text.ending or stopper.after(decoder.history, 0.0)
        if stops:
            made.finish_reason, made.stop_reason = "stop", texts.piece(chosen.id)
            break
        if ending:
            made.finish_reason, made.stop_reason = ending.reason, ending.detail
            break
    made.tail = text.flush()
    return made


def same(run: Run, expected: Run) -> bool:
    """Bit for bit: tokens, text, reasons and how it ended."""
    return (
        run.tokens == expected.tokens
        and run.text == expected.text
        and (run.finish_reason, run.stop_reason) == (expected.finish_reason, expected.stop_reason)
    )
