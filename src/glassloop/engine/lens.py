"""The lenses: the attention of a token, what each layer would have said, the experts that it took, and the
neighbours of a token.

Everything is computed when it is asked for, by the engine's own model, over the same tree of keys and values
as everything else and in steps of bounded size. None of it is recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from glassloop.engine.compatibility import check_run
from glassloop.engine.deadline import Deadline, check_deadline
from glassloop.engine.expert_routes import ChosenExpert, ExpertRoutes, LayerRoute
from glassloop.engine.lens_results import (
    AttentionWeights,
    Candidate,
    LayerPrediction,
    Layers,
    Neighbour,
    Neighbours,
    Piece,
    Text,
)
from glassloop.engine.local import LocalModel
from glassloop.engine.logits import computed_after
from glassloop.errors import ModelError, TextError
from glassloop.model.config import ExpertsConfig, ModelConfig
from glassloop.model.lens import Lens
from glassloop.ops.quant import Float32
from glassloop.record.run import Run
from glassloop.util.check import check_count, check_text
from glassloop.util.shown import shown

NAMES = ("attention", "layers", "experts", "neighbours")
MOST = 1000  # candidates or neighbours that are listed
_TABLE_ROWS = 1024  # of the table of embeddings that are read at a time
_KEYS = 1 << 14  # keys that one step of attention reads: of a long text, those of a few layers


def names_for(config: ModelConfig) -> list[str]:
    """Returns the lenses of a model."""
    has_experts = any(isinstance(layer.feed_forward, ExpertsConfig) for layer in config.layers)
    return [name for name in NAMES if has_experts or name != "experts"]


class Lenses:
    def __init__(self, llm: LocalModel) -> None:
        self._llm = llm
        self._lens = Lens(llm.transformer)

    def attention(
        self, text: Text, token: int | str = -1, *, deadline: Deadline | None = None
    ) -> AttentionWeights:
        """Returns the attention of a token of a run, a text or a list of token ids. The token is given by its
        place, from 0 (from the end if negative), or by its text: then the last such one is meant."""
        check_deadline(deadline)
        llm, (ids, at) = self._llm, self._place(text, token)
        context, count = ids[: at + 1], len(llm.config.attention_layers)
        each = max(1, _KEYS // len(context))
        parts, adapter = [], self._adapter(text, at)
        for first in range(0, count, each):
            compute = partial(self._lens.attention, layers=range(first, min(first + each, count)))
            parts.append(computed_after(llm.engine, context, at, compute, deadline, adapter))
        return AttentionWeights(llm.name, llm.op_set, at, self._pieces(context), np.concatenate(parts))

    def layers(
        self, text: Text, token: int | str = -1, count: int = 5, *, deadline: Deadline | None = None
    ) -> Layers:
        """Returns the prediction of each layer for the token after a given one."""
        check_deadline(deadline)
        check_count("count", count, 1, MOST)
        llm, (ids, at) = self._llm, self._place(text, token)
        ops = llm.transformer.ops.rows
        compute, adapter = self._lens.layers, self._adapter(text, at)
        logits: Float32 = computed_after(llm.engine, ids[: at + 1], at, compute, deadline, adapter)
        is_given = at + 1 < len(ids)
        follows = ids[at + 1] if is_given else int(ops.highest(logits[-1], 1)[0][0])
        layers = []
        for layer, row in enumerate(logits):
            summary = ops.summarize(row, count)
            top = [
                Candidate(int(id), llm.piece(int(id)), float(logit) - summary.log_sum_exp)
                for id, logit in zip(summary.ids, summary.logits, strict=True)
            ]
            logprob = float(row[follows]) - summary.log_sum_exp
            said = LayerPrediction(layer, tuple(top), summary.entropy, ops.rank_of(row, follows) + 1, logprob)
            layers.append(said)
        pieces, (last,) = self._pieces(ids[: at + 1]), self._pieces([follows])
        return Layers(llm.name, llm.op_set, at, pieces, last, is_given, tuple(layers))

    def experts(self, text: Text, token: int | str = -1, *, deadline: Deadline | None = None) -> ExpertRoutes:
        """Returns the experts that a token took in each layer that has some."""
        check_deadline(deadline)
        llm, (ids, at) = self._llm, self._place(text, token)
        if not self._lens.routed_layers:
            raise ModelError(f"{llm.name} has no experts; a mixture of experts is expected")
        found: dict[int, Float32] = computed_after(
            llm.engine, ids[: at + 1], at, self._lens.experts, deadline, self._adapter(text, at)
        )
        routes = []
        for layer, route in found.items():
            numbers, weights = np.split(route, 2)
            chosen = (ChosenExpert(int(n), float(w)) for n, w in zip(numbers, weights, strict=True))
            feed_forward = llm.config.layers[layer].feed_forward
            assert isinstance(feed_forward, ExpertsConfig)
            routes.append(LayerRoute(layer + 1, tuple(chosen), feed_forward.routing.experts))
        return ExpertRoutes(llm.name, llm.op_set, at, self._pieces(ids[: at + 1]), tuple(routes))

    def neighbours(self, of: int | str, count: int = 10, *, deadline: Deadline | None = None) -> Neighbours:
        """Returns the tokens nearest to a token id, or to a text: " king" and "king" are two tokens."""
        check_deadline(deadline)
        check_count("count", count, 1, MOST)
        llm, size = self._llm, self._llm.config.vocab_size
        if isinstance(of, str):
            ids = llm.tokenizer.encode(check_text("of", of), add_special=False)
        else:
            ids = [llm.requests.checked_id(of, "of")]
        if not ids:
            raise TextError.about("of", "is empty; at least one token is expected")
        mean = self._mean(ids, deadline)
        mean /= max(float(np.linalg.norm(mean)), 1e-30)
        cosines = np.concatenate([units @ mean for units in self._units(range(size), deadline)])
        cosines[ids] = -np.inf
        best, values = llm.transformer.ops.rows.highest(cosines, min(count, size - len(set(ids))))
        nearest = [
            Neighbour(int(id), llm.piece(int(id)), float(value))
            for id, value in zip(best, values, strict=True)
        ]
        return Neighbours(llm.name, llm.op_set, self._pieces(ids), tuple(nearest))

    def neighbours_in(
        self, text: Text, token: int | str = -1, count: int = 10, *, deadline: Deadline | None = None
    ) -> Neighbours:
        """Returns the tokens nearest to one of a run or a text."""
        ids, at = self._place(text, token)
        return self.neighbours(ids[at], count, deadline=deadline)

    def _adapter(self, text: Text, at: int) -> int:
        """Returns the number of the adapter that the token after this place of a run was drawn with."""
        if not isinstance(text, Run):
            return 0
        following = at + 1 - len(text.prompt_ids)
        drawn = text.drawn_with(following).sampling if following >= 0 else text.sampling
        return self._llm.adapter_number(drawn.adapter)

    def _mean(self, ids: Sequence[int], deadline: Deadline | None) -> Float32:
        """Returns the mean of some tokens' embeddings, each of length one. [dim]"""
        total: Float32 | None = None
        for units in self._units(ids, deadline):
            rows = units if total is None else np.concatenate([total[np.newaxis], units])
            total = np.add.reduce(rows, axis=0)  # row by row, so in any pieces the same
        assert total is not None
        mean: Float32 = total / np.float32(len(ids))
        return mean

    def _units(self, ids: Sequence[int], deadline: Deadline | None) -> Iterator[Float32]:
        """Yields rows of the table of embeddings, each of length one, some at a time. [tokens, dim]

        The table belongs to no branch, so the caller's own thread reads it, and the engine's steps go on.
        """
        for start in range(0, len(ids), _TABLE_ROWS):
            if deadline is not None:
                deadline.check()
            rows = self._lens.embeddings(ids[start : start + _TABLE_ROWS])
            lengths = np.linalg.norm(rows, axis=1, keepdims=True)
            yield rows / np.maximum(lengths, np.float32(1e-30))

    def _place(self, text: Text, token: int | str) -> tuple[list[int], int]:
        """Returns the ids of a text, checked, and the place of a token in it."""
        ids = self._ids(text)
        at = _find(token, [self._llm.piece(id) for id in ids])
        self._llm.requests.check_length(at + 1)
        return ids, at

    def _ids(self, text: Text) -> list[int]:
        llm = self._llm
        if isinstance(text, Run):
            check_run(llm, text)
            ids = [*text.prompt_ids, *text.token_ids]
        elif isinstance(text, str):
            ids = llm.tokenizer.encode(check_text("text", text))
        else:
            ids = llm.requests.checked(text, "text")
        if not ids:
            raise TextError.about("text", "is empty; at least one token is expected")
        return ids

    def _pieces(self, ids: Sequence[int]) -> tuple[Piece, ...]:
        return tuple(Piece(id, self._llm.piece(id)) for id in ids)


def _find(token: int | str, pieces: list[str]) -> int:
    """Returns the place of a token, given by its number or by its text; the last one if there are several."""
    if not isinstance(token, str):
        at = token + len(pieces) if isinstance(token, int) and token < 0 else token
        if not isinstance(at, int) or isinstance(at, bool) or not 0 <= at < len(pieces):
            problem = f"is {shown(token)}; a place from 0 to {len(pieces) - 1} is expected"
            raise TextError.about("token", problem)
        return at
    exact = [at for at, piece in enumerate(pieces) if piece == token]
    nearly = [at for at, piece in enumerate(pieces) if piece.strip() == token.strip()]
    if not exact + nearly:
        said = " ".join(map(repr, pieces[:40])) + (" …" if len(pieces) > 40 else "")
        raise TextError(f"token is {token!r}; one of the text's tokens is expected: {said}", field="token")
    return (exact or nearly)[-1]
