"""Runs of the small model with any mixture of options, forks and beams among them."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from engine.small import EOS, loop, model

from glassloop.api.llm import LLM
from glassloop.decode.chain import DEFAULT_ORDER
from glassloop.decode.sampling import Sampling
from glassloop.engine.loading import LoadedModel
from glassloop.engine.local import LocalModel
from glassloop.model.transformer import Transformer

PROMPT = list(b"the quick brown fox jumps over the lazy dog")


class SmallLLM(LLM):
    """An LLM around the small model: everything but the files."""

    def __init__(self, ops: str = "native", seed: int = 0, transformer: Transformer | None = None) -> None:
        made = loop(transformer or model(None, ops, seed))
        LocalModel.__init__(self, LoadedModel("small", made))
        self.model_hash = f"{seed:064x}"  # type: ignore[misc]


@cache
def small_llm(ops: str = "native", seed: int = 0) -> SmallLLM:
    return SmallLLM(ops, seed)


def random_sampling(rng: np.random.Generator, **fixed: Any) -> Sampling:
    """Every stage now and then, in its order or another."""
    given: dict[str, Any] = {"max_tokens": int(rng.integers(1, 40)), "seed": int(rng.integers(1000))}
    given["logprobs"] = int(rng.integers(0, 25))

    def now_and_then(chance: float = 0.25, **options: Any) -> None:
        if rng.random() < chance:
            given.update(options)

    now_and_then(0.6, temperature=float(rng.choice([0.0, 0.3, 0.7, 1.5, 3.0])))
    now_and_then(top_k=int(rng.integers(1, 60)))
    now_and_then(top_p=float(rng.uniform(0.1, 1)))
    now_and_then(min_p=0.05)
    now_and_then(typical_p=float(rng.uniform(0.2, 1)))
    now_and_then(top_n_sigma=float(rng.uniform(0.5, 3)))
    now_and_then(epsilon_cutoff=0.01)
    now_and_then(eta_cutoff=0.05)
    now_and_then(xtc_probability=0.5, xtc_threshold=0.05)
    now_and_then(mirostat_tau=float(rng.uniform(0.5, 6)), mirostat_eta=float(rng.choice([0.1, 0.5])))
    now_and_then(repetition_penalty=1.3)
    now_and_then(presence_penalty=0.4)
    now_and_then(frequency_penalty=0.3)
    now_and_then(no_repeat_ngram_size=2)
    now_and_then(dry_multiplier=0.8)
    now_and_then(logit_bias={EOS: float(rng.uniform(-2, 4)), 101: 1.5})
    now_and_then(bad_words=["e", "th"])
    now_and_then(min_tokens=min(5, given["max_tokens"]))
    now_and_then(0.1, allowed_token_ids=list(range(90, 257)))
    now_and_then(0.1, regex="[a-z ]{3,30}")
    now_and_then(stop=[chr(int(rng.integers(33, 127)))])
    now_and_then(include_stop=True)
    now_and_then(prompt_logprobs=3)
    now_and_then(0.2, stages=rng.permutation(DEFAULT_ORDER).tolist())
    return Sampling.from_dict({**given, **fixed})


def random_run(rng: np.random.Generator, llm: LLM | None = None, **fixed: Any):
    """A run to its end, whatever that is: one that stages at odds end with an error is a run too."""
    llm = llm or small_llm()
    prompt = rng.integers(0, 256, int(rng.integers(1, 40))).tolist() if rng.random() < 0.5 else PROMPT
    return llm.generate([prompt], random_sampling(rng, **fixed))[0]
