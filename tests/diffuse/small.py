"""The small model with a random adapter for masked rows, and the naive way to fill masks: every pass computes
the whole text anew, alone, without a cache that is shared."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from engine.random_runs import SmallLLM
from engine.small import CONTEXT, tokenizer
from ops.random_adapters import random_adapter

from glassloop.decode.compiled import Compiled
from glassloop.decode.decoder import Decoder
from glassloop.decode.diffusion import Diffusion
from glassloop.decode.stop import stop_ids
from glassloop.diffuse.filling import Filling
from glassloop.diffuse.masked_rows import MaskedRows
from glassloop.engine.tasks.masked import Mask, Pass
from glassloop.model.cache import Branches
from glassloop.model.transformer import Transformer
from glassloop.ops.batch import Batch
from glassloop.ops.quant import Float32
from glassloop.record.run import Run

MASK = 0


class MaskedLLM(SmallLLM):
    def __init__(self, ops: str = "native") -> None:
        super().__init__(ops)
        adapter = random_adapter(np.random.default_rng(5), self.config, "holes")
        vector = np.random.default_rng(6).standard_normal(self.config.dim).astype(np.float32)
        self.load_holes(replace(adapter, embedding=vector, mask_token=MASK))


@cache
def masked_llm(ops: str = "native") -> MaskedLLM:
    return MaskedLLM(ops)


def naive_logits(model: Transformer, rows: MaskedRows, made: Pass) -> Float32:
    """The logits of a pass, from one batch that has the whole text and nothing else."""
    tokens = [*rows.tokens, *(row.id for row in rows.kept), *(row.id for row in made.rows)]
    plain = len(rows.tokens)
    own = [*rows.kept, *made.rows]
    positions = [*range(plain), *(row.position for row in own)]
    end = len(tokens)
    reach = [*range(1, plain + 1)]
    reach += [end if row.sees_all else plain + place + 1 for place, row in enumerate(own)]
    adapters = [*[0] * plain, *(row.adapter for row in own)]
    cache = Branches(model, CONTEXT + 64)
    batch: Batch = cache.batch([(0, 0, tokens)])
    batch = batch._replace(
        positions=positions,
        reach=reach,
        adapters=adapters if any(adapters) else (),
        wanted=[*range(len(tokens) - made.wanted, len(tokens))],
    )
    found: Float32 = np.array(model.ops.host(model.forward(batch, cache.pages)))
    return found


def naive_text(llm: SmallLLM, run: Run, options: Diffusion, mask: Mask | None = None) -> list[int]:
    """What diffusion must write, without revision: the ids of the blocks, up to the end."""
    mask = mask or llm.mask
    decoder = _decoder(llm, run, (mask.token,))
    ids: list[int] = []
    passes = 0
    while len(ids) < run.sampling.max_tokens:
        left = min(run.sampling.max_tokens, CONTEXT - len(run.prompt_ids)) - len(ids)
        width = min(options.block, left)
        rows = MaskedRows([*run.prompt_ids, *ids], width, [], mask)
        filling = Filling(width, options, decoder, mask.token, len(ids), passes)
        while not filling.is_full:
            found = naive_logits(llm.transformer, rows, rows.of_pass(filling.places))
            filling.advance(rows.logits(found, filling.places))
        passes += len(filling.records)
        for token in filling.places:
            assert token is not None
            if token in stop_ids(run.sampling, llm.tokenizer.eos_ids):
                return ids
            ids.append(token)
            decoder.commit(token)
    return ids


def _decoder(llm: SmallLLM, run: Run, never: tuple[int, ...]) -> Decoder:
    eos: Any = tuple(tokenizer().eos_ids)
    compiled = Compiled.of(run.sampling, 257, tokenizer())
    ops = llm.transformer.ops.rows
    return Decoder(
        run.sampling, 257, run.seed, run.prompt_ids, run.salt, tokenizer(), eos, ops, compiled, never
    )
