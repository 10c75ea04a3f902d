"""A draft model: a smaller model with the same tokens runs ahead. It draws with the run's own luck and
stages, so that it agrees wherever the two models nearly do.

After a step it makes the drafts of all runs that got a token: one batch a pass, in which each draft grows by
one token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from os import PathLike
from time import perf_counter
from typing import cast

from glassloop.decode.chosen import Chosen
from glassloop.decode.decoder import Decoder, choose_rows
from glassloop.engine.branch import Branch
from glassloop.engine.call_plan import CallPlan
from glassloop.engine.drafting.guesser import AcceptanceRates, DraftSource, guess_room
from glassloop.engine.kv_nodes import KVPath, NoRoom
from glassloop.engine.tree import KVTree
from glassloop.errors import GlassloopError
from glassloop.model.loader import ModelFiles
from glassloop.model.registry import fetch
from glassloop.model.transformer import Transformer
from glassloop.ops import choose_ops
from glassloop.ops.batch import Batch
from glassloop.ops.quant import Float32
from glassloop.record.run import Run
from glassloop.record.token import Drafter
from glassloop.text.tokenizer import Tokenizer

PASS_ROWS = 128  # of one forward pass: all streams wait meanwhile


class DraftModel(DraftSource):
    """The draft model of an engine, shared by all of its runs."""

    waits_for_tokens = True

    def __init__(self, transformer: Transformer, memory: int) -> None:
        super().__init__()
        self.transformer = transformer
        self.tree = KVTree(transformer, memory)
        self.seconds = 0.0  # that one token of a draft takes, its share of a pass
        self.due: list[ModelGuesser] = []  # the guessers that want a draft for the next step

    def guesser(self, run: Run, decoder: Decoder, owner: str, realm: str) -> ModelGuesser:
        return ModelGuesser(self, run, decoder, realm)

    def forget(self, run: str, texts: Iterable[Sequence[int]], realm: str) -> None:
        super().forget(run, texts, realm)
        for text in texts:
            self.tree.forget_text(text, realm)

    def after_step(self) -> None:
        """Makes the drafts that were asked for, pass by pass.

        A text that needs more rows than a pass has is computed in pieces, one a step; until all of it is in
        the tree its draft stays empty. So does a draft that finds no room in the tree.
        """
        began = perf_counter()
        due, self.due = self.due, []
        drafts = [guesser for guesser in due if guesser.begin()]
        paths: list[KVPath] = []
        try:
            for draft in drafts:
                paths.append(self.tree.match(draft.text, len(draft.text) - 1, realm=draft.realm))
            # Those with the least to compute come first: a long text must not keep the others from drafts.
            pairs = zip(drafts, paths, strict=True)
            growing = sorted(pairs, key=lambda pair: len(pair[0].text) - pair[1].length)
            while growing:
                growing = self._grow(growing)
        except GlassloopError:
            pass  # the runs go on without drafts, or with shorter ones
        finally:
            for path in paths:
                self.tree.release(path)
        for draft in drafts:
            draft.run.drafts.seconds += (perf_counter() - began) / len(drafts)

    def _grow(self, growing: Sequence[tuple[ModelGuesser, KVPath]]) -> list[tuple[ModelGuesser, KVPath]]:
        """Adds a token to each draft in one forward pass; returns those that want another one."""
        began, room = perf_counter(), PASS_ROWS
        spans, wanted, ready = [], [], []
        for draft, path in growing:
            missing = draft.draft[-1:] or draft.text[path.length :]
            rows, first = missing[:room], path.length
            if not rows:
                break
            try:
                self.tree.extend(path, rows)
            except NoRoom:
                continue
            room -= len(rows)
            spans.append((path, first, rows))
            wanted.append(int(len(rows) == len(missing)))
            if wanted[-1]:
                ready.append((draft, path))
        if not spans:
            return []
        batch = Batch.of([(path.table, first, rows) for path, first, rows in spans], wanted)
        plan = CallPlan(self.tree.take_copies(), batch)
        # Rows of logits have a shape and places, whatever else an op set's arrays are.
        logits = cast(Float32, plan.compute(self.transformer.forward, self.tree.pages))
        for path, _, _ in spans:
            self.tree.computed(path)
        chosen = choose_rows([draft.decoder for draft, _ in ready], logits)
        if len(batch.tokens) == len(spans):  # a row for each draft, and no text to catch up with
            seconds = (perf_counter() - began) / len(spans)
            self.seconds = 0.8 * (self.seconds or seconds) + 0.2 * seconds
        # An error of a stage or grammar ends the draft; the run itself will meet it, or choose otherwise.
        return [
            pair
            for pair, choice in zip(ready, chosen, strict=True)
            if not isinstance(choice, Exception) and pair[0].add(choice)
        ]


def load_draft(name: str | PathLike[str], tokenizer: Tokenizer, ops: str, memory: int) -> DraftModel:
    """Loads a model that can draft for one with this tokenizer."""
    files = ModelFiles(fetch(str(name)))
    theirs = files.tokenizer()
    if [theirs.piece(token) for token in range(theirs.vocab_size)] != [
        tokenizer.piece(token) for token in range(tokenizer.vocab_size)
    ]:
        raise GlassloopError(f"draft is {name}, whose vocabulary differs from that of {tokenizer.name}")
    return DraftModel(files.transformer(choose_ops(ops), None), memory)


class ModelGuesser:
    """Guesses what the draft model would have chosen next in one run."""

    name: Drafter = "model"
    is_own = True

    def __init__(self, model: DraftModel, run: Run, decoder: Decoder, realm: str) -> None:
        self.run = run
        self.realm = realm  # of its request
        self.text: Sequence[int] = ()  # of the run; it may have grown since the draft was made
        self.draft: list[int] = []
        self.decoder = decoder  # while a draft is made, a fork of the run's own
        self._own_decoder = decoder
        self._model = model
        self._rates = AcceptanceRates()
        self._length = 0  # of the text that the draft follows
        self._count = 0  # of tokens that the draft should have
        self._silent = 0

    def begin(self) -> bool:
        """Begins a draft, if one is worth its time; returns whether it is."""
        self._length, context = len(self.text), self._model.transformer.config.context
        room = min(guess_room(self.run, self._length), context - self._length)
        scored = len(self._own_decoder.history) == self._length  # else known tokens come first
        if self.run.finish_reason is not None or not scored or room < 1:
            return False
        self._count = self._model.step_cost.worth(self._rates.of(0), room, self._model.seconds)
        if self._count == 0:
            # Now and then one is made all the same: times change.
            self._silent += 1
            if self._silent % 32:
                return False
            self._count = 1
        self.decoder = self._own_decoder.fork()
        return True

    def add(self, chosen: Chosen) -> bool:
        """Appends a token to the draft; returns whether another one is wanted."""
        self.draft.append(chosen.id)
        if len(self.draft) == self._count or self.decoder.ends_with(chosen.id):
            return False
        try:
            self.decoder.commit(chosen.id, chosen)
        except Exception:  # of the grammar; the run itself will meet it, or choose otherwise
            return False
        return True

    def guess(self, tokens: Sequence[int], room: int) -> list[int]:
        return self.draft[:room] if len(tokens) == self._length else []

    def learn(self, branch: Branch, place: int) -> None:
        tokens = branch.tokens
        for guessed, came in zip(self.draft, tokens[self._length :], strict=False):
            self._rates.saw(0, guessed == came)
            if guessed != came:
                break
        self.text, self.draft = tokens, []
        self._model.due.append(self)
