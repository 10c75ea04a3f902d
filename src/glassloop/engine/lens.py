"""The lenses: the attention of a token, what each layer would have said, and the neighbours of a token.

Everything is computed when it is asked for, by the engine's own model, over the same tree of keys and values
as everything else and in steps of bounded size. None of it is recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from glassloop.engine.deadline import Deadline, check_deadline
from glassloop.engine.logits import computed_after
from glassloop.engine.replay import check_run
from glassloop.errors import GlassloopError, TextError
from glassloop.model.lens import Lens
from glassloop.ops.quant import Float32
from glassloop.record.run import Run
from glassloop.util.check import check_count, check_text
from glassloop.util.shown import shown

if TYPE_CHECKING:
    from glassloop.engine.local import LocalEngine

NAMES = ("attention", "layers", "neighbours")
MOST = 1000  # candidates or neighbours that are listed
_TABLE_ROWS = 1024  # of the table of embeddings that are read at a time
_KEYS = 1 << 14  # keys that one step of attention reads: of a long text, those of a few layers
_DIGITS = 6  # of a weight in JSON

Text = Run | str | Sequence[int]


@dataclass(frozen=True)
class Piece:
    id: int
    text: str


@dataclass(frozen=True)
class AttentionWeights:
    """The attention of one token, in each head of each layer, to itself and to each token before it."""

    model: str
    ops: str
    token: int  # its place in the text
    tokens: tuple[Piece, ...]  # of the text, up to it
    weights: Float32  # [layers, heads, tokens]; over the tokens they sum to one

    @property
    def mean(self) -> Float32:
        """The mean weight over all heads of all layers. [tokens]"""
        found: Float32 = self.weights.mean(axis=(0, 1), dtype=np.float64).astype(np.float32)
        return found

    @property
    def elsewhere(self) -> Float32:
        """The mean without the first token, which takes the weight of heads that find nothing: shares of what
        is left for the others. [tokens]"""
        rest = self.mean.copy()
        rest[0] = 0
        total = float(rest.sum())
        if total:
            rest /= np.float32(total)
        return rest

    def strongest(self, place: int) -> tuple[int, int, float]:
        """Returns the layer and head, from 1, that attend most to a token, and how much."""
        here = self.weights[:, :, place]
        layer, head = divmod(int(here.argmax()), here.shape[1])
        return layer + 1, head + 1, float(here[layer, head])

    def layer(self, number: int) -> Float32:
        """Returns the weights of one layer, from 1. [heads, tokens]"""
        if not 1 <= number <= len(self.weights):
            raise GlassloopError.about("layer", f"is {number}; one from 1 to {len(self.weights)} is expected")
        heads: Float32 = self.weights[number - 1]
        return heads

    def to_dict(self, layer: int | None = None) -> dict[str, Any]:
        """Returns one layer, or all of them, as plain values."""
        shown = range(1, len(self.weights) + 1) if layer is None else [layer]
        return {
            "lens": "attention",
            **_head(self),
            "token": self.token,
            "tokens": [asdict(piece) for piece in self.tokens],
            "mean": _rounded(self.mean),
            "elsewhere": _rounded(self.elsewhere),
            "layers": [{"layer": each, "weights": _rounded(self.layer(each))} for each in shown],
        }

    def _repr_html_(self) -> str:
        """Returns it as a notebook shows it."""
        from glassloop.engine.lens_html import attention_parts
        from glassloop.util.html_text import view

        return view(*attention_parts(self), label="Attention")


@dataclass(frozen=True)
class Candidate:
    id: int
    text: str
    logprob: float


@dataclass(frozen=True)
class LayerPrediction:
    """The prediction of the language head from the hidden state after a layer; layer 0 is the embedding."""

    layer: int
    top: tuple[Candidate, ...]  # the likeliest first
    entropy: float  # in nats, over the whole vocabulary
    rank: int  # of the token that follows, from 1
    logprob: float  # of the token that follows


@dataclass(frozen=True)
class Layers:
    """The prediction of each layer for the token after a given one. The last layer's is the model's own."""

    model: str
    ops: str
    token: int  # its place in the text
    tokens: tuple[Piece, ...]  # of the text, up to it
    follows: Piece  # what comes after it in the text; at its end, the model's favourite
    given: bool  # whether that is in the text
    layers: tuple[LayerPrediction, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "lens": "layers",
            **_head(self),
            "token": self.token,
            "tokens": [asdict(piece) for piece in self.tokens],
            "follows": {**asdict(self.follows), "given": self.given},
            "layers": [asdict(said) | {"top": [asdict(one) for one in said.top]} for said in self.layers],
        }

    def _repr_html_(self) -> str:
        """Returns it as a notebook shows it."""
        from glassloop.engine.lens_html import layers_parts
        from glassloop.util.html_text import view

        return view(*layers_parts(self), label="The prediction of each layer")


@dataclass(frozen=True)
class Neighbour:
    id: int
    text: str
    cosine: float


@dataclass(frozen=True)
class Neighbours:
    """The tokens whose embeddings point most nearly the same way as that of a token, or as the mean of a
    text's tokens."""

    model: str
    ops: str
    of: tuple[Piece, ...]
    found: tuple[Neighbour, ...]  # the nearest first; never those that were asked about

    def to_dict(self) -> dict[str, Any]:
        return {
            "lens": "neighbours",
            **_head(self),
            "of": [asdict(piece) for piece in self.of],
            "neighbours": [asdict(one) for one in self.found],
        }

    def _repr_html_(self) -> str:
        """Returns it as a notebook shows it."""
        from glassloop.engine.lens_html import neighbours_parts
        from glassloop.util.html_text import view

        return view(*neighbours_parts(self), label="Neighbours")


