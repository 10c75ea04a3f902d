"""Forks: requests that continue from the first tokens of a run, which are kept by their ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from glassloop.decode.defaults import check_sampling
from glassloop.decode.plugins import check_stages
from glassloop.decode.sampling import Sampling
from glassloop.decode.task_kinds import CONTINUE, FORK
from glassloop.engine.branching import branch, new_luck
from glassloop.engine.compatibility import check_continuable
from glassloop.engine.request import Request, runs_of
from glassloop.engine.request_maker import RequestMaker
from glassloop.errors import GlassloopError, SamplingError, TextError, TraceError
from glassloop.record.run import Run
from glassloop.record.run_record import check_place
from glassloop.util.check import check_text
from glassloop.util.shown import shown


def fork_request(
    requests: RequestMaker,
    run: Run,
    at: int,
    *,
    token: int | str | None = None,
    text: str | None = None,
    sampling: Sampling | None = None,
    **overrides: Any,
) -> Request:
    """Returns the request of `LLM.fork`."""
    llm = requests.llm
    check_continuable(llm, run)
    at = check_change(run, at, token, text)
    options, changed = fork_options(run, at, sampling, overrides)
    drawn = run.drawn_with(at)
    check_stages(options, drawn.plugins)
    forced = _forced(requests, token, text)
    name = "at" if text is None else "text"
    requests.check_length(len(run.prompt_ids) + at + len(forced), name, ", those before it included")
    if not forced and at >= options.max_tokens:
        kept = f"is {options.max_tokens}, and the fork keeps {at} tokens"
        raise SamplingError.about("max_tokens", f"{kept}; at least {at + 1} is expected")
    built = requests.build(options)
    # Change one thing at a time: a fork that changes something keeps the luck; else the luck is what changes.
    if forced or changed:
        salts = [drawn.salt, *(new_luck(run, at, options.n - 1) if options.n > 1 else ())]
    else:
        salts = new_luck(run, at, options.n)
    reason = "edited" if text is not None else "forced" if token is not None else "sampled"

    def make(seed: int, number: int) -> Run:
        child = branch(requests.llm, run, at, options, built, seed=seed, salt=salts[number], reason=reason)
        child.sample = number
        return child

    runs = runs_of(options, make)
    return Request(
        run.prompt_ids,
        options,
        runs,
        forced=forced,
        drafts=requests.drafts,
        keep=requests.llm.keep,
        built=built,
    )


def check_change(run: Run, at: int, token: int | str | None, text: str | None) -> int:
    """Returns the place at which a run is forked. Raises unless that is possible with these changes."""
    place = check_place(at, len(run.tokens))
    if token is not None and text is not None:
        raise GlassloopError("token and text are both given; at most one of them is expected", field="token")
    if text is not None:
        check_text("text", text)
    return place


def fork_options(
    run: Run, at: int, sampling: Sampling | None, overrides: Mapping[str, Any]
) -> tuple[Sampling, bool]:
    """Returns the options of a fork at a place of a run, and whether they change what that place has."""
    before = run.options_at(at).sampling
    options = before if sampling is None else sampling
    check_sampling(options)
    if overrides:
        options = options.changed(overrides)
    FORK.check(options, replace(before, beam_width=1))
    if options.seed is None:
        options = replace(options, seed=before.seed)
    same = {name: getattr(before, name) for name in ("n", "beam_width", "timeout")}  # change no choice
    return options, replace(options, **same) != before


def forked_run(requests: RequestMaker, run: Run, at: int, *, is_edit: bool) -> Run:
    """Returns a run that begins with the first `at` tokens of another run of this model and has its options:
    with the same luck if it continues with a text that is given, else with new luck."""
    drawn = run.options_at(at)
    salt = drawn.salt if is_edit else new_luck(run, at)[0]
    reason = "edited" if is_edit else "sampled"
    built = requests.build(drawn.sampling)
    return branch(requests.llm, run, at, drawn.sampling, built, seed=drawn.seed, salt=salt, reason=reason)


def rest_request(requests: RequestMaker, run: Run, timeout: float | None = None) -> Request:
    """Returns a request that continues a cancelled or interrupted run, with its own options and luck.

    It takes at most `timeout` seconds, whatever the run's own options allow. The limit is the request's
    alone: the record of the run keeps the options that it was made with.
    """
    check_continuable(requests.llm, run)
    sampling = run.sampling
    CONTINUE.check_recorded(sampling)
    if not run.cut_short:
        ended = f"{run.id} ended by {run.finish_reason} ({run.stop_reason})"
        raise TraceError.about(
            "run", f"{ended}; an interrupted one is expected (a fork can go on from its end)"
        )
    check_stages(sampling, run.plugins)
    requests.check_length(len(run.prompt_ids) + len(run.tokens) + len(run.pending))
    limits = [seconds for seconds in (sampling.timeout, timeout) if seconds is not None]
    own_sampling = replace(sampling, n=1, timeout=min(limits, default=None))
    built = requests.compile(own_sampling)
    return Request(
        run.prompt_ids,
        own_sampling,
        [run],
        forced=list(run.pending),
        drafts=requests.drafts,
        keep=requests.llm.keep,
        built=built,
    )


def _forced(requests: RequestMaker, token: int | str | None, text: str | None) -> list[int]:
    if text is not None:
        return requests.tokenizer.encode(text, add_special=False, parse_special=False)
    if token is None:
        return []
    if not isinstance(token, str):
        return [requests.checked_id(token)]
    id = requests.tokenizer.id_of(token)
    if id is None:
        problem = f"is {shown(token)}, which is no single token of {requests.name}; text= takes any text"
        raise TextError.about("token", problem)
    return [id]
