"""Power sampling: text from the distribution p^alpha, without training.

Sampling at temperature 1/alpha sharpens each choice by itself; p^alpha sharpens the probability of the text
as a whole, so a likely word that leads to unlikely text loses. Metropolis–Hastings samples from it: a place
of the text is chosen, the rest is drawn again from there by the model, and the new text is accepted with a
probability that makes p^alpha the limit (docs/editing.md has the arithmetic).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from math import log
from typing import TYPE_CHECKING, Any

from glassloop.decode.compiled import Compiled
from glassloop.decode.defaults import check_sampling
from glassloop.decode.luck import list_seed
from glassloop.decode.sampling import Sampling
from glassloop.decode.task_kinds import SHARPEN
from glassloop.edit.acceptance import SuffixChain, ended, logprob, note_acceptance
from glassloop.edit.proposal import Proposal
from glassloop.edit.record import Edit
from glassloop.edit.work import EditWork, complete_all
from glassloop.engine.branching import branch
from glassloop.engine.deadline import Deadline, check_deadline
from glassloop.engine.request import Request, draw_seed
from glassloop.errors import SamplingError
from glassloop.record.run import Run
from glassloop.util.check import check_count, check_number

if TYPE_CHECKING:
    from glassloop.engine.local import LocalModel

MOST_STEPS = 10_000


def sharpen(
    llm: LocalModel,
    prompt: Any,
    alpha: float = 4.0,
    *,
    steps: int = 10,
    block: int | None = None,
    sampling: Sampling | None = None,
    deadline: Deadline | None = None,
) -> Edit:
    """Draws a text from p^alpha; `sharpen_all` describes the options."""
    return sharpen_all(
        llm, [prompt], alpha, steps=steps, block=block, sampling=sampling, deadline=deadline, same_seed=True
    )[0]


def sharpen_all(
    llm: LocalModel,
    prompts: Sequence[Any],
    alpha: float = 4.0,
    *,
    steps: int = 10,
    block: int | None = None,
    sampling: Sampling | None = None,
    deadline: Deadline | None = None,
    same_seed: bool = False,
) -> list[Edit]:
    """Draws one text from p^alpha for each prompt, by chains that advance together: each step of all of them
    is one batch. The same prompt several times gives independent chains.

    A prompt is a text, token ids, or a conversation. `sampling` says how proposals are drawn; by default at
    temperature 1/alpha. Stages that remove tokens restrict the result to what they can draw. `steps` is the
    number of proposals. With `block`, the text grows by `block` tokens at a time, with `steps` steps each
    time, which reaches likely texts sooner.
    """
    check_number("alpha", alpha, 0.01, 100)
    check_count("steps", steps, 0, MOST_STEPS)
    if block is not None:
        check_count("block", block, 1, 1 << 20)
    check_deadline(deadline)
    options = _options(sampling, alpha)
    seed = draw_seed() if options.seed is None else options.seed
    chains: list[Generator[Request, None, Edit]] = []
    for number, prompt in enumerate(prompts):
        chain_seed = seed if same_seed else list_seed(seed, number)
        chains.append(_chain(llm, prompt, replace(options, seed=chain_seed), alpha, steps, block))
    edits: dict[int, Edit] = {}
    while len(edits) < len(chains):
        requests = []
        for number, chain in enumerate(chains):
            if number not in edits:
                try:
                    requests.append(next(chain))
                except StopIteration as end:
                    edits[number] = end.value
        complete_all(llm, requests, deadline)
    return [edits[number] for number in range(len(chains))]


def _options(sampling: Sampling | None, alpha: float) -> Sampling:
    if sampling is None:
        return Sampling(temperature=1 / alpha)
    check_sampling(sampling)
    SHARPEN.check(sampling)
    if sampling.greedy:
        raise SamplingError.about(
            "temperature", "is 0; power sampling draws, so a number above 0 is expected"
        )
    return sampling


def _chain(
    llm: LocalModel, prompt: Any, sampling: Sampling, alpha: float, steps: int, block: int | None
) -> Generator[Request, None, Edit]:
    """Yields the requests of one chain and returns the result. The caller completes each request before it
    asks for the next."""
    assert sampling.seed is not None
    work = EditWork(llm, sampling.seed)
    length = min(block or sampling.max_tokens, sampling.max_tokens)
    request = _prepare(llm, prompt, replace(sampling, max_tokens=length))
    built = request.compiled
    yield request
    draft = request.runs[0]
    chain = SuffixChain(work.luck, alpha, draft)
    work.sampled += len(ended(draft))
    proposals: list[Proposal] = []
    while True:
        for _ in range(steps):
            at, current = chain.place(), chain.current
            request = redraw(llm, current, at, work.luck.salt(chain.step, 0), built)
            yield request
            new = request.runs[0]
            work.sampled += len(ended(new)) - at
            proposal = suffix_proposal(chain.step, 0, current, new, at)
            proposal.seconds = work.seconds
            proposals.append(proposal)
            note_acceptance(proposal, chain.decide(new, at))
            chain.step += 1
        current = chain.current
        full = (current.finish_reason, current.stop_reason) == ("length", "max_tokens")
        no_room = len(current.prompt_ids) + len(current.tokens) >= llm.config.context
        if not full or no_room or length >= sampling.max_tokens or block is None:
            break
        length = min(length + block, sampling.max_tokens)
        built = llm.compile(replace(sampling, max_tokens=length))
        request = redraw(llm, current, len(current.tokens), current.salt, built)
        yield request
        chain.current = request.runs[0]
        work.sampled += len(ended(chain.current)) - len(current.tokens)
    arguments = {"alpha": float(alpha), "steps": steps, "block": block, "sampling": sampling.to_dict()}
    return Edit.of(work, "sharpen", draft, current, proposals, arguments, (0, len(current.text)))


def _prepare(llm: LocalModel, prompt: Any, sampling: Sampling) -> Request:
    if isinstance(prompt, Sequence) and prompt and isinstance(prompt[0], Mapping):
        return llm.prepare_chat(prompt, sampling)
    return llm.prepare(prompt, sampling)


def redraw(llm: LocalModel, run: Run, at: int, salt: int, built: Compiled) -> Request:
    """Returns a request that draws the text again from the token `at` on, with the options of `built`."""
    options = built.sampling
    assert options.seed is not None
    redrawn = branch(llm, run, at, options, built, seed=options.seed, salt=salt, reason="sampled")
    return Request(run.prompt_ids, options, [redrawn], drafts=llm.drafts, keep=llm.keep, built=built)


def suffix_proposal(step: int, number: int, old: Run, new: Run, at: int) -> Proposal:
    """Returns the proposal of a text whose end, from the token `at` on, was drawn again."""

    def text(run: Run) -> str:
        return "".join([token.text for token in run.tokens[at:]]) + run.tail

    proposal = Proposal(step, number, at, len(old.tokens), new.token_ids[at:], text(new), text(old), new, new)
    proposal.own_bits = -logprob(ended(new)[at:]) / log(2)
    proposal.old_own_bits = -logprob(ended(old)[at:]) / log(2)
    return proposal
