"""Branching: the one way in which an engine makes a run that begins with tokens of another.

Forks, proposals of edits, paths of a search and revisions are such runs. What they inherit is in
`Run.beginning`; here are the options, the text of the tokens that they keep, and the ledger of luck
(`Run.forks`), which only functions of this module write.
"""

from __future__ import annotations

from collections.abc import Iterator
from threading import Lock
from typing import Protocol

from glassloop.decode.compiled import Compiled
from glassloop.decode.luck import fork_salt
from glassloop.decode.plugins import plugins_of
from glassloop.decode.sampling import Sampling
from glassloop.engine.branch import BranchText
from glassloop.errors import GlassloopError
from glassloop.model.config import ModelConfig
from glassloop.record.run import Maker, Run
from glassloop.record.token import Token

_LEDGER = Lock()  # of all `Run.forks`: two forks at one place must not get the same luck


class BranchMaker(Maker, Protocol):
    """What a branch needs of the engine that continues it."""

    name: str
    config: ModelConfig

    @property
    def op_set(self) -> str: ...

    def adapters_of(self, sampling: Sampling) -> dict[str, str]: ...


def branch(
    llm: BranchMaker,
    run: Run,
    at: int,
    sampling: Sampling,
    built: Compiled | GlassloopError,
    *,
    seed: int,
    salt: int,
    reason: str,
    sample: int = 0,
) -> Run:
    """Returns a run with the first `at` tokens of another, which continues with the options `sampling`.
    `built` is what these were compiled to, or why they could not be."""
    same_prompt = (sampling.prompt_logprobs, sampling.adapter) == (
        run.sampling.prompt_logprobs,
        run.sampling.adapter,
    )
    child = run.beginning(
        at,
        reason,
        model=llm.name,
        context=llm.config.context,
        ops=llm.op_set,
        llm=llm,
        sampling=sampling,
        seed=seed,
        salt=salt,
        sample=sample,
        plugins=plugins_of(sampling),
        adapters=llm.adapters_of(sampling),
        prompt_tokens=list(run.prompt_tokens) if same_prompt else [],
        tokens=_kept(run, at, built),
    )
    child.samples = [child]
    return child


def revised(run: Run, at: int, salt: int) -> Run:
    """Returns the run that continues in the place of another one, whose tokens from `at` on were taken back.
    Its luck counts as that of the first branch there."""
    with _LEDGER:
        run.forks.setdefault(len(run.prompt_ids) + at, 1)
    return run.revise(at, salt)


def count_branches(run: Run, at: int, count: int) -> int:
    """Counts branches at a place whose luck another engine draws. Returns the number of the first."""
    with _LEDGER:
        position = len(run.prompt_ids) + at
        before = run.forks.get(position, 0)
        run.forks[position] = before + count
        return before + 1


def _kept(run: Run, at: int, built: Compiled | GlassloopError) -> list[Token]:
    """Returns the tokens that a branch keeps. A stop string within them does not end the text, and other stop
    strings hold back other parts of it, so each has the text that became certain with it in this branch."""
    tokens = run.tokens[:at]
    if isinstance(built, GlassloopError) or (built.stops is None and not run.sampling.stop):
        return tokens
    text = BranchText(built)
    return [token.with_text(text.feed(token.bytes, may_stop=False)) for token in tokens]


def new_luck(run: Run, at: int, count: int = 1) -> list[int]:
    """Returns the salts of the next `count` branches with new luck at a place of a run, and counts them."""
    with _LEDGER:
        position = len(run.prompt_ids) + at
        salts, last = _next_luck(run, at, count)
        run.forks[position] = last
        return salts


def peek_luck(run: Run, at: int) -> int:
    """Returns the salt that the next branch with new luck would have."""
    with _LEDGER:
        return _next_luck(run, at, 1)[0][0]


def _next_luck(run: Run, at: int, count: int) -> tuple[list[int], int]:
    """Returns the next salts that no branch has, and the number of the last one. The record of a run has only
    the branches that were made before it was written, so its children are looked at too."""
    position, salt = len(run.prompt_ids) + at, run.drawn_with(at).salt
    alike = list(_alike(run, at))
    used = {child.salt for each in alike for child in each.children if child.fork_at == at}
    # The first one is that of a revision, which must not depend on what else was forked.
    number = max(each.forks.get(position, 1 if each.sampling.revise else 0) for each in alike)
    salts: list[int] = []
    while len(salts) < count:
        number += 1
        if (unused := fork_salt(salt, position, number)) not in used:
            salts.append(unused)
    return salts, number


def _alike(run: Run, at: int) -> Iterator[Run]:
    """Yields a run and its ancestors as far as they have the same tokens and luck up to a place."""
    here: Run | None = run
    while here is not None:
        yield here
        here = here.above if here.fork_at is not None and at < here.fork_at else None
