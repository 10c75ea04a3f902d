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
    raw: tuple[float, ...]  # log-probabilities of its tokens, the end included: the model's own,
    drawn: tuple[float, ...]  # and those of the draw


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

    def grow(ids: list[int], raw: tuple[float, ...], drawn: tuple[float, ...]) -> None:
        def add(ended: bool, raw: tuple[float, ...], drawn: tuple[float, ...]) -> None:
            text = bytes(ids).decode()
            found.append(Leaf(text, ended, float(np.exp(sum(drawn))), sum(raw), len(raw), raw, drawn))

        if len(ids) == LENGTH:
            add(False, raw, drawn)
            return
        logits = llm.logits([*prompt, *ids])[0].astype(np.float64)
        own = logits - np.logaddexp.reduce(logits)
        left = np.array([logits[LETTERS[0]], logits[LETTERS[1]], logits[end] + 2.0])
        chances = left - np.logaddexp.reduce(left)
        add(True, (*raw, float(own[end])), (*drawn, float(chances[2])))
        for letter, chance in zip(LETTERS, chances[:2], strict=True):
            grow([*ids, letter], (*raw, float(own[letter])), (*drawn, float(chance)))

    grow([], (), ())
    return found


def after_steps(all_leaves: list[Leaf], alpha: float, steps: int) -> dict[str, float]:
    """Returns how likely each text is after so many steps of Metropolis–Hastings on suffixes, from the matrix
    of all transitions."""
    size = len(all_leaves)
    moves = np.zeros((size, size))
    for one, old in enumerate(all_leaves):
        for other, new in enumerate(all_leaves):
            if one == other:
                continue
            for at in range(old.tokens):  # the place from which on the text is drawn anew
                if old.text[:at] != new.text[:at] or len(new.text) < at or at >= new.tokens:
                    continue
                there = np.exp(sum(new.drawn[at:])) / old.tokens
                back = np.exp(sum(old.drawn[at:])) / new.tokens
                ratio = np.exp(alpha * (new.logprob - old.logprob)) * back / there
                moves[one, other] += there * min(1.0, ratio)
        moves[one, one] = 1 - moves[one].sum()
    chances = np.array([leaf.probability for leaf in all_leaves]) @ np.linalg.matrix_power(moves, steps)
    texts: dict[str, float] = {}
    for leaf, chance in zip(all_leaves, chances, strict=True):
        texts[leaf.text] = texts.get(leaf.text, 0.0) + float(chance)
    return texts


def answers(all_leaves: list[Leaf], n: int, choose: Callable[[tuple[Leaf, ...]], Leaf]) -> dict[str, float]:
    """Returns how likely each text is as the answer of a method over n independent paths."""
    chances: dict[str, float] = {}
    for drawn in product(all_leaves, repeat=n):
        text = choose(drawn).text
        chances[text] = chances.get(text, 0.0) + float(np.prod([leaf.probability for leaf in drawn]))
    return chances
