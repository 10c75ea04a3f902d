"""A toy whose whole tree can be enumerated: the tiny random model, two letters and the end, three tokens.

`leaves` computes every text with its probability from the logits alone: no sampler, no engine requests.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import NamedTuple

import numpy as np

from glassloop import LLM, Sampling

LETTERS = tuple(b"ab")
LENGTH = 3


class Leaf(NamedTuple):
    text: str
    ended: bool  # by the end token, not by the number of tokens
    probability: float  # of being drawn
    logprob: float  # under the model's own distribution, the end token included
    tokens: int  # of which logprob is the sum


def options(llm: LLM, **others: object) -> Sampling:
    end = llm.tokenizer.eos_ids[0]
    # The random model hardly ever ends by itself; the bias makes the end as likely as a letter.
    allowed = (*LETTERS, end)
    return Sampling(
        temperature=1.0, allowed_token_ids=allowed, max_tokens=LENGTH, logit_bias={end: 2.0}, **others
    )


def leaves(llm: LLM, prompt: list[int]) -> list[Leaf]:
    end = llm.tokenizer.eos_ids[0]
    found: list[Leaf] = []

    def grow(ids: list[int], probability: float, logprob: float) -> None:
        text = bytes(ids).decode()
        if len(ids) == LENGTH:
            found.append(Leaf(text, False, probability, logprob, LENGTH))
            return
        logits = llm.logits([*prompt, *ids])[0].astype(np.float64)
        raw = logits - np.logaddexp.reduce(logits)
        left = np.array([logits[LETTERS[0]], logits[LETTERS[1]], logits[end] + 2.0])
        drawn = np.exp(left - np.logaddexp.reduce(left))
        found.append(Leaf(text, True, probability * drawn[2], logprob + raw[end], len(ids) + 1))
        for letter, chance in zip(LETTERS, drawn[:2], strict=True):
            grow([*ids, letter], probability * chance, logprob + raw[letter])

    grow([], 1.0, 0.0)
    return found


def answers(all_leaves: list[Leaf], n: int, choose: Callable[[tuple[Leaf, ...]], Leaf]) -> dict[str, float]:
    """Returns how likely each text is as the answer of a method over n independent paths."""
    chances: dict[str, float] = {}
    for drawn in product(all_leaves, repeat=n):
        text = choose(drawn).text
        chances[text] = chances.get(text, 0.0) + float(np.prod([leaf.probability for leaf in drawn]))
    return chances
