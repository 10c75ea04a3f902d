"""A block or a hole while it is filled: which places have tokens, and what each pass does with them.

It needs logits and nothing else, so it works over any model, and over a distribution that a test enumerates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from glassloop.decode.chain import check_needs_no_record
from glassloop.decode.chosen import Chosen
from glassloop.decode.decoder import Decoder, choose_rows
from glassloop.decode.diffusion import Diffusion
from glassloop.decode.luck import pass_salt
from glassloop.decode.sampling import Sampling
from glassloop.diffuse.select import Belief, select, to_take_back
from glassloop.errors import GlassloopError
from glassloop.ops.exact import exp_of
from glassloop.ops.quant import Float32
from glassloop.record.passes import Filled, PassRecord, Unfilled


def check_stages_can_fill(sampling: Sampling) -> None:
    """Raises if a request has a stage that cannot choose the tokens of masks."""
    check_needs_no_record(sampling, "diffusion fills places whose neighbours have none")


class Filling:
    """Fills `width` places after the tokens of a decoder's history.

    Each place is drawn with the stages of the request, its own position and the luck of its pass. To a stage,
    a place to the left that has no token yet is the mask token. Stages that follow the text (a grammar, bad
    words) need all of it, so with these the places are filled from left to right: several in a pass, but
    never one after a gap.
    """

    def __init__(
        self, width: int, options: Diffusion, decoder: Decoder, mask_token: int, at: int = 0, passes: int = 0
    ) -> None:
        """`at` is the place of the first one in the answer, `passes` the number of passes made before."""
        self.options = options
        self.at = at
        self.tokens: list[int | None] = [None] * width
        self.chosen: list[Chosen | None] = [None] * width
        self.confidence = [0.0] * width
        self.records: list[PassRecord] = []
        self._decoder = decoder
        self._mask_token = mask_token
        self._passes = passes
        self._unfilled: tuple[Unfilled, ...] = ()
        self._left = self._budget(width)
        self._ends = len(self.tokens)  # places from here on are after the end of the text
        step = decoder.step
        self.in_order = step.grammar is not None or step.bad_words is not None
        if self.in_order and options.revise:
            raise GlassloopError.about(
                "diffusion.revise",
                "is given with a constraint or bad words, which hold from left to right only",
            )

    def _budget(self, masks: int) -> int:
        return self.options.passes or masks

    @property
    def masks(self) -> list[int]:
        """The places without a token, as far as the text goes."""
        return [place for place in range(self._ends) if self.tokens[place] is None]

    @property
    def places(self) -> list[int | None]:
        """The tokens of all places, as far as the text goes; None is a mask."""
        return self.tokens[: self._ends]

    @property
    def is_full(self) -> bool:
        return None not in self.places

    def advance(self, logits: Float32) -> PassRecord:
        """Fills some of the masks: there is a row of logits for each of them, in order."""
        step, masks = self._decoder.step, self.masks
        if len(masks) != len(logits):
            raise GlassloopError(f"{len(logits)} rows of logits for {len(masks)} masks")
        salt = pass_salt(step.salt, self._passes)
        summaries = [step.ops.summarize(row, 1) for row in logits]
        beliefs = [
            Belief(exp_of(float(each.logits[0]) - each.log_sum_exp), each.entropy) for each in summaries
        ]
        wanted = select(beliefs, self.options, self._left, step.seed, salt)
        if self.in_order:
            rows, choices = self._fill_in_order(masks, wanted, logits, salt)
        else:
            rows, choices = wanted, self._fill(masks, wanted, logits, salt)
        filled = []
        for row, chosen in zip(rows, choices, strict=True):
            place = masks[row]
            self.tokens[place], self.chosen[place] = chosen.id, chosen
            self.confidence[place] = beliefs[row].confidence
            filled.append(
                Filled(self.at + place, chosen.id, *beliefs[row], chosen.raw_logprob, chosen.logprob)
            )
            if self._decoder.ends_with(chosen.id):
                self._ends = min(self._ends, place + 1)
        record = PassRecord(self._passes, self.at, len(self.tokens), self._unfilled, tuple(filled))
        self.records.append(record)
        self._unfilled = ()
        self._passes += 1
        self._left -= 1
        return record

    def _fill(self, masks: Sequence[int], rows: Sequence[int], logits: Float32, salt: int) -> list[Chosen]:
        """Draws a token for each of the chosen masks, none of which sees what the others drew."""
        places = {masks[row]: row for row in rows}
        walker, decoders, order = self._decoder.fork(salt), list[Decoder](), list[int]()
        for place, token in enumerate(self.tokens[: max(places) + 1]):
            if place in places:
                decoders.append(walker.fork())
                order.append(places[place])
            walker.commit(self._mask_token if token is None else token)
        chosen_by_row = {}
        for row, chosen in zip(order, choose_rows(decoders, logits, order), strict=True):
            if isinstance(chosen, Exception):
                raise chosen
            chosen_by_row[row] = chosen
        return [chosen_by_row[row] for row in rows]

    def _fill_in_order(
        self, masks: Sequence[int], wanted: Sequence[int], logits: Float32, salt: int
    ) -> tuple[list[int], list[Chosen]]:
        """Draws the first mask, and as many right after it as were chosen; each follows what was drawn."""
        walker, choices = self._decoder.fork(salt), list[Chosen]()
        for token in self.tokens[: masks[0]]:
            assert token is not None
            walker.commit(token)
        rows = list[int]()
        for row in range(len(masks)):
            if row and row not in wanted:
                break
            chosen = walker.choose(logits[row])
            rows.append(row)
            choices.append(chosen)
            if walker.ends_with(chosen.id):
                break
            walker.commit(chosen.id)
            if walker.finished:  # the grammar is complete: nothing can be added
                self._ends = masks[row] + 1
                break
        return rows, choices

    # ── revision ───────────────────────────────────────────────────────────────────────────────────────────

    def take_back(self, scores: Sequence[float] | None = None) -> None:
        """Takes tokens of a full block back, to be filled again. `scores` are the log-probabilities of its
        tokens from left to right; without them the confidence that each was filled with decides, by luck."""
        step, length = self._decoder.step, self._ends
        salt = pass_salt(step.salt, self._passes)
        scored = self.confidence[:length] if scores is None else [*scores]
        what = "confidence {:.3f}" if scores is None else "log-probability {:.2f} from the left"
        taken = []
        for place in to_take_back(scored, self.options, scores is None, step.seed, salt):
            token = self.tokens[place]
            assert token is not None
            taken.append(Unfilled(self.at + place, token, what.format(scored[place])))
            self.tokens[place] = self.chosen[place] = None
        # What was filled behind the end of the text is a part of it again if the end is taken back.
        self._ends = text_length(self.tokens, self._decoder.ends_with)
        self._unfilled, self._left = tuple(taken), self._budget(len(self.masks))


def text_length(tokens: Sequence[int | None], ends: Callable[[int], bool]) -> int:
    """Returns how many of the places belong to the text: all, or those up to a token that ends it."""
    for place, token in enumerate(tokens):
        if token is not None and ends(token):
            return place + 1
    return len(tokens)
