"""`UpstreamEngine`: an engine whose requests are computed by another one, behind an OpenAI-compatible API.

It makes requests and answers questions about runs; `UpstreamStreams` computes them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from glassloop.decode.compiled import Compiled
from glassloop.decode.sampling import Sampling
from glassloop.engine.deadline import Deadline
from glassloop.engine.fork import check_change, fork_options
from glassloop.engine.language_model import LanguageModel, needs_own_model
from glassloop.engine.protocol import UNKNOWN_CONTEXT
from glassloop.engine.request import Listener, Request, ignore, runs_of
from glassloop.engine.request_maker import Messages, Prompt, RequestMaker
from glassloop.errors import GlassloopError, SamplingError, TextError, TraceError
from glassloop.ops.quant import Float32
from glassloop.record.messages import Message, recorded
from glassloop.record.origin import OtherEngine
from glassloop.record.reported import explain_reported
from glassloop.record.run import Run
from glassloop.record.token import Token
from glassloop.upstream.answer import UpstreamRequest, reporting_engine
from glassloop.upstream.answer_streams import UpstreamStreams
from glassloop.upstream.client import checked_url
from glassloop.upstream.fork import continued_text, forced_token, fork_seed
from glassloop.upstream.prompts import read_chat_prompt, read_prompt
from glassloop.upstream.servers import check_options, options_for
from glassloop.upstream.vocabulary import (
    UnknownConfig,
    UnknownTokenizer,
    name_of,
    name_of_messages,
)
from glassloop.util.shown import printable

if TYPE_CHECKING:
    from glassloop.decode.explain import Explanation
    from glassloop.engine.lens_reader import LensReader
    from glassloop.engine.tasks.masked import Mask
    from glassloop.record.verdict import ReplayVerdict

T = TypeVar("T")
KEY_VARIABLE = "GLASSLOOP_UPSTREAM_KEY"
_PROMPT_SECONDS = 300.0  # for the log-probabilities of a prompt
_MOST_RUNNING = 256  # requests at once
_MOST_WAITING = 1024
_OP_SET = "upstream"


class UpstreamEngine(LanguageModel):
    """A model behind an OpenAI-compatible API: vLLM, llama.cpp, Ollama, a hosted one.

    `model` is its name there; without it, the only one that the upstream has. `key` is the API key, by
    default the environment variable GLASSLOOP_UPSTREAM_KEY; it is never recorded or logged.
    """

    engine: UpstreamStreams

    def __init__(
        self,
        url: str,
        model: str | None = None,
        *,
        key: str | None = None,
        most_running: int = _MOST_RUNNING,
        most_waiting: int = _MOST_WAITING,
    ) -> None:
        key = key or os.environ.get(KEY_VARIABLE) or None
        self.engine = UpstreamStreams(checked_url(url), model, key, most_running, most_waiting)
        api = self.engine.api
        self.kind = api.kind
        self.model = api.model
        tokenizer, config = UnknownTokenizer(api.model), UnknownConfig(api.context)
        self.requests = RequestMaker(self, api.model, config, tokenizer, drafts=False)

    # ── the model ──────────────────────────────────────────────────────────────────────────────────────────

    @property
    def url(self) -> str:
        return self.engine.api.client.url

    @property
    def upstream(self) -> str:
        return self._origin("chat").described

    @property
    def op_set(self) -> str:
        return f"{_OP_SET} {self.kind.name}".strip()

    @property
    def model_hash(self) -> str:
        return ""  # not known

    @property
    def kv_memory(self) -> int:
        return 0  # not known

    def has_room(self, tokens: int) -> bool:
        return True

    @property
    def mask(self) -> Mask:
        raise needs_own_model("diffusion")

    def decode(self, token_ids: Sequence[int]) -> str:
        return ""

    # ── requests ───────────────────────────────────────────────────────────────────────────────────────────

    def compile(self, sampling: Sampling) -> Compiled:
        check_options(self.kind, sampling)
        return Compiled(sampling, (), None, None, None)

    def prepare(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        *,
        priority: int = 0,
        listener: Listener = ignore,
        compiled: Compiled | None = None,
        messages: Messages | None = None,
    ) -> Request:
        sampling = self.default_sampling if sampling is None else sampling
        built = self.compile(sampling)
        talk = None if messages is None else recorded(messages)
        text = prompt if talk is None else None
        if text is not None and not isinstance(text, str):
            raise TextError.about("prompt", "is token ids; they are not known here: a text is expected")
        options_for(self.kind, sampling, chat=talk is not None)  # raises what is wrong
        prompt_tokens: list[Token] = []
        if text is not None and not text:
            raise TextError.about("prompt", "is empty; at least one character is expected")
        if sampling.prompt_logprobs:
            ids, prompt_tokens = self._prompt_tokens(text, talk, sampling)
        elif talk is not None:
            ids = [name_of_messages(talk)]
        else:
            ids = [name_of((text or "").encode("utf-8", "replace"))]

        def make(seed: int, number: int) -> Run:
            run = self._new(ids, sampling, (seed + number) % (1 << 64), text, talk, number)
            run.prompt_tokens = list(prompt_tokens)
            return run

        runs = runs_of(sampling, make)
        return Request(ids, sampling, runs, listener, priority, drafts=False, keep=self.keep, built=built)

    def _prompt_tokens(
        self, text: str | None, talk: list[Message] | None, sampling: Sampling
    ) -> tuple[list[int], list[Token]]:
        """Returns the tokens of a prompt as the upstream tells them; raises if it does not."""
        count, server = sampling.prompt_logprobs, self.kind.name or "the upstream"
        question: Coroutine[Any, Any, tuple[list[int], list[Token]]]
        if talk is not None and self.kind.scores_chats:
            question = read_chat_prompt(self.engine.api.client, self.model, talk, count)
        elif talk is not None:
            problem = f"is given for a chat; {server} is not known to have that, only for a text"
            raise SamplingError.about("prompt_logprobs", problem)
        elif not self.kind.echoes:
            problem = f"is given; {server} gives those of the next token in their place"
            raise SamplingError.about("prompt_logprobs", problem)
        else:
            question = read_prompt(self.engine.api.client, self.model, text or "", count)
        return self.engine.call(question, sampling.timeout or _PROMPT_SECONDS)

    def _new(
        self,
        ids: list[int],
        sampling: Sampling,
        seed: int,
        text: str | None,
        talk: list[Message] | None,
        sample: int,
    ) -> Run:
        run = self.requests.new_run(ids, sampling, seed, salt=0, prompt=text, sample=sample, messages=talk)
        run.context, run.origin = self._context, self._origin("completions" if talk is None else "chat")
        return run

    def _origin(self, endpoint: str) -> OtherEngine:
        """Returns the origin of a new run."""
        return OtherEngine(self.url, self.kind.name, endpoint, self.engine.gives_logprobs)

    @property
    def _context(self) -> int:
        """The context of the model; 0 if it is not known."""
        return 0 if self.config.context == UNKNOWN_CONTEXT else self.config.context

    def prepare_fork(
        self,
        run: Run,
        at: int,
        *,
        listener: Listener = ignore,
        priority: int = 0,
        token: int | str | None = None,
        text: str | None = None,
        sampling: Sampling | None = None,
        **overrides: Any,
    ) -> Request:
        """Returns a request for a fork. Without a change, the next seed is sent."""
        self._check_own(run)
        at = check_change(run, at, token, text)
        options, changed = fork_options(run, at, sampling, overrides)
        built = self.compile(options)
        forced = [] if token is None and text is None else [forced_token(run, at, token, text)]
        seed = fork_seed(run, at, options, is_same=not forced and not changed)
        reason = "edited" if text is not None else "forced" if token is not None else "sampled"
        before = reporting_engine(run)
        origin = replace(self._origin(before.endpoint), prompt_tokens=before.prompt_tokens)

        def make(_: int, number: int) -> Run:
            sample_seed = (seed + number) % (1 << 64)
            fork = run.beginning(
                at,
                reason,
                context=self._context,
                ops=self.op_set,
                llm=self,
                sampling=replace(options, seed=sample_seed),
                seed=sample_seed,
                salt=0,
                sample=number,
                origin=origin,
            )
            continued_text(self.kind, fork)  # raises if it cannot be continued
            return fork

        return UpstreamRequest(
            run.prompt_ids,
            options,
            runs_of(options, make),
            listener,
            priority,
            forced=[each.id for each in forced],
            drafts=False,
            keep=self.keep,
            built=built,
            given=forced,
        )

    def prepare_rest(self, run: Run, *, timeout: float | None = None) -> Request:
        """Returns a request that continues a run from its text. Unlike with an engine of our own, what comes
        may be another text than without the interruption."""
        self._check_own(run)
        continued_text(self.kind, run)
        limits = [seconds for seconds in (run.sampling.timeout, timeout) if seconds is not None]
        rest = replace(run.sampling, n=1, timeout=min(limits, default=None))
        return Request(run.prompt_ids, rest, [run], drafts=False, keep=self.keep, built=self.compile(rest))

    def _check_own(self, run: Run) -> None:
        """Raises unless this upstream made the run."""
        engine = run.upstream
        if engine is None or engine.url != self.url or run.model != self.name:
            raise TraceError(
                f"run {run.id} was computed by {run.origin.described}, with the model"
                f" {printable(run.model, 200)}; here {self.name} at {self.url} answers, which can only"
                " show it"
            )

    # ── as an LLM of Python ────────────────────────────────────────────────────────────────────────────────

    def generate(self, prompt: str, sampling: Sampling | None = None) -> Run:
        """Continues a text."""
        return self.complete(self.prepare(prompt, sampling))

    def chat(self, messages: Messages, sampling: Sampling | None = None) -> Run:
        """Generates the next turn of a conversation."""
        return self.complete(self.prepare_chat(messages, sampling))

    def forget(self, run: Run) -> None:
        """Does nothing: what the upstream keeps of a run is its own affair."""

    # ── questions ──────────────────────────────────────────────────────────────────────────────────────────

    def apply(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        raise needs_own_model(function.__name__)

    def explain(
        self, run: Run, at: int, *, deadline: Deadline | None = None, **overrides: Any
    ) -> Explanation:
        if run.origin.is_local:
            raise TraceError(
                f"run {run.id} was computed by the model {run.model}; here another engine answers"
            )
        return explain_reported(run, at, **overrides)

    def replay(
        self, run: Run, *, first: int = 0, strict: bool = True, deadline: Deadline | None = None
    ) -> ReplayVerdict:
        run.check_computable()
        raise TraceError(f"run {run.id} cannot be computed again by another engine")

    @property
    def lens(self) -> LensReader:
        raise GlassloopError.about("lens", f"is not known: {self.upstream} computes the model")

    def embed(self, token_ids: Sequence[int], *, deadline: Deadline | None = None) -> Float32:
        raise GlassloopError("embeddings are not passed on to another engine")

    # ── operation ──────────────────────────────────────────────────────────────────────────────────────────

    @property
    def problem(self) -> str | None:
        return self.engine.problem
