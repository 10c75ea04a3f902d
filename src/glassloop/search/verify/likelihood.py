"""Verifiers that ask another model: how likely it finds a text, or an answer to a question about it.

`score_each` computes the log-probabilities of several continuations of one prompt in one batch; the prompt is
computed once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import exp
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from glassloop.decode.sampling import Sampling
from glassloop.engine.request import Request
from glassloop.errors import GlassloopError
from glassloop.record.run import Run
from glassloop.record.token import Token
from glassloop.search.verdict import Verdict, Verifier

if TYPE_CHECKING:
    from glassloop.engine.local import LocalModel

Scored = tuple[list[int], list[int]]  # the tokens of a context, and those of its continuation


def score_each(llm: LocalModel, pairs: Sequence[Scored]) -> list[float]:
    """Returns the log-probability of each continuation after its context, in the model's own distribution.
    All are computed in one batch, and contexts that begin alike share their keys and values."""
    return [sum(values) for values in logprobs_each(llm, pairs)]


def logprobs_each(llm: LocalModel, pairs: Sequence[Scored]) -> list[list[float]]:
    """Returns the log-probability of each token of each continuation."""
    by_place: dict[int, list[float]] = dict(_scored(llm, pairs))
    return [by_place[place] for place in range(len(pairs))]


def _scored(llm: LocalModel, pairs: Sequence[Scored]) -> Iterator[tuple[int, list[float]]]:
    llm.check_may_wait()
    ended: SimpleQueue[tuple[int, Request]] = SimpleQueue()
    window = 2 * llm.engine.loop.scheduler.most_running
    running: dict[int, Request] = {}
    submitted = 0
    try:
        while submitted < len(pairs) or running:
            while submitted < len(pairs) and len(running) < window:
                request = _request(llm, *pairs[submitted])
                if request is None:
                    yield submitted, []
                else:
                    request.listener = _listener(submitted, request, ended)
                    running[submitted] = request
                    llm.engine.submit(request, may_refuse=False)
                submitted += 1
            if running:
                place, request = ended.get()
                del running[place]
                run, count = request.runs[0], len(pairs[place][1])
                if run.error is not None:
                    raise run.error
                scored = [*run.tokens, *([] if run.end is None else [run.end])]
                yield place, [token.raw_logprob for token in scored[:count]]
    finally:
        for request in running.values():
            llm.engine.cancel(request)


def _request(llm: LocalModel, context: list[int], continuation: list[int]) -> Request | None:
    if not continuation:
        return None
    llm.requests.check_length(len(context) + len(continuation), "text")
    sampling = Sampling(temperature=0, max_tokens=len(continuation), logprobs=0, ignore_eos=True, seed=0)
    request = llm.prepare(context, sampling)
    request.forced = list(continuation)
    request.keep = None
    return request


def _listener(place: int, request: Request, ended: SimpleQueue[tuple[int, Request]]) -> Any:
    def tell(run: Run, token: Token | None) -> None:
        if token is None:
            ended.put((place, request))

    return tell


def encode_pair(llm: LocalModel, context: str, continuation: str) -> Scored:
    """Returns the tokens of a context and of its continuation as they are in the text of both together.
    Spaces at the end of the context belong to the continuation, as in most tokenizers they do."""
    stripped = context.rstrip(" ")
    continuation = context[len(stripped) :] + continuation
    alone, whole = llm.tokenizer.encode(stripped), llm.tokenizer.encode(stripped + continuation)
    shared = 0
    while shared < min(len(alone), len(whole) - 1) and alone[shared] == whole[shared]:
        shared += 1
    if not shared:
        raise GlassloopError.about("question", "is empty; at least one token is expected before a choice")
    return whole[:shared], whole[shared:]


def likelihood(
    llm: LocalModel, question: str | Sequence[Mapping[str, Any]], threshold: float = 1.0
) -> Verifier:
    """Returns a verifier: how likely another model finds a text as the answer to a question. The score is the
    geometric mean of the probabilities of its tokens; a text passes if that is at least the threshold."""
    context = _context(llm, question)

    def verify(text: str) -> Verdict:
        ids = llm.tokenizer.encode(text, add_special=False, parse_special=False)
        (logprobs,) = logprobs_each(llm, [(context, ids)])
        score = exp(sum(logprobs) / len(logprobs)) if logprobs else 0.0
        return Verdict(
            score >= threshold, min(1.0, score), f"{llm.name} finds it {score:.3f} likely by token"
        )

    return verify


def judged_by(
    llm: LocalModel,
    question: str,
    *,
    asked: str = "Question: {question}\n\nAnswer: {text}\n\nIs this answer correct? Reply with Yes or No.",
    yes: str = "Yes",
    no: str = "No",
    threshold: float = 0.5,
) -> Verifier:
    """Returns a verifier: the probability that another model says yes, rather than no, when it is asked about
    a text. It passes if that is at least the threshold."""
    if "{text}" not in asked:
        raise GlassloopError.about("asked", "has no {text}; the text to judge is expected in it")
    said = [llm.tokenizer.encode(word, add_special=False, parse_special=False) for word in (yes, no)]

    def verify(text: str) -> Verdict:
        context = _context(llm, asked.replace("{question}", question).replace("{text}", text))
        for_it, against = score_each(llm, [(context, ids) for ids in said])
        score = 1 / (1 + exp(min(700.0, against - for_it)))
        return Verdict(score >= threshold, score, f"{llm.name} says {yes} with {score:.3f}")

    return verify


def _context(llm: LocalModel, question: str | Sequence[Mapping[str, Any]]) -> list[int]:
    if not isinstance(question, str):
        return llm.tokenizer.encode_chat(question)
    if llm.tokenizer.chat_template is not None:
        return llm.tokenizer.encode_chat([{"role": "user", "content": question}])
    return llm.tokenizer.encode(question)
