"""A language that can be enumerated: the small model, restricted to a few letters and the end."""

from __future__ import annotations

from itertools import product

import numpy as np
from engine.random_runs import SmallLLM
from engine.small import EOS

from glassloop import Sampling
from glassloop.engine.follow import complete
from glassloop.engine.request import Request
from glassloop.record.run import Run

LETTERS = (97, 98, 99)


def texts(length: int, with_end: bool = True) -> list[tuple[int, ...]]:
    """All texts of the letters: of this length, or shorter if the end is among the tokens."""
    full = list(product(LETTERS, repeat=length))
    if not with_end:
        return full
    return [each for shorter in range(length) for each in product(LETTERS, repeat=shorter)] + full


def given(llm: SmallLLM, prompt: list[int], text: tuple[int, ...], sampling: Sampling) -> Run:
    """The run that draws this text and, if it is shorter than the options allow, the end."""
    forced = [*text] if len(text) >= sampling.max_tokens else [*text, EOS]
    request = llm.prepare(prompt, sampling)
    made = Request(prompt, sampling, request.runs, forced=forced, drafts=False, built=request.built)
    complete(llm.engine, [made], progress=False)
    (run,) = made.runs
    assert run.error is None
    assert tuple(run.token_ids) == text
    assert (run.end is None) == (len(text) >= sampling.max_tokens)
    return run


def chi_square(observed: list[int], expected: np.ndarray) -> float:
    """The statistic, in standard deviations of its distribution; rare outcomes are put together."""
    order = np.argsort(expected)
    counts, means = np.array(observed, float)[order], expected[order]
    rare = means.cumsum() < 8
    if rare.any():
        counts = np.concatenate([[counts[rare].sum()], counts[~rare]])
        means = np.concatenate([[means[rare].sum()], means[~rare]])
    value, freedom = float(((counts - means) ** 2 / means).sum()), len(means) - 1
    return (value - freedom) / (2 * freedom) ** 0.5