class Lenses:
    def __init__(self, llm: LocalEngine) -> None:
        self._llm = llm
        self._lens = Lens(llm.transformer)

    def attention(
        self, text: Text, token: int | str = -1, *, deadline: Deadline | None = None
    ) -> AttentionWeights:
        """Returns the attention of a token of a run, a text or a list of token ids. The token is given by its
        place, from 0 (from the end if negative), or by its text: then the last such one is meant."""
        check_deadline(deadline)
        llm, (ids, at) = self._llm, self._place(text, token)
        seen, count = ids[: at + 1], len(llm.config.layers)
        each = max(1, _KEYS // len(seen))
        parts, adapter = [], self._adapter(text, at)
        for first in range(0, count, each):
            compute = partial(self._lens.attention, layers=range(first, min(first + each, count)))
            parts.append(computed_after(llm.engine, seen, at, compute, deadline, adapter))
        return AttentionWeights(llm.name, llm.op_set, at, self._pieces(seen), np.concatenate(parts))

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
        given = at + 1 < len(ids)
        follows = ids[at + 1] if given else int(ops.highest(logits[-1], 1)[0][0])
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
        return Layers(llm.name, llm.op_set, at, pieces, last, given, tuple(layers))

    def neighbours(self, of: int | str, count: int = 10, *, deadline: Deadline | None = None) -> Neighbours:
        """Returns the tokens nearest to a token id, or to a text: " king" and "king" are two tokens."""
        check_deadline(deadline)
        check_count("count", count, 1, MOST)
        llm, size = self._llm, self._llm.config.vocab_size
        if isinstance(of, str):
            ids = llm.tokenizer.encode(check_text("of", of), add_special=False)
        else:
            ids = [llm.checked_id(of, "of")]
        if not ids:
            raise TextError.about("of", "is empty; at least one token is expected")
        mean = self._mean(ids, deadline)
        mean /= max(float(np.linalg.norm(mean)), 1e-30)
        cosines = np.concatenate([units @ mean for units in self._units(range(size), deadline)])
        cosines[ids] = -np.inf
        best, values = llm.transformer.ops.rows.highest(cosines, min(count, size - len(set(ids))))
        found = [
            Neighbour(int(id), llm.piece(int(id)), float(value))
            for id, value in zip(best, values, strict=True)
        ]
        return Neighbours(llm.name, llm.op_set, self._pieces(ids), tuple(found))

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
        self._llm.check_length(at + 1)
        return ids, at

    def _ids(self, text: Text) -> list[int]:
        llm = self._llm
        if isinstance(text, Run):
            check_run(llm, text)
            ids = [*text.prompt_ids, *text.token_ids]
        elif isinstance(text, str):
            ids = llm.tokenizer.encode(check_text("text", text))
        else:
            ids = llm.checked(text, "text")
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


def _head(seen: AttentionWeights | Layers | Neighbours) -> dict[str, str]:
    return {"model": seen.model, "ops": seen.ops}


def _rounded(values: Float32) -> Any:
    return np.round(values.astype(np.float64), _DIGITS).tolist()
