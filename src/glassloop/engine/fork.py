"""Forks: requests that continue from the first tokens of a run, which are kept by their ids."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from glassloop.decode.luck import fork_salt
from glassloop.decode.plugins import check_stages
from glassloop.decode.sampling import Sampling
from glassloop.engine.replay import check_continuable
from glassloop.engine.request import Request, runs_of
from glassloop.errors import GlassloopError, SamplingError, TextError
from glassloop.shown import shown
from glassloop.trace.run import Run

if TYPE_CHECKING:
    from glassloop.engine.request_maker import RequestMaker


def fork_request(
    llm: RequestMaker,
    run: Run,
    at: int,
    *,
    token: int | str | None = None,
    text: str | None = None,
    sampling: Sampling | None = None,
    **overrides: Any,
) -> Request:
    """Returns the request of `LLM.fork`."""
    check_continuable(llm, run)
    check_place(run, at, token, text)
    before, options = fork_options(run, sampling, overrides)
    if options.beam_width > 1:
        raise SamplingError.about("beam_width", "is above 1; a fork continues one branch, so 1 is expected")
    check_stages(options, run.plugins)
    forced = _forced(llm, token, text)
    name = "at" if text is None else "text"
    llm.check_length(len(run.prompt_ids) + at + len(forced), name, ", those before it included")
    # Change one thing at a time: a fork that changes something keeps the luck; else the luck is what changes.
    position = len(run.prompt_ids) + at
    salt, ordinal = run.salt, run.forks.get(position, 0)
    same = replace(options, n=before.n, beam_width=before.beam_width, timeout=before.timeout) == before
    if not forced and same:
        ordinal += 1
        salt = fork_salt(run.salt, position, ordinal)
    run.forks[position] = ordinal + options.n - 1

    reason = "edited" if text is not None else "forced" if token is not None else "sampled"

    def make(seed: int, number: int) -> Run:
        own = salt if number == 0 else fork_salt(run.salt, position, ordinal + number)
        made = _copy_start(llm, run, at, options, seed, own, reason)
        made.sample = number
        return made

    runs = runs_of(options, make)
    built = llm.build(options)
    return Request(
        run.prompt_ids, options, runs, forced=forced, drafts=llm.drafts, keep=llm.keep, built=built
    )


def check_place(run: Run, at: int, token: int | str | None, text: str | None) -> None:
    """Raises unless a run can be forked at a place, with a token or a text or neither."""
    if not 0 <= at <= len(run.tokens):
        raise GlassloopError.about(
            "at", f"is {at}; a number of tokens from 0 to {len(run.tokens)} is expected"
        )
    if token is not None and text is not None:
        raise GlassloopError("token and text are both given; at most one of them is expected", field="token")


def fork_options(run: Run, sampling: Sampling | None, overrides: dict[str, Any]) -> tuple[Sampling, Sampling]:
    """Returns the options of a run with its seed, and those of a fork of it."""
    before = replace(run.sampling, seed=run.seed)
    options = sampling or before
    if overrides:
        options = options.changed(overrides)
    return before, options if options.seed is not None else replace(options, seed=run.seed)


def forked_run(llm: RequestMaker, run: Run, at: int, *, new_luck: bool) -> Run:
    """Returns a run that begins with the first `at` tokens of another run of this model and has its options:
    with new luck, or with the same."""
    position, salt = len(run.prompt_ids) + at, run.salt
    if new_luck:
        run.forks[position] = ordinal = run.forks.get(position, 0) + 1
        salt = fork_salt(run.salt, position, ordinal)
    made = _copy_start(llm, run, at, run.sampling, run.seed, salt, "sampled" if new_luck else "edited")
    made.samples = [made]
    return made


def _copy_start(
    llm: RequestMaker, run: Run, at: int, options: Sampling, seed: int, salt: int, reason: str
) -> Run:
    """Returns a fork of a run with its first `at` tokens."""
    made = llm.new_run(run.prompt_ids, options, seed, salt=salt, prompt=run.prompt, sample=0)
    made.messages = run.messages
    made.adapters = run.adapters | made.adapters
    made.tokens = list(run.tokens[:at])
    before = run.sampling
    if (options.prompt_logprobs, options.adapter) == (before.prompt_logprobs, before.adapter):
        made.prompt_tokens = list(run.prompt_tokens)
    made.descend(run, at, reason)
    return made


def rest_request(llm: RequestMaker, run: Run, timeout: float | None = None) -> Request:
    """Returns a request that continues a cancelled or interrupted run, with its own options and luck.

    It takes at most `timeout` seconds, whatever the run's own options allow. The limit is the request's
    alone: the record of the run keeps the options that it was made with.
    """
    check_continuable(llm, run)
    sampling = run.sampling
    if sampling.beam_width > 1:
        raise SamplingError.about("beam_width", "is above 1; a beam search cannot be continued")
    check_stages(sampling, run.plugins)
    llm.check_length(len(run.prompt_ids) + len(run.tokens))
    limits = [seconds for seconds in (sampling.timeout, timeout) if seconds is not None]
    own = replace(sampling, n=1, timeout=min(limits, default=None))
    built = llm.compile(own)
    return Request(run.prompt_ids, own, [run], drafts=llm.drafts, keep=llm.keep, built=built)


def _forced(llm: RequestMaker, token: int | str | None, text: str | None) -> list[int]:
    if text is not None:
        return llm.tokenizer.encode(text, add_special=False, parse_special=False)
    if token is None:
        return []
    if not isinstance(token, str):
        return [llm.checked_id(token)]
    found = llm.tokenizer.id_of(token)
    if found is None:
        problem = f"is {shown(token)}, which is no single token of {llm.name}; text= takes any text"
        raise TextError.about("token", problem)
    return [found]
