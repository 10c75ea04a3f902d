"""Drafts by masks: the model itself proposes the next tokens of a run by filling masks behind its text.

One pass computes the run's last token, whose logits give the next token exactly, and masks for the tokens
after it, which are guesses. The next step compares them with what the run itself chooses, so the output is
the same as without drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from glassloop.decode.decoder import Decoder
from glassloop.engine.drafting.draft_model import PASS_ROWS, ModelGuesser
from glassloop.engine.drafting.drafts import StepCost
from glassloop.engine.tasks.masked import Mask
from glassloop.engine.tree import KVPath, KVTree, NoRoom
from glassloop.errors import GlassloopError
from glassloop.model.transformer import Transformer
from glassloop.ops.batch import Batch
from glassloop.ops.quant import Float32
from glassloop.record.run import Run
from glassloop.record.token import Drafter

MOST_MASKS = 8  # of one draft: farther ones are seldom right


class MaskGuesser(ModelGuesser):
    """Guesses what masks behind a run's text are filled with."""

    name: Drafter = "masks"

    @property
    def wanted(self) -> int:
        """How many tokens the draft should have."""
        return min(self._count, 1 + MOST_MASKS)


class MaskDrafts:
    """Makes the drafts of all runs of an engine; it takes the place of a draft model."""

    def __init__(self, transformer: Transformer, tree: KVTree, mask: Mask) -> None:
        self.transformer = transformer
        self.tree = tree
        self.mask = mask
        self.seconds = 0.0  # that one token of a draft takes, its share of a pass
        self.asked: list[ModelGuesser] = []  # those that want a draft for the next step

    def guesser(self, run: Run, decoder: Decoder, step_cost: StepCost) -> MaskGuesser:
        return MaskGuesser(self, run, decoder, step_cost)

    def make_drafts(self) -> None:
        """Makes the drafts that were asked for, in one forward pass. A run whose text is not in the tree, or
        for which there is no room, gets none."""
        asked, self.asked = self.asked, []
        drafts = [each for each in asked if isinstance(each, MaskGuesser) and each.begin()]
        if not drafts:
            return
        began, paths = perf_counter(), list[KVPath]()
        try:
            self._fill(drafts, paths)
        except GlassloopError:
            pass  # the runs go on without drafts
        finally:
            for path in paths:
                self.tree.release(path)
        for draft in drafts:
            draft.run.drafts.seconds += (perf_counter() - began) / len(drafts)

    def _fill(self, drafts: Sequence[MaskGuesser], paths: list[KVPath]) -> None:
        ready, spans, positions, reach, adapters = [], [], list[int](), list[int](), list[int]()
        began, room = perf_counter(), PASS_ROWS
        for draft in drafts:
            known = len(draft.text) - 1
            count = min(draft.wanted, room)
            if count < 1 or draft.run.sampling.adapter is not None:
                continue
            plain = self.tree.match(draft.text, known, realm=draft.realm)
            paths.append(plain)
            if plain.length < known:
                continue
            try:
                path = self.tree.scratch(plain)
                paths.append(path)
                self.tree.reserve(path, known + count)
            except NoRoom:
                continue
            end = known + count
            spans.append((path.table, known, [draft.text[-1], *[self.mask.token] * (count - 1)]))
            positions += range(known, end)
            reach += [known + 1, *[end] * (count - 1)]
            adapters += [0, *[self.mask.adapter] * (count - 1)]
            ready.append((draft, count))
            room -= count
        if not ready:
            return
        batch = Batch.of(spans, [len(rows) for _, _, rows in spans])
        batch = batch._replace(positions=positions, reach=reach, adapters=adapters if any(adapters) else ())
        logits = self.transformer.ops.host(self.transformer.forward(batch, self.tree.pages))
        first = 0
        for draft, count in ready:
            self._guess(draft, logits[first : first + count])
            first += count
        seconds = (perf_counter() - began) / first
        self.seconds = 0.8 * (self.seconds or seconds) + 0.2 * seconds

    def _guess(self, draft: MaskGuesser, rows: Float32) -> None:
        """Chooses a token from each row, with the luck and the stages of the run."""
        for row in rows:
            try:
                chosen = draft.decoder.choose(row)
            except Exception:  # of a stage or grammar; the run itself will meet it, or choose otherwise
                return
            if not draft.add(chosen):
                return
