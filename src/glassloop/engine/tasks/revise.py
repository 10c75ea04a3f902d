"""Revision while writing: a sample that looks back, takes tokens back and goes on from there with other luck.

After each token the mean surprise of the last ones is compared with a threshold. If it is higher, the run has
gone astray: it ends where it is and stays in the tree, and a fork of it takes its place in the request. The
fork keeps the tokens before the most surprising one. The choices depend on the request alone, as always.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from math import log

from glassloop.decode.chosen import Chosen
from glassloop.decode.luck import fork_salt
from glassloop.engine.branching import revised
from glassloop.engine.request import Request
from glassloop.engine.tasks.context import TaskContext
from glassloop.engine.tasks.sample import Sample
from glassloop.record.run import Run
from glassloop.record.token import Refusal, Source, TakenBack, Token


class Revising(Sample):
    """A sample of a request with `revise`. It makes no drafts: each token is looked at before the next."""

    _makes_guesses = False

    def __init__(self, request: Request, run: Run, order: tuple[int, int], context: TaskContext) -> None:
        super().__init__(request, run, order, context)
        self._since = settled(run)
        self._look_back()  # a run that paused has not looked back from its last token

    def runs_ahead(self, beside: int) -> bool:
        """Returns False: the next token may be another one than that after the last."""
        return False

    def _take(self, chosen: Chosen, source: Source, refused: Refusal | None = None) -> None:
        super()._take(chosen, source, refused)
        if source == "forced":
            self._since = len(self.run.tokens)
        elif not self.ended:
            self._look_back()

    def _look_back(self) -> None:
        """Takes back what was written last, from the most surprising token on, if it is too surprising."""
        at = place_to_take_back(self.run, self._since)
        if at is not None:
            self._take_back(at)

    def _take_back(self, at: int) -> None:
        run, request = self.run, self.request
        position = len(run.prompt_ids) + at
        continued = revised(run, at, salt_after(run, at))
        run.tail = self._writer.text.flush()
        run.finish_reason, run.stop_reason = "cancelled", f"taken back to token {at}"
        for runs in (request.runs, run.samples):  # one list, unless another request began the run
            if run in runs:
                runs[runs.index(run)] = continued
        continued.samples = run.samples
        first = run.tokens[at]
        self._restore(continued)
        self._since = at
        self.branch.go_back(self._context.tree, position)
        request.tell_taken_back(run, TakenBack(first, continued, at, len(run.tokens) - at))


def settled(run: Run) -> int:
    """Returns how many tokens of a run are never taken back: those of a parent, and those that were
    forced."""
    forced = [place for place, token in enumerate(run.tokens, 1) if token.source == "forced"]
    return max(run.fork_at or 0, *forced[-1:], 0)


def place_to_take_back(run: Run, since: int) -> int | None:
    """Returns the place of the first token to be taken back, if the last ones are too surprising. The first
    `since` tokens are settled."""
    sampling = run.sampling
    window = sampling.revise_window
    if run.revised >= sampling.revise or len(run.tokens) - since < window:
        return None
    surprise = [-token.raw_logprob for token in run.tokens[-window:]]
    if sum(surprise) <= sampling.revise_bits * log(2) * window:
        return None
    return len(run.tokens) - window + surprise.index(max(surprise))


def salt_after(run: Run, at: int) -> int:
    """Returns the salt of the run that continues when the tokens from `at` on are taken back. It is that of
    the first fork there, whatever else is forked there meanwhile."""
    return fork_salt(run.salt, len(run.prompt_ids) + at, 1)


def settled_tokens(tokens: Iterable[Token], window: int) -> Iterator[Token]:
    """Yields the tokens of a stream that cannot be taken back any more, and at its end the others. `window`
    is the `revise_window` of the request."""
    held: dict[int, Held] = {}
    for token in tokens:
        yield from held.setdefault(token.sample, Held(window)).add(token)
    for tokens_held in held.values():
        yield from tokens_held.rest()


class Held:
    """The last tokens of a run, which may be taken back."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._tokens: deque[Token] = deque()

    def add(self, token: Token) -> list[Token]:
        """Adds a token of a stream, or takes some back. Returns those that are settled now."""
        if isinstance(token, TakenBack):
            for _ in range(token.taken):
                self._tokens.pop()
            return []
        self._tokens.append(token)
        return [self._tokens.popleft()] if len(self._tokens) > self._window else []

    def rest(self) -> list[Token]:
        """Returns the tokens that are left at the end of a run."""
        rest = list(self._tokens)
        self._tokens.clear()
        return rest
