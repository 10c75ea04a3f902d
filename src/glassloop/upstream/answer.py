"""One run as another engine answers it: chunks of a stream become tokens of the record."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from time import perf_counter

from glassloop.engine.request import Request
from glassloop.record.origin import OtherEngine
from glassloop.record.run import Run
from glassloop.record.token import Source, Token
from glassloop.upstream.client import UpstreamError
from glassloop.upstream.reading import AnswerPart, ReportedAlternative, ReportedToken
from glassloop.upstream.vocabulary import Names

# How an answer ended in OpenAI's words, and in ours. Any other word is a stop with that reason.
_ENDINGS = {"stop": "stop", "length": "length"}
# Characters of an answer: a token has a few, and some servers send a text without its tokens.
_PER_TOKEN, _MORE = 64, 4096


@dataclass(eq=False)
class UpstreamRequest(Request):
    """A request for another engine. `given` are the tokens that its runs continue with, as far as known."""

    given: list[Token] = field(default_factory=list)


def reporting_engine(run: Run) -> OtherEngine:
    """Returns the other engine that computes a run."""
    assert isinstance(run.origin, OtherEngine)
    return run.origin


class Answer:
    """Turns the chunks of one answer into tokens.

    The text of all chunks together is the text of the run. A token has the text of the chunk that it came
    with; where a chunk has several tokens whose own texts do not add up to its text, the last one has it.
    """

    def __init__(self, request: Request, run: Run) -> None:
        self._request, self._run = request, run
        self._names = Names.of(run)
        self._continues = bool(run.tokens or request.forced)
        self._told = False  # whether a token came
        self._held: list[str] = []  # texts that came without a token, after tokens
        self._room = _PER_TOKEN * request.sampling.max_tokens + _MORE  # characters that may come
        self._first: float | None = None  # when the first token came
        self._last = 0.0
        self._started = perf_counter()

    def forced(self) -> Iterable[Token]:
        """Yields the tokens that the run was asked to continue with."""
        for token in self._request.given if isinstance(self._request, UpstreamRequest) else ():
            named = [ReportedAlternative(each.text, b"", each.raw_logprob) for each in token.alternatives]
            logprob = None if token.raw_logprob != token.raw_logprob else token.raw_logprob
            yield self._token(
                ReportedToken(token.piece, token.bytes, logprob, tuple(named)), token.text, "forced"
            )

    def read(self, part: AnswerPart) -> list[Token]:
        """Returns the tokens of a chunk. Raises if there is far more text than was asked for."""
        run, tokens = self._run, list[Token]()
        engine = reporting_engine(run)
        self._room -= len(part.text)
        if self._room < 0:
            most = f"{_PER_TOKEN} for each of {self._request.sampling.max_tokens} tokens and {_MORE} more"
            raise UpstreamError(f"the upstream sent more characters than are expected: {most}")
        if part.entries:
            self._told = True
            for entry, text in zip(part.entries, self._texts(part), strict=True):
                tokens.append(self._token(entry, text))
        elif part.text and self._told:
            self._held.append(part.text)
        elif part.text:
            tokens.append(self._token(ReportedToken(part.text, part.text.encode(), None, ()), part.text))
            engine = replace(engine, logprobs=False)
        if part.fingerprint is not None:
            engine = replace(engine, fingerprint=part.fingerprint)
        if part.counts is not None:
            # A request that continues a run counts the tokens before it as a part of its prompt.
            prompt, new, cached = part.counts
            if self._continues:
                prompt, new = engine.prompt_tokens, None
            engine = replace(engine, prompt_tokens=prompt, completion_tokens=new, cached_tokens=cached)
        run.origin = engine
        if part.finish_reason is not None:
            reason = _ENDINGS.get(part.finish_reason)
            why = part.stop_reason or ("max_tokens" if reason == "length" else None)
            self.finish(reason or "stop", why if reason else part.finish_reason)
        return tokens

    def finish(self, reason: str, why: str | None) -> None:
        if self._run.finish_reason is None:
            self._run.finish_reason, self._run.stop_reason = reason, why

    def close(self) -> None:
        """Completes the record with what is known at the end."""
        run = self._run
        run.tail = "".join(self._held)
        if self._first is not None:
            run.timings.prefill += self._first - self._started
            run.timings.decode += self._last - self._first

    def _texts(self, part: AnswerPart) -> list[str]:
        text, self._held = "".join([*self._held, part.text]), []
        pieces = [entry.piece for entry in part.entries]
        if len(pieces) > 1 and "".join(pieces) == text:
            return pieces
        return [*[""] * (len(pieces) - 1), text]

    def _token(self, entry: ReportedToken, text: str, source: Source = "sampled") -> Token:
        self._last = perf_counter()
        if source == "sampled" and self._first is None:
            self._first = self._last
        add = self._names.add
        return Token.told(
            add(entry.piece, entry.data),
            text,
            entry.data,
            self._names,
            entry.logprob,
            [(add(each.piece, each.data), each.logprob) for each in entry.alternatives],
            source=source,
            seconds=self._request.seconds,
            sample=self._run.sample,
        )
