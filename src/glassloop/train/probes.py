"""What a model has learned so far, in numbers: which embeddings are close to each other, and whether it knows
where texts end. The trainer records them at each validation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from glassloop.train.batches import Range
from glassloop.train.gradient_ops import SequenceBatch
from glassloop.train.network import Network
from glassloop.train.token_files import TokenFiles

_MOST_DOCUMENTS = 16


class EndProbability(NamedTuple):
    """The mean probability of the end of the text."""

    at_ends: float  # where a document does end
    elsewhere: float


def neighbours(network: Network, token_id: int, count: int = 5) -> list[tuple[int, float]]:
    """Returns the tokens whose embeddings have the largest cosine with a token's, and the cosines."""
    with torch.no_grad():
        table = torch.nn.functional.normalize(network.weights["token_embedding.weight"].float(), dim=-1)
        cosines = table @ table[token_id]
        cosines[token_id] = -2.0
        values, ids = cosines.topk(min(count, len(cosines) - 1))
    return list(zip(ids.tolist(), values.tolist(), strict=True))


def end_probability(
    network: Network, files: TokenFiles, ranges: Sequence[Range], ends: Sequence[int], length: int
) -> EndProbability | None:
    """Returns how probable the model finds the end at the last `length` tokens of some documents; None if no
    document ends with one of the tokens `ends`."""
    at_ends: list[float] = []
    elsewhere: list[float] = []
    for start, stop in ranges[:_MOST_DOCUMENTS]:
        tokens = files.read(max(start, stop - length), stop)[0]
        if len(tokens) < 2 or int(tokens[-1]) not in ends:
            continue
        inputs = torch.from_numpy(tokens[:-1]).to(network.device)
        places = torch.arange(len(inputs), device=network.device)
        with torch.no_grad():
            logits = network.logits(SequenceBatch(inputs, places, 1, len(inputs)))
            probabilities = torch.softmax(logits.float(), -1)[:, list(ends)].sum(-1).tolist()
        at_ends.append(probabilities[-1])
        elsewhere += probabilities[:-1]
    if not at_ends:
        return None
    return EndProbability(sum(at_ends) / len(at_ends), sum(elsewhere) / max(1, len(elsewhere)))
