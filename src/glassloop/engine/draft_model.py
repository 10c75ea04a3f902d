"""A draft model: a smaller model with the same tokens runs ahead. It draws with the run's own luck and
stages, so that it agrees wherever the two models nearly do."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from time import perf_counter

from glassloop.decode.decoder import Decoder
from glassloop.engine.drafts import Chances, Pace
from glassloop.engine.tree import KVTree, NoRoom, Path
from glassloop.errors import GlassloopError
from glassloop.model.loader import ModelFiles
from glassloop.model.registry import fetch
from glassloop.model.transformer import Transformer
from glassloop.ops import choose_ops
from glassloop.ops.batch import Batch
from glassloop.ops.quant import Float32
from glassloop.text.tokenizer import Tokenizer
from glassloop.trace.token import Drafter

_AT_ONCE = 128  # tokens of a prompt that are computed in one step


class DraftModel:
    """Shared by all runs of an engine."""

    def __init__(self, transformer: Transformer, memory: int) -> None:
        self.transformer = transformer
        self.tree = KVTree(transformer, memory)
        self.seconds = 0.0  # that a token of it takes

    def guesser(self, pace: Pace) -> ModelGuesser:
        """For one run."""
        return ModelGuesser(self, pace)

    def forward(self, path: Path, tokens: Sequence[int]) -> Float32:
        """Logits after these tokens."""
        began = perf_counter()
        first = path.length
        self.tree.extend(path, tokens)
        logits: Float32 = self.transformer.forward(Batch.of([(path.table, first, tokens)]), self.tree.pages)
        self.tree.computed(path)
        if len(tokens) == 1:
            took = perf_counter() - began
            self.seconds = 0.8 * (self.seconds or took) + 0.2 * took
        row: Float32 = logits[0]
        return row


def load_draft(name: str | PathLike[str], tokenizer: Tokenizer, ops: str, memory: int) -> DraftModel:
    """A model that drafts for one with this tokenizer."""
    files = ModelFiles(fetch(str(name)))
    theirs = files.tokenizer()
    if [theirs.piece(token) for token in range(theirs.vocab_size)] != [
        tokenizer.piece(token) for token in range(tokenizer.vocab_size)
    ]:
        raise GlassloopError(f"draft is {name}, whose tokens are not those of {tokenizer.name}")
    return DraftModel(files.transformer(choose_ops(ops), None), memory)


class ModelGuesser:
    name: Drafter = "model"

    def __init__(self, model: DraftModel, pace: Pace) -> None:
        self._model = model
        self._pace = pace
        self._chances = Chances()
        self._made: tuple[list[int], int] = ([], 0)  # the guess, and the length when it was made
        self._silent = 0

    def guess(self, tokens: Sequence[int], room: int, decoder: Decoder) -> list[int]:
        count = self._pace.worth(self._chances.of(0), room, self._model.seconds)
        if count == 0:
            # Now and then one is made all the same: times change.
            self._silent += 1
            if self._silent % 32 or room < 1:
                return []
            count = 1
        guess = self._run_ahead(tokens, count, decoder.fork())
        self._made = guess, len(tokens)
        return guess

    def _run_ahead(self, tokens: Sequence[int], count: int, decoder: Decoder) -> list[int]:
        tree = self._model.tree
        path = tree.match(tokens, len(tokens) - 1)
        guess: list[int] = []
        try:
            pending = list(tokens[path.length :])
            if len(pending) > _AT_ONCE:  # of a long prompt some in each step: all streams wait meanwhile
                self._model.forward(path, pending[:_AT_ONCE])
                return []
            while True:
                logits = self._model.forward(path, pending)
                guess.append(decoder.choose(logits).id)
                if len(guess) == count or decoder.ends_with(guess[-1]):
                    return guess
                decoder.commit(guess[-1])
                pending = guess[-1:]
        except (NoRoom, GlassloopError):
            return guess  # a stage or a grammar that has nothing left here will say so to the run itself
        finally:
            tree.release(path)

    def learn(self, tokens: Sequence[int]) -> None:
        guess, length = self._made
        for guessed, came in zip(guess, tokens[length:], strict=False):
            self._chances.saw(0, guessed == came)
            if guessed != came:
                break
        self._made = [], 0
