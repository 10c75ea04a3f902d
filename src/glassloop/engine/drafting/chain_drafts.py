"""Drafts by the model's own drafter (`model/drafter.py`): after a step, a chain of tokens is drawn for each
run from what the model has computed of it, with the run's own luck, in one call of C for all runs.

The chances that drafts are right are learned while they are used, by the margin with which a draft led. They
decide when a chain stops, whether the n-gram lookup is asked instead, and whether drafts pay at all."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import numpy as np

from glassloop.decode.decoder import Decoder
from glassloop.decode.luck import branch_key
from glassloop.engine.branch import Branch
from glassloop.engine.drafting.guesser import DraftSource, guess_room
from glassloop.engine.drafting.lookup import Lookup
from glassloop.engine.step_cost import tracked
from glassloop.engine.tree import KVTree
from glassloop.errors import GlassloopError
from glassloop.ops.batch import Batch, Int32, Span
from glassloop.ops.drafting import ChainRequest, DraftChain, Drawn
from glassloop.ops.quant import Float32
from glassloop.record.run import Run
from glassloop.record.token import Drafter

_LONGEST = 6  # drafts in a chain, at most: later ones are seldom right
_MOST_RUNS = 16  # chains that are drawn in one call, at most
_MOST_ROWS = 2  # of a step that chains are drawn for: with more streams, rows of drafts cost what they save
_NEXT_CHANCE = 0.8  # the chance that the draft after this one is right, as long as its margin is not known
_FIRST_CHANCES = (0.25, 0.35, 0.45, 0.5, 0.6, 0.7, 0.8, 0.95)  # the chances to begin with, by class of margin
_LEAST_GAIN = 1.05  # times as many tokens per second must be expected of drafts: estimates are rough
_FIRST_CHAINS = 48  # chains that are drawn in any case, to learn what they cost and how often they are right
_TRIED_LENGTHS = 4  # these first chains have the lengths 1 to this, in turn
_PLANNED_EVERY = 8  # steps between two decisions on whether drafts pay
_TRIED_EVERY = 16  # steps between two chains while drafts do not pay
_NOTHING = Drawn([], [], 0)


class Chances:
    """How often drafts are right: by the class of their margin, and on average."""

    def __init__(self, like: Chances | None = None, speed: float = 0.01) -> None:
        self.by_margin: list[float] = list(_FIRST_CHANCES if like is None else like.by_margin)
        self.average: float = 0.5 if like is None else like.average
        self._speed = speed

    def saw(self, margin: int, right: bool) -> None:
        self.by_margin[margin] += self._speed * (right - self.by_margin[margin])
        self.average += self._speed * (right - self.average)


class ChainDrafts(DraftSource):
    """The drafter of an engine, shared by all of its runs."""

    waits_for_tokens = True
    reads_states = True

    def __init__(self, chain: DraftChain, tree: KVTree) -> None:
        super().__init__()
        self.due: list[ChainGuesser] = []  # the guessers whose run got a token in this step
        self.seconds = 0.0  # that one draft takes, its share of a call
        self.chains = 0  # that were drawn so far
        self.most = min(_LONGEST, chain.most)
        self.chances = {greedy: Chances() for greedy in (True, False)}  # of all runs so far
        self._chain = chain
        self._tree = tree

    def guesser(self, run: Run, decoder: Decoder, owner: str, realm: str) -> ChainGuesser:
        return ChainGuesser(self, run, decoder, owner)

    def after_step(self) -> None:
        """Draws the chains of the runs that got a token in this step, where that pays."""
        due, self.due = self.due, []
        began = perf_counter()
        guessers = [guesser for guesser in due if guesser.begin()][:_MOST_RUNS]
        if not guessers:
            return
        started = perf_counter()
        rows = range(len(guessers))
        positions = [guesser.length - 2 for guesser in guessers]
        batch = Batch(
            [guesser.tokens[-1] for guesser in guessers],
            positions,
            [Span(row, row + 1, positions[row], guessers[row].table) for row in rows],
            list(rows),
        )
        states = np.stack([guesser.state for guesser in guessers])
        requests = [guesser.request for guesser in guessers]
        try:
            chains = self._chain.draw(batch, self._tree.pages, states, requests)
        except GlassloopError:
            return  # the runs go on without drafts
        now = perf_counter()
        self.chains += len(chains)
        count = sum([len(chain.tokens) for chain in chains])
        if count:
            self.seconds = tracked(self.seconds, (now - started) / count)
        for guesser, chain in zip(guessers, chains, strict=True):
            guesser.drawn = chain
            guesser.run.drafts.seconds += (now - began) / len(guessers)


class ChainGuesser:
    """Guesses for one run: by the n-gram lookup where that is surer, else by a chain."""

    def __init__(self, drafts: ChainDrafts, run: Run, decoder: Decoder, owner: str) -> None:
        self.run = run
        self.name: Drafter = "model"
        self.length = 0  # of the text that the drafts follow
        self.drawn = _NOTHING
        self.state: Float32 = np.empty(0, np.float32)  # hidden, of the last row that was computed
        self.request: ChainRequest
        self._drafts = drafts
        self._decoder = decoder
        self._branch: Branch | None = None
        self._lookup = Lookup(drafts.step_cost, drafts.recent_runs.of(owner))
        self._looked_up: list[int] = []  # the guess of the lookup, if that is surer
        self._shared = drafts.chances[run.sampling.greedy]
        self._chances = Chances(self._shared, speed=0.05)
        self._silent = 0
        # How chains are drawn at present, and what that was decided for: the drafts and the rows of a step.
        self._planned_for = 0, 0
        self._plan_age = 0  # in steps
        self._best = 0.0  # tokens per second with drafts
        self._pays = False
        self._keep: list[float] = []
        self._following: list[float] = []

    @property
    def is_own(self) -> bool:
        return not self._looked_up or self._lookup.is_own

    @property
    def tokens(self) -> Sequence[int]:
        assert self._branch is not None
        return self._branch.tokens

    @property
    def table(self) -> Int32:
        assert self._branch is not None and self._branch.path is not None
        return self._branch.path.table

    def begin(self) -> bool:
        """Begins the next guess; returns whether a chain is to be drawn for it."""
        branch, drafts, costs = self._branch, self._drafts, self._drafts.step_cost
        self._looked_up = []
        if branch is None or self.run.finish_reason is not None:
            return False
        tokens, path = branch.tokens, branch.path
        self.length = len(tokens)
        room = guess_room(self.run, self.length)
        # Known tokens come first if the history does not end with the text.
        if room < 1 or len(self._decoder.history) != self.length:
            return False
        rate, guess = self._lookup.propose(tokens, room)
        most = min(room, drafts.most)
        if self._planned_for != (most, costs.rows) or self._plan_age == _PLANNED_EVERY:
            self._make_plan(most)
        self._plan_age += 1
        if guess and rate >= self._best:
            self._looked_up, self.name = guess, "lookup"
            return False
        if path is None or path.length != self.length - 1 or costs.rows > _MOST_ROWS:
            return False
        keep, following = self._keep, self._following
        if drafts.chains < _FIRST_CHAINS or not self._pays:
            self._silent += 1
            if drafts.chains >= _FIRST_CHAINS and self._silent % _TRIED_EVERY:
                return False
            # One that is drawn to learn what it costs and how often it is right: of any length.
            most = min(most, 1 + drafts.chains % _TRIED_LENGTHS)
            keep = following = [0.0] * most
        self.name = "model"
        step, sampling = self._decoder.step, self.run.sampling
        self.request = ChainRequest(
            None if sampling.greedy else branch_key(step.seed, step.salt),
            step.position,
            1.0 if sampling.greedy else 1.0 / sampling.temperature,
            most,
            self._chances.by_margin,
            keep,
            following,
        )
        return True

    def _make_plan(self, most: int) -> None:
        """Decides whether drafts pay at present, and how sure a chain of at most `most` drafts has to be."""
        drafts, costs = self._drafts, self._drafts.step_cost
        self._planned_for, self._plan_age = (most, costs.rows), 0
        plain = costs.rows / costs.cost(costs.rows)
        if costs.rows > _MOST_ROWS:
            self._best = plain  # of the lookup, any guess that is better than none
            return
        self._best, count = costs.best(self._chances.average, most, drafts.seconds)
        self._pays = count > 0 and self._best >= _LEAST_GAIN * plain
        extra = costs.row_costs(most)
        self._keep = [self._best * seconds for seconds in extra]
        # After the first draft the weights are in the processor's cache.
        later = 0.5 * drafts.seconds
        self._following = [self._best * (seconds + later) / _NEXT_CHANCE for seconds in (*extra[1:], 0.0)]

    def guess(self, tokens: Sequence[int], room: int) -> list[int]:
        if len(tokens) != self.length:
            return []
        if self._looked_up:
            return self._looked_up[:room]
        count, costs = self.drawn.kept, self._drafts.step_cost
        if count < len(self.drawn.tokens) and costs.cost(costs.rows + count + 1) <= costs.cost(
            costs.rows + count
        ):
            count += 1  # the draft that was not worth a row gets one for nothing
        return self.drawn.tokens[: min(count, room)]

    def learn(self, branch: Branch, place: int) -> None:
        self._lookup.learn(branch, place)
        for token, margin, came in zip(
            self.drawn.tokens, self.drawn.margins, branch.tokens[self.length :], strict=False
        ):
            for chances in (self._chances, self._shared):
                chances.saw(margin, token == came)
            if token != came:
                break
        self.drawn, self._looked_up, self.length = _NOTHING, [], 0
        assert self._drafts.states is not None
        self._branch, self.state = branch, self._drafts.states[place]
        self._drafts.due.append(self)
